"""Nodes whose copy of a user's code differs from the run's are left out, by name."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from client_app.app import make_app
from strategies import FedAvg
from strategies.membership.client_identity import Claim, OnlineNode, admit
from task.config.read import as_run_config
from task.config.sections import DataConfig
from task.datasets.base import ROWS, Dataset, compared
from task.datasets.skew import load_partitioned
from task.errors import ConfigError
from task.population import ClientNames
from task.resolve.read import read_config
from task.wire.registration import Registration, read_registration, registration_content
from tests.support.grid import LocalGrid

CODE = {"net": "ab" * 32}


def _claim(node: int, code: dict[str, str]) -> Claim:
    registered = Registration(ClientNames(4), np.full(4, 9), "pool", code=code)
    return Claim(OnlineNode(node, f"ward-{node}"), registered, node)


def test_a_node_with_other_code_or_none_takes_no_part_and_is_told_why() -> None:
    done = admit([_claim(1, CODE), _claim(2, {"net": "cd" * 32}), _claim(3, {})], {}, code=CODE)
    assert done.admitted == {1}
    assert done.deviating == {2, 3}  # they count where most nodes must agree
    assert 'different code as "net": expected SHA-256 abababababab' in done.refused[2]
    assert "got cdcdcdcdcdcd..." in done.refused[2]
    assert "got none" in done.refused[3]


def test_a_run_without_code_of_its_user_asks_for_none() -> None:
    assert admit([_claim(1, {})], {}, code={}).admitted == {1}


def test_a_node_with_other_rows_of_a_pooled_data_set_takes_no_part() -> None:
    """A function that splits without a seed gave each machine another test set. Own data are not compared."""
    rows = {ROWS: "ab" * 32}
    done = admit([_claim(1, rows), _claim(2, {ROWS: "cd" * 32}), _claim(3, {})], {}, code=rows)
    assert done.admitted == {1, 3}
    assert "a data set that differs from the server's in its rows or in their order" in done.refused[2]


def test_rows_are_compared_by_order_split_and_class() -> None:
    x, y = np.zeros((4, 2), np.float32), np.array([0, 1, 2, 1])

    def rows(x: np.ndarray, y: np.ndarray, num_train: int = 3) -> str:
        return Dataset(
            name="mine:load",
            x=x,
            y=y,
            num_train=num_train,
            num_classes=3,
            input_shape=(2,),
            kind="features",
            description="",
            source="",
        ).rows_hash

    assert rows(x + 1e-7, y.astype(np.int32)) == rows(x, y)  # last bits may be those of a machine
    others = [rows(x, y[::-1]), rows(x, y, 2), rows(x[:, :1], y), rows(x, np.array([0, 1, 2, 2]))]
    assert len({rows(x, y), *others}) == 5
    assert rows(x, y / 1) == rows(x, y + 0.5)


def test_who_compares_rows() -> None:
    data, _ = load_partitioned(read_config({"dataset": "digits"}))
    assert compared(data, DataConfig(dataset="digits")) == {}
    for brought in ("mine:load", "npz", "csv", "hf:owner/name"):
        assert compared(data, DataConfig(dataset=brought)) == {ROWS: data.rows_hash}


def test_the_hashes_travel_with_the_registration() -> None:
    sent = Registration(ClientNames(4), np.full(4, 9), "pool", code={**CODE, "data": ""})
    assert read_registration(registration_content(sent)).code == sent.code
    old = registration_content(sent)
    del old["roll_call"]["code"]  # a node of an earlier version
    assert read_registration(old).code == {}


def test_a_run_whose_nodes_have_other_rows_ends_before_round_1(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", x=np.zeros((12, 2), np.float32), y=np.arange(12) % 3)
    config = read_config(
        {
            "dataset": "npz", "data-path": str(tmp_path / "all.npz"), "model": "logistic", "num-clients": 2,
            "cache-dir": str(tmp_path / "cache"), "runs-dir": str(tmp_path / "runs"),
        }
    )  # fmt: skip
    data, _ = load_partitioned(config)
    for rows, words in ((data.rows_hash, ""), ("0" * 64, "a data set that differs from the server's")):
        strategy = FedAvg(config)
        strategy.registry.membership.expect_code({ROWS: rows})
        grid = LocalGrid(make_app(simulation=True), [{}], as_run_config(config))
        with pytest.raises(ConfigError, match=words) if words else nullcontext():
            strategy.engine.register(grid, 0)
