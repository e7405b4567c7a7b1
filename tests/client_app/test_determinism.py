"""Training is a function of seed, round and client name; it leaves no trace in the process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from client_app.data.node import Node, open_node
from task.catalogue.algorithms import ALGORITHMS
from task.config.read import as_run_config
from task.resolve.read import read_config
from tests.support.federation import owners_config, play, write_owners
from tests.support.horizontal import HORIZONTAL, VERTICAL, of_columns
from tests.support.nodes import NAMES, alone, start
from tests.support.shapes import by_shape
from tests.test_catalogue import ACTIVE


@pytest.fixture
def node(tmp_path: Path) -> Node:
    write_owners(tmp_path / "owners.npz")
    return open_node(read_config(owners_config(tmp_path / "owners.npz", local_test_fraction=0.2)), {})


@pytest.mark.parametrize("algorithm", [*sorted(HORIZONTAL), *VERTICAL])
def test_training_leaves_the_global_generators_alone(algorithm: str, node: Node) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    rows = np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    model = "mlp" if ALGORITHMS[algorithm].personal else "logistic"
    keys = as_run_config(node.config) | {"algorithm": algorithm, "num-server-rounds": 1, "model": model}
    keys = of_columns(algorithm, num_server_rounds=1) if algorithm in VERTICAL else keys | ACTIVE[algorithm]
    assert play(keys | {"fraction-evaluate": 1.0}, nodes=1).rows[1]["quarantined"] == []
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], rows)  # type: ignore[index]


def test_what_ran_before_does_not_matter(node: Node) -> None:
    first = alone(node, "ben")
    for name in NAMES:
        alone(node, name)
    torch.manual_seed(99)
    again = alone(node, "ben")
    assert first.scalars == again.scalars
    assert all(np.array_equal(first.arrays["arrays"][k], again.arrays["arrays"][k]) for k in start(node))


@pytest.mark.parametrize("algorithm", [*by_shape(((n,) for n in sorted(HORIZONTAL)), 2), *VERTICAL])
def test_another_seed_gives_other_bytes(algorithm: str, tmp_path: Path) -> None:
    write_owners(tmp_path / "owners.npz")
    model = "mlp" if ALGORITHMS[algorithm].personal else "logistic"
    given = {"model": model, "fraction_train": 0.6, "num_server_rounds": 3}
    given |= {} if algorithm in ("fedsgd", "qfedsgd") else {"batch_size": 4}  # they take one full gradient

    def digests(seed: int) -> list[tuple[str, float]]:
        keys = of_columns(algorithm, seed=seed)
        if algorithm not in VERTICAL:
            keys = owners_config(tmp_path / "owners.npz", algorithm=algorithm, **given, seed=seed)
            keys |= ACTIVE[algorithm]
        rows = play(keys).rows
        return [(row["model_sha256"], row["train_loss"]) for row in rows[1:]]

    assert not set(digests(3)) & set(digests(4))
