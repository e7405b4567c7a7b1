"""What a node hosts: a partition's clients or its own data; pools; registration."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client_app.data.node import open_node
from client_app.data.open_data import _pool, open_data
from client_app.data.registration import registration_of
from client_app.memory.memory import store_of
from task.errors import ConfigError, DataError
from task.resolve.read import read_config
from tests.support.federation import SIZES, owners_config, write_owners


@pytest.fixture(autouse=True)
def _fresh_nodes() -> Iterator[None]:
    """A new process each: nodes are kept by their configuration."""
    open_data.cache_clear()
    yield
    open_data.cache_clear()


def write_csv(path: Path, rows: int, *, classes: int = 3, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    lines = [f"{a:.3f},{b:.3f},{rng.integers(0, classes)}" for a, b in rng.normal(size=(rows, 2))]
    path.write_text("x1,x2,label\n" + "\n".join(lines) + "\n", encoding="utf-8")


def own(dataset: str, **keys: Any) -> Any:
    return read_config({"dataset": dataset, "num-classes": 3, "model": "logistic", "device": "cpu", **keys})


def test_a_node_with_its_own_csv_is_one_client(tmp_path: Path) -> None:
    write_csv(tmp_path / "ward.csv", 20)
    node = open_node(own("csv"), {"client-name": "ward-3", "data-path": str(tmp_path / "ward.csv")})
    call = registration_of(node)
    # local-test-fraction 0.1: 2 of 20 are its own test
    assert (call.clients, call.num_examples.tolist()) == (("ward-3",), [18])
    assert (call.shape, call.classes) == ((2,), 3)
    x, y = node.data("ward-3", "train")
    assert (x.shape, x.dtype, y.shape, y.dtype) == ((18, 2), torch.float32, (18,), torch.int64)
    assert len(node.data("ward-3", "test")[0]) == 2
    assert node.model()(x).shape == (18, 3)


def test_a_node_with_its_own_npz_has_the_files_test_set(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, 2)).astype(np.float32)
    np.savez(tmp_path / "w.npz", x=x, y=np.arange(9) % 3, x_test=x[:4] + 1, y_test=np.arange(4) % 3)
    node = open_node(own("npz"), {"client-name": "ward-3", "data-path": str(tmp_path / "w.npz")})
    assert registration_of(node).num_examples.tolist() == [9]
    assert registration_of(node).code == {}  # no hash of rows, which only pooled data have in common
    assert np.array_equal(node.data("ward-3", "train")[0].numpy(), x)
    assert np.array_equal(node.data("ward-3", "test")[0].numpy(), x[:4] + 1)


def test_a_node_with_its_own_data_refuses_another_client(tmp_path: Path) -> None:
    write_csv(tmp_path / "ward.csv", 20)
    node = open_node(own("csv"), {"client-name": "ward-3", "data-path": str(tmp_path / "ward.csv")})
    with pytest.raises(DataError, match=r"client ward-4: this node hosts ward-3 only"):
        node.data("ward-4", "train")


@pytest.mark.parametrize("path", [{}, {"data-path": ""}])
def test_a_name_without_data_is_refused(path: dict[str, str]) -> None:
    with pytest.raises(
        ConfigError, match='expected data-path, the data of client "ward-3", with client-name'
    ):
        open_node(own("csv"), {"client-name": "ward-3", **path})


@pytest.mark.parametrize("name", [{}, {"client-name": ""}])
def test_data_without_a_name_are_of_a_client_named_by_the_node(tmp_path: Path, name: dict[str, str]) -> None:
    """Two nodes whose clients have one name, of which the run would refuse both."""
    write_csv(tmp_path / "ward.csv", 20)
    ask = {"data-path": str(tmp_path / "ward.csv"), **name}
    first, second = (registration_of(open_node(own("csv"), ask, node_id=i)) for i in (2**63 - 1, 7))
    assert (first.clients, second.clients) == (("node-9223372036854775807",), ("node-7",))
    assert first.pool != second.pool


def test_own_data_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.csv"):
        open_node(own("csv"), {"client-name": "w", "data-path": str(tmp_path / "gone.csv")})


@pytest.fixture
def owners(tmp_path: Path) -> dict[str, Any]:
    write_owners(tmp_path / "owners.npz")
    return owners_config(tmp_path / "owners.npz", state_dir=str(tmp_path / "state"))


def opened(config: dict[str, Any], part: int = 0, parts: int = 1, **keys: Any) -> Any:
    """Open a node as a process of its own would."""
    open_data.cache_clear()
    return open_node(read_config(config | keys), {"partition-id": part, "num-partitions": parts})


def test_a_node_without_data_of_its_own_can_train_every_client_of_the_run(owners: dict[str, Any]) -> None:
    node = opened(owners, 1, 3)
    call = registration_of(node)
    assert dict(zip(call.clients, call.num_examples.tolist(), strict=True)) == SIZES
    assert call.share == (1, 3)
    for name, n in SIZES.items():
        assert len(node.data(name, "train")[0]) == n
    with pytest.raises(DataError, match="frida"):
        node.data("frida", "train")


def test_a_clients_rows_are_its_own(tmp_path: Path, owners: dict[str, Any]) -> None:
    data = write_owners(tmp_path / "owners.npz")
    node = opened(owners)
    for name, (x, y) in data.items():
        got_x, got_y = node.data(name, "train")
        assert np.array_equal(got_x.numpy(), x)
        assert np.array_equal(got_y.numpy(), y)


def test_nodes_with_one_state_folder_are_one_pool_and_others_are_not(
    tmp_path: Path, owners: dict[str, Any]
) -> None:
    first, second = opened(owners, 0, 2), opened(owners, 1, 2)
    assert first.pool == second.pool != ""
    elsewhere = opened(owners, 0, 2, **{"state-dir": str(tmp_path / "other disk")})
    assert elsewhere.pool not in ("", first.pool)
    assert opened(owners, 0, 2).pool == first.pool  # a node that starts again is in its old pool


def test_nodes_with_their_own_data_are_pools_of_their_own_on_one_disk(tmp_path: Path) -> None:
    calls = []
    for name in ("ward-1", "ward-2"):
        write_csv(tmp_path / f"{name}.csv", 20)
        node_config = {"client-name": name, "data-path": str(tmp_path / f"{name}.csv")}
        config = own("csv", **{"state-dir": str(tmp_path)})
        calls.append(registration_of(open_node(config, node_config)))
    assert calls[0].pool != calls[1].pool


def test_the_state_lies_below_the_state_folder_by_run_name(tmp_path: Path, owners: dict[str, Any]) -> None:
    node = opened(owners)
    name = node.config.run_name  # of the configuration, as the run's folder is
    assert store_of(node).path("a", "f00") == tmp_path / "state" / name / "f00" / "a.safetensors"
    store = store_of(opened(owners, **{"run-name": "trial"}))
    assert store.path("a", "f00") == tmp_path / "state" / "trial" / "f00" / "a.safetensors"


def test_the_model_does_not_touch_the_global_generator(owners: dict[str, Any]) -> None:
    before = torch.get_rng_state()
    opened(owners).model()
    assert torch.equal(torch.get_rng_state(), before)


def test_nodes_that_start_at_once_agree_on_their_pool(tmp_path: Path) -> None:
    config = read_config({"state-dir": str(tmp_path / "fresh")})
    barrier = threading.Barrier(8)

    def start() -> str:
        barrier.wait()
        return _pool(config)

    with ThreadPoolExecutor(8) as threads:
        pools = [threads.submit(start) for _ in range(8)]
    assert len({p.result() for p in pools}) == 1
    assert [p.name for p in (tmp_path / "fresh").iterdir()] == ["pool-id"]
