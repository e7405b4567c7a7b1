"""FedProto against numbers by hand and the reference, and where it is local training or no FedProto."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from torch import nn

from client_app.data.owner import Owner, check_basis
from client_app.solvers.fedproto import ABSENT, FedProtoSolver, nearest
from client_app.training.choice import program_of
from client_app.training.loop import Examples, LocalTask
from client_app.training.programs import Batch, Single
from strategies import FedProto
from strategies.engine.state import AggregatedReplies, ServerState
from strategies.rules.fedproto import server_update
from task.catalogue.algorithms import ALGORITHMS
from task.config.knobs import Config
from task.config.level_sections import FedProtoConfig
from task.config.sections import TrainConfig
from task.errors import ConfigError, RefusedError
from task.numerics.arrays import Arrays, state_of
from task.numerics.prototypes import COUNTS, FEATURES, no_prototypes
from task.resolve.read import read_config
from task.wire import messages as wire
from tests.support.federation import owners_config, play, write_owners

CONFIG = Config(algorithm="fedproto")


def identity() -> nn.Sequential:
    """A model whose features are its inputs, if these are positive: logits are 0."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 3))
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
        model[1].weight.copy_(torch.eye(2))
    return model


def table(features: list[list[float]], counts: list[int]) -> Arrays:
    return {FEATURES: np.array(features, np.float32), COUNTS: np.array(counts, np.int64)}


def begun(sizes: list[int], x: list[list[float]], y: list[int], prototypes: Arrays, **knobs: Any) -> Any:
    """Return a solver and the task of clients with these examples."""
    config = Config(algorithm="fedproto", fedproto=FedProtoConfig(**knobs))
    model = identity()
    program, _ = program_of(model, 8)
    data = Examples(torch.tensor(x), torch.tensor(y), sizes)
    rngs = [np.random.default_rng(k) for k in range(len(sizes))]
    task = LocalTask(program, state_of(model), data, [1] * len(sizes), 0.1, TrainConfig(), rngs)
    solver = FedProtoSolver(config, {}, {"prototypes": prototypes}, [{}] * len(sizes))
    solver.begin(task)
    return solver, task


# ------------------------------------------------------------------------------------------ by hand

X, Y = [[1.0, 2.0], [3.0, 6.0], [5.0, 0.0], [2.0, 2.0]], [0, 0, 2, 2]
NONE = no_prototypes(3, 2)


@pytest.mark.parametrize(
    ("knobs", "features", "counts"),
    [
        ({}, [[[4, 8], [0, 0], [5, 0]], [[0, 0], [0, 0], [2, 2]]], [[2, 0, 1], [0, 0, 1]]),
        (
            {"weights": "clients"},
            [[[2, 4], [0, 0], [5, 0]], [[0, 0], [0, 0], [2, 2]]],
            [[1, 0, 1], [0, 0, 1]],
        ),
        ({"least": 2}, [[[4, 8], [0, 0], [0, 0]], [[0, 0]] * 3], [[2, 0, 0], [0, 0, 0]]),
    ],
)
def test_two_clients_tables_by_hand(knobs: Any, features: Any, counts: Any) -> None:
    """Nobody has class 1, and the second client has one example of class 2 alone."""
    solver, task = begun([3, 1], X, Y, NONE, **knobs)
    uploads = [upload.arrays["prototypes"] for upload, _ in solver.finish(task, [{}, {}])]
    assert [u[FEATURES].tolist() for u in uploads] == features
    assert [u[COUNTS].tolist() for u in uploads] == counts
    assert all(u[FEATURES].dtype == np.float32 and u[COUNTS].dtype == np.int64 for u in uploads)


def test_the_server_takes_means_of_who_has_the_class_and_keeps_the_rest() -> None:
    sums = table([[4, 8], [0, 0], [7, 2]], [2, 0, 2])  # of the clients above
    state = ServerState(table([[9, 9], [1, 1], [0, 0]], [3, 4, 0]))
    replies = AggregatedReplies({"prototypes": sums}, ("a", "b"), np.array([3, 1]))
    after, told = server_update(state, replies, CONFIG)
    assert after.arrays[FEATURES].tolist() == [[2, 4], [1, 1], [3.5, 1]]
    assert after.arrays[COUNTS].tolist() == [2, 4, 2]
    assert told == {"classes": 3}


def test_a_falsified_count_below_zero_changes_nothing() -> None:
    state = ServerState(table([[9, 9]], [3]))
    replies = AggregatedReplies({"prototypes": table([[5, 5]], [-2])}, ("a",), np.array([1]))
    assert server_update(state, replies, CONFIG)[0].arrays[FEATURES].tolist() == [[9, 9]]


def test_the_term_by_hand() -> None:
    """x = (1, 2): |h - C|^2 / f = (1 + 4) / 2 of C = 0; class 2 has no prototype. CE = log 3 of logits 0."""
    solver, task = begun([2], [X[0], X[2]], [0, 2], table([[0, 0]] * 3, [1, 1, 0]), lambda_=4.0)
    batch = Batch(task.examples.x[None], task.examples.y[None], torch.tensor([0.5]), False)
    loss, gradient = solver.gradient(task, batch)
    assert loss.item() == pytest.approx(np.log(3) + 4.0 * 2.5 / 2)
    # d/dW1 = lambda/b (2/f) (h - C) x^T, and nothing by way of the head, which is 0
    assert gradient.tensors()[0][0].tolist() == [[2.0, 4.0], [4.0, 8.0]]


def test_the_nearest_prototype_by_hand() -> None:
    x = torch.tensor([[1.0, 2.0], [5.0, 5.0]])
    scores = nearest(identity(), table([[1, 1], [4, 5], [0, 0]], [1, 2, 0]), x)
    assert scores[:, :2].tolist() == [[-0.5, -9.0], [-16.0, -0.5]]
    assert scores[:, 2].tolist() == [ABSENT] * 2


def test_the_loss_stays_the_heads_and_without_prototypes_the_head_predicts() -> None:
    from task.tasks.kinds import CLASSIFICATION

    x, y = torch.tensor([[5.0, 5.0], [4.0, 5.0]]), torch.tensor([1, 1])
    for prototypes, right in ((table([[1, 1], [4, 5], [0, 0]], [1, 2, 0]), 1.0), (NONE, 0.0)):
        solver, task = begun([1], [X[0]], [0], prototypes, predict="prototype")
        found, _ = solver.measure(task.program.model, x, y, CLASSIFICATION)
        assert found["accuracy"] == right  # the head's logits are equal: class 0
        assert found["loss"] == pytest.approx(np.log(3))


# --------------------------------------------------------------------------------------------- runs


def config(folder: Path, **keys: Any) -> dict[str, Any]:
    file = folder / "owners.npz"
    if not file.exists():
        write_owners(file)
    given = {"algorithm": "fedproto", "model": "mlp", "num_server_rounds": 3, "fraction_train": 0.6}
    return owners_config(file, **given | keys)


def test_a_model_as_initial_arrays_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"table of features and counts.*got \['1.bias', '1.weight'\]"):
        FedProto().rule.initial_state({"1.weight": np.zeros(1), "1.bias": np.zeros(1)}, ())


def test_a_site_with_a_bound_asks_for_as_many_examples_of_a_class() -> None:
    entry, owner = ALGORITHMS["fedproto"], Owner(False, min_examples=5)
    for least in (4, 5):
        keys = read_config({"algorithm": "fedproto", "model": "mlp", "fedproto.least": least})
        args = owner, keys, keys.train, entry, "anna", 30, 1
        if least == 5:
            check_basis(*args)
            continue
        with pytest.raises(RefusedError, match=r"computed from 4 examples \(.*fedproto.least"):
            check_basis(*args)


def test_single_programs_have_features_too() -> None:
    assert Single(identity()).features([p.unsqueeze(0) for p in identity().parameters()], torch.ones(1, 2, 2))


@pytest.mark.parametrize(("algorithm", "weights"), [("fedproto", "counts"), ("fedmd", "clients")])
@pytest.mark.parametrize("nodes", [5, 2])
@pytest.mark.parametrize("falsified", [-1, 10**6])
def test_a_client_cannot_outweigh_the_others(
    algorithm: str, weights: str, nodes: int, falsified: int, tmp_path: Path
) -> None:
    """Node 0 claims more examples of its classes than it has in all, or fewer than none."""
    record = {"fedproto": "prototypes", "fedmd": "logits"}[algorithm]

    def tamper(node: int, reply: Message) -> Message:
        if node == 0 and reply.metadata.message_type == "train":
            name = next(n for n in (record, f"{record}.high") if n in reply.content.array_records)
            arrays = wire.read_arrays(reply.content.array_records[name])
            reply.content[name] = wire.pack_arrays(
                arrays | {weights: np.full_like(arrays[weights], falsified)}
            )
        return reply

    more = {"public__examples": 9} if algorithm == "fedmd" else {}
    keys = config(tmp_path, algorithm=algorithm, num_server_rounds=1, fraction_train=1.0, **more)
    row = play(keys, nodes=nodes, tamper=tamper).rows[1]
    assert {q["field"] for q in row["quarantined"]} == {f"{record}/{weights}"}
    assert 0 < row["answered"] < 5
