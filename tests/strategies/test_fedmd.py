"""FedMD against numbers by hand and the reference; the public examples, and who may take part with which."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from client_app.data.node import open_node
from client_app.data.registration import registration_of
from client_app.solvers.fedmd import FedMDSolver, distance
from client_app.training.choice import program_of
from client_app.training.loop import Examples, LocalTask
from server_app.run.public_examples import check_public
from strategies.engine.state import AggregatedReplies, ServerState
from strategies.rules.fedmd import server_update
from task.config.knobs import Config
from task.config.level_sections import FedMDConfig
from task.config.read import as_run_config
from task.config.sections import TrainConfig
from task.datasets.base import compared
from task.datasets.public import CODE, PublicExamples, public_examples, public_rows
from task.datasets.skew import load_partitioned
from task.errors import ConfigError
from task.numerics import seeds
from task.numerics.arrays import Arrays, state_of
from task.resolve.read import read_config
from task.wire.messages import TrainOrder
from tests.reference import fedmd
from tests.support.federation import owners_config, play, write_owners
from tests.support.kept import kept_by
from tests.support.personal import Case, against_reference


def config(folder: Path, **keys: Any) -> dict[str, Any]:
    file = folder / "owners.npz"
    if not file.exists():
        write_owners(file)
    given = {"algorithm": "fedmd", "model": "mlp", "num_server_rounds": 3, "public__examples": 9}
    return owners_config(file, **given | keys)


# ------------------------------------------------------------------------------------------ by hand


def task_of(model: nn.Module, public: torch.Tensor, clients: int = 1, batch_size: int = 0) -> LocalTask:
    program, _ = program_of(model, 8)
    data = Examples(torch.zeros(clients, 2), torch.zeros(clients, dtype=torch.int64), [1] * clients)
    rngs = [np.random.default_rng(0)] * clients
    train = TrainConfig(batch_size=batch_size)
    return LocalTask(
        program, state_of(model), data, [1] * clients, 0.1, train, rngs, public=PublicExamples(public)
    )


def linear() -> nn.Sequential:
    """f(x) = x, for two inputs and two classes."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 2))
    with torch.no_grad():
        model[1].weight.copy_(torch.eye(2))
        model[1].bias.zero_()
    return model


def solver(consensus: Arrays, **knobs: Any) -> FedMDSolver:
    order = TrainOrder(1, {}, clients=("a",), epochs=(0,))
    given = Config(algorithm="fedmd", fedmd=FedMDConfig(**knobs))
    return FedMDSolver(given, {}, {"consensus": consensus}, [{}], order=order)


def table(logits: list[list[float]], clients: int) -> Arrays:
    return {"logits": np.array(logits, np.float32), "clients": np.array([clients])}


def test_the_digest_by_hand() -> None:
    """x = (1, 2) with f~ = (0, 5): signs (+, -), a gradient of +-1/2 x^T; at eta_d = 0.2, W -+ 0.1 x^T."""
    task = task_of(linear(), torch.tensor([[1.0, 2.0]]))
    mine = solver(table([[0, 5]], 1), digest_lr=0.2)
    mine._digest(task, torch.tensor([[0.0, 5.0]]))
    weight, bias = (p[0].tolist() for p in task.params)
    assert weight == [pytest.approx([0.9, -0.2]), pytest.approx([0.1, 1.2])]
    assert bias == pytest.approx([-0.1, 0.1])


def test_a_difference_that_rounding_makes_counts_as_none() -> None:
    logits = torch.tensor([[[1.0, 100.0, 1.0]]], requires_grad=True)
    loss = distance(logits, torch.tensor([[1.0 + 1e-6, 100.0005, 1.1]]))
    loss.sum().backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == [[[0.0, 0.0, pytest.approx(-1 / 3)]]]


def test_what_goes_up_and_the_mean_by_hand() -> None:
    public = torch.tensor([[1.0, 2.0], [3.0, -4.0]])
    task = task_of(linear(), public, clients=2)
    uploads = [u.arrays["logits"] for u, _ in solver(table([[0, 0]] * 2, 0)).finish(task, [{}, {}])]
    assert [u["logits"].tolist() for u in uploads] == [public.tolist()] * 2
    assert [u["clients"].tolist() for u in uploads] == [[1], [1]]
    sums = {"logits": np.array([[4.0, 1.0]], np.float32), "clients": np.array([2])}
    state = ServerState(table([[7, 7]], 5))
    after = server_update(state, AggregatedReplies({"logits": sums}, ("a", "b"), np.ones(2)), Config())[0]
    assert (after.arrays["logits"].tolist(), after.arrays["clients"].tolist()) == ([[2, 0.5]], [2])


# --------------------------------------------------------------------------------------------- runs


CASES: dict[str, dict[str, Any]] = {
    "in a stack": {"num_server_rounds": 4},
    "alone, two passes": {"stack": 1, "fedmd__digest_epochs": 2, "fedmd__digest_lr": 0.5, "nodes": 2},
    "public labels first": {"num_server_rounds": 4, "fedmd__pretrain_epochs": 2},
    "public labels first, alone": {"stack": 1, "fedmd__pretrain_epochs": 1},
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_reference(case: str, tmp_path: Path) -> None:
    def given(made: Case) -> dict[str, Any]:
        keys = read_config(made.keys)
        found = public_examples(keys, load_partitioned(keys)[0])
        public, epochs = found.x.numpy(), keys.fedmd.pretrain_epochs

        def order(t: int, epochs: int = keys.fedmd.digest_epochs) -> list[np.ndarray]:
            rng = seeds.rng_for(keys.seeds.train, seeds.PUBLIC, t)
            passes = [rng.permutation(len(public)) for _ in range(epochs)]
            size = keys.train.batch_size
            return [rows[i : i + size] for rows in passes for i in range(0, len(rows), size)]

        assert (found.y is not None) == (epochs > 0)
        labels = {} if found.y is None else {"labels": found.y.numpy()}
        return {"public": public, "order": order, "first": order(0, epochs), **labels}

    against_reference(tmp_path, fedmd.FedMD, given, **CASES[case], public__examples=9)


def personal(folder: Path, **keys: Any) -> dict[str, Arrays]:
    given = config(folder, state_dir=str(folder / f"{len(list(folder.iterdir()))}"), **keys)
    return kept_by(given, play(given), "personal")


# -------------------------------------------------------------------------------- the public examples


def test_public_rows_are_nobodys(tmp_path: Path) -> None:
    keys = read_config(config(tmp_path, local_test_fraction=0.3))
    node = open_node(keys, {})
    public = public_rows(node.dataset, keys)
    assert len(public) == 9
    _, whole = load_partitioned(keys)
    for k in range(len(node.clients.names)):
        for mine, of_all in ((node.clients.train(k), whole.train(k)), (node.clients.test(k), whole.test(k))):
            assert mine.tolist() == [row for row in of_all.tolist() if row not in public]
    found = node.public()
    assert found is not None
    assert torch.equal(found.x, node.dataset.inputs(public))
    assert check_public(keys, node.dataset) == {CODE: found.sha256}
    assert registration_of(node).code == {CODE: found.sha256, **compared(node.dataset, node.config.data)}


def test_what_public_examples_leave_arrives_as_the_stream_says() -> None:
    keys = {"algorithm": "fedmd", "public.examples": 20, "stream.start": 0.5, "stream.per-round": 0.5}
    node = open_node(read_config(keys), {})
    whole, half = node.clients.num_train(), node.at(1).clients
    assert half.num_train().tolist() == [-(-n // 2) for n in whole]
    assert [len(half.train(k)) for k in range(len(whole))] == half.num_train().tolist()
    assert node.at(2).clients.num_train().tolist() == whole.tolist()
    with pytest.raises(ConfigError, match=r'"drift\.examples": it does not go with public\.data = ""'):
        read_config(keys | {"drift.kind": "labels-rotate", "drift.examples": "new"})


def test_the_hash_is_of_values_order_and_shape() -> None:
    x = torch.arange(6.0).view(3, 2)
    shas = {PublicExamples(v).sha256 for v in (x, x + 1e-7, x.flip(0), x.view(2, 3), x.view(3, 2, 1))}
    assert len(shas) == 5


def test_labels_of_other_classes_are_refused_if_they_are_to_be_learnt(tmp_path: Path) -> None:
    keys = read_config({"algorithm": "fedmd", "public.data": "digits", "public.examples": 9})
    learnt = read_config({**as_run_config(keys), "fedmd.pretrain-epochs": 1})
    dataset = replace(load_partitioned(keys)[0], num_classes=3)
    assert public_examples(keys, dataset).sha256 != public_examples(learnt, load_partitioned(keys)[0]).sha256
    with pytest.raises(
        ConfigError, match=r'"fedmd.pretrain-epochs": expected 0.*10 classes in place of 3; got 1'
    ):
        public_examples(learnt, dataset)


def test_a_node_with_other_public_examples_takes_no_part(tmp_path: Path) -> None:
    from client_app.app import make_app
    from strategies import FedMD
    from task.config.read import as_run_config
    from tests.support.grid import LocalGrid

    keys = read_config(config(tmp_path))
    strategy = FedMD(keys)
    strategy.registry.membership.expect_code({CODE: "0" * 64})
    grid = LocalGrid(make_app(simulation=True), [{}], as_run_config(keys))
    with pytest.raises(ConfigError, match="other public examples: expected those of SHA-256 000000000000"):
        strategy.engine.register(grid, 0)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"public__examples": 63}, r'"public.examples": expected at most 62 of data set "npz"; got 63'),
        ({"public__examples": 62}, '"public.examples": expected so few that each client keeps training'),
        ({"public__data": "digits"}, r'"public.data": expected examples of shape \(4,\).*"digits"'),
        ({"public__data": "csv"}, '"public.data": expected a data set that all parties can have'),
    ],
)
def test_public_examples_that_cannot_be_are_refused(
    keys: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=expected):
        registration_of(open_node(read_config(config(tmp_path, **keys)), {}))


def test_a_named_set_leaves_the_clients_data_alone(tmp_path: Path) -> None:
    keys = {
        "algorithm": "fedmd", "dataset": "digits", "num-clients": 3, "max-examples": 60,
        "public.data": "digits", "public.examples": 20,
    }  # fmt: skip
    node = open_node(read_config(keys), {})
    assert sum(len(node.clients.train(k)) + len(node.clients.test(k)) for k in range(3)) == 60
    public = node.public()
    assert public is not None
    assert public.x.shape == (20, *node.dataset.input_shape)
