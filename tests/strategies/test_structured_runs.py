"""Restricted training in whole runs: what moves and travels, on however many nodes, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from task.codecs.structured import positions
from task.numerics import seeds
from tests.support.alike import the_same_on_any_nodes_and_resumed
from tests.support.federation import far, owners_config, play, write_owners

KINDS = ["low-rank", "mask"]


@pytest.fixture
def owners(tmp_path: Path) -> Path:
    write_owners(tmp_path / "owners.npz", features=12)
    return tmp_path / "owners.npz"


def keys(owners: Path, kind: str, keep: float = 0.25, **more: Any) -> dict[str, Any]:
    found = owners_config(owners, **{"algorithm": "fedavg", "model": "mlp", "num_server_rounds": 3, **more})
    return found | ({"structured.kind": kind, "structured.keep": keep} if kind != "none" else {})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", ["fedavg", "fedadam", "fedprox"])
def test_keep_1_is_the_same_run_without_to_the_bit(kind: str, algorithm: str, owners: Path) -> None:
    runs = [play(keys(owners, k, 1.0, algorithm=algorithm)) for k in (kind, "none")]
    hashes = [[row["model_sha256"] for row in run.rows] for run in runs]
    assert hashes[0] == hashes[1]
    assert hashes[0][1] != play(keys(owners, kind, algorithm=algorithm)).rows[1]["model_sha256"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_the_same_on_any_number_of_nodes(kind: str, owners: Path) -> None:
    """A space drawn for a node or a cohort would make it another one."""
    the_same_on_any_nodes_and_resumed(keys(owners, kind), nodes=(1, 5))


@pytest.mark.parametrize("kind", KINDS)
def test_alone_and_batched_training_agree(kind: str, owners: Path) -> None:
    one, other = (play(keys(owners, kind, stack=stack), nodes=1).arrays(3) for stack in (1, 0))
    assert far(tuple(one.values()), tuple(other.values())) < 1e-5  # type: ignore[arg-type]


def test_one_clients_round_moves_what_its_mask_names(owners: Path) -> None:
    """A mask of another round or client, or the same in all rounds, would name others."""
    run = play(keys(owners, "mask", fraction_train=0.0))
    for t in (1, 2, 3):
        (client,) = run.rows[t]["selected"]
        seed = seeds.seed_for(3, "codec:arrays", t, client)
        before, after = run.arrays(t - 1), run.arrays(t)
        for name, a in after.items():
            moved = np.flatnonzero(a != before[name])
            mask = positions(seed, name, a.shape, 0.25)
            assert set(moved) <= set(mask)
            assert len(moved) > 0.2 * len(mask)  # some units are dead


def test_what_travels_is_the_numbers_alone(owners: Path) -> None:
    """12 -> 200 -> 200 -> 3: a quarter of the weights and all 403 biases, or a bit for each of 43,403."""
    codes = {"mask": 16 + 4 * (600 + 10_000 + 150 + 403), "sign": 16 + 5_426}
    codes["low-rank"] = codes["mask"]  # 3 x 200, 50 x 200 and 50 x 3
    for name, size in codes.items():
        kind, algorithm = ("none", "signsgd") if name == "sign" else (name, "fedavg")
        for nodes in (1, 5):  # all codes of a node's clients, or each client's
            of = keys(owners, kind, model="2nn", algorithm=algorithm, num_server_rounds=2)
            run = play(of, nodes=nodes)
            assert all(0 < row["bytes_up"] - 5 * size < 0.02 * 5 * size + 5 * 200 for row in run.rows[1:])
