"""FedDF against numbers by hand and the reference: where it is FedAvg, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from client_app.data.node import open_node
from client_app.data.registration import registration_of
from server_app.run.public_examples import distiller
from strategies import FedAvg, FedDF
from strategies.engine.state import ServerState
from task.config.knobs import Config
from task.datasets.base import ROWS
from task.datasets.public import public_examples
from task.datasets.skew import load_partitioned
from task.errors import ConfigError
from task.numerics import seeds
from task.numerics.arrays import Arrays, state_of
from task.resolve.read import read_config
from task.resolve.run_model import levels_of
from task.tasks.distil import Distiller, by_logits
from tests.reference import feddf
from tests.support.federation import Keep, owners_config, play, write_owners
from tests.support.personal import Case, against_reference
from tests.support.rules import context, reduced


def config(folder: Path, **keys: Any) -> dict[str, Any]:
    file = folder / "owners.npz"
    if not file.exists():
        write_owners(file)
    given = {"algorithm": "feddf", "num_server_rounds": 3, "public__examples": 9, "feddf__lr": 0.05}
    made = owners_config(file, **given | {"feddf__steps": 5} | keys)
    return {k: v for k, v in made.items() if k != "model" or "models.levels" not in made}


# ------------------------------------------------------------------------------------------ by hand


def linear() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(2, 2))


def model(weight: list[list[float]], bias: list[float]) -> Arrays:
    return {"1.weight": np.array(weight, np.float32), "1.bias": np.array(bias, np.float32)}


def stacked(*models: Arrays) -> Arrays:
    return {name: np.stack([m[name] for m in models]) for name in models[0]}


def test_a_gradient_by_hand() -> None:
    """Wanted logits (log 3, 0) are p = (3/4, 1/4), and the student says q = (1/2, 1/2).

    By its logits the gradient is q - p = (-1/4, 1/4), half of which counts in the mean over two examples; the
    other example's logits differ by a constant only, and have none.
    """
    logits = torch.zeros((2, 2))
    wanted = torch.tensor([[np.log(3.0), 0.0], [5.0, 5.0]], dtype=torch.float32)
    assert by_logits(logits, wanted).tolist() == [[pytest.approx(-0.125), pytest.approx(0.125)], [0, 0]]


def test_the_gradient_is_the_derivative_of_the_divergence() -> None:
    rng = np.random.default_rng(3)
    z, t = (torch.from_numpy(rng.normal(size=(4, 3, 2))) for _ in range(2))
    z.requires_grad_()
    loss = nn.functional.kl_div(torch.log_softmax(z, 1), torch.softmax(t, 1), reduction="sum") / 8
    loss.backward()
    assert z.grad is not None
    assert torch.allclose(by_logits(z.detach(), t), z.grad)


def test_two_steps_by_hand() -> None:
    """W = 0, x = (1, 2), teachers' logits (log 9, 0) and (0, 0), so p = (3/4, 1/4); eta = 0.1.

    Adam's first step is 0.1 against each gradient's sign.

    Then z = +-(0.1 + 0.2 + 0.1) and the rate has fallen to 0.05; q_1 = 1/(1 + e^-0.8) = 0.689974, so that
    q - p = -+0.060026. With g = 1/4, 0.060026 of what x multiplies: m = 0.1 (0.9/4 + 0.060026) / 0.19 =
    0.150013, v = 0.001 (0.999/16 + 0.003603) / 0.001999 = 0.033037, and the step is 0.05 * 0.825337.
    """
    start, teachers = model([[0, 0], [0, 0]], [0, 0]), [model([[0, 0], [0, 0]], [np.log(9), 0])]
    teachers.append(start)
    distil = Distiller({"": linear()}, torch.tensor([[1.0, 2.0]]))

    def after(steps: int) -> Arrays:
        return distil(start, stacked(*teachers), steps, 0.1, 4, np.random.default_rng(0))[0]

    assert after(1)["1.weight"].tolist() == [pytest.approx([0.1, 0.1]), pytest.approx([-0.1, -0.1])]
    moved = 0.1 + 0.05 * 0.825337
    assert after(2)["1.weight"].tolist() == [
        pytest.approx([moved] * 2, rel=1e-6),
        pytest.approx([-moved] * 2, rel=1e-6),
    ]
    assert after(2)["1.bias"].tolist() == pytest.approx([moved, -moved], rel=1e-6)


def test_equal_teachers_change_nothing_to_the_bit() -> None:
    torch.manual_seed(1)
    made = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.ReLU(), nn.Linear(5, 4))
    start = state_of(made)
    distil = Distiller({"": made}, torch.randn(11, 3))
    for K in (1, 3):
        got, found = distil(start, stacked(*[start] * K), 7, 0.1, 4, np.random.default_rng(0))
        assert list(got) == list(start)
        assert all(np.array_equal(got[n], start[n]) and got[n].dtype == start[n].dtype for n in start)
        assert found == {"kl-before": 0.0, "kl-after": 0.0}


def test_it_comes_nearer_and_neither_buffers_nor_the_given_model_change() -> None:
    torch.manual_seed(1)
    made = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4))
    start, threads = state_of(made), torch.get_num_threads()
    teachers = stacked(*({n: a + a.dtype.type(0.5 * k) for n, a in start.items()} for k in (1, 2)))
    distil = Distiller({"": made}, torch.randn(11, 3))
    got, found = distil(start, teachers, 30, 0.02, 4, np.random.default_rng(0))
    assert found["kl-after"] < found["kl-before"] / 2
    assert all(np.array_equal(got[n], start[n]) for n in start if n.split(".")[-1].startswith(("run", "num")))
    assert all(np.array_equal(a, start[n]) for n, a in state_of(made).items())
    assert torch.get_num_threads() == threads
    again, _ = distil(start, teachers, 30, 0.02, 4, np.random.default_rng(0))
    assert all(np.array_equal(got[n], again[n]) for n in got)


# --------------------------------------------------------------------------------------------- runs

CASES: dict[str, dict[str, Any]] = {
    "short batches, some clients": {"feddf__batch_size": 4, "feddf__steps": 8, "nodes": 2},
    "fewer steps than batches": {"feddf__batch_size": 2, "feddf__steps": 3, "fraction_train": 1.0},
    "two kinds": {"models__levels": "mlp,logistic", "feddf__batch_size": 4, "feddf__steps": 8, "nodes": 2},
    "a kind is away": {"models__levels": "mlp,logistic", "feddf__steps": 8, "seed": 5, "fraction_train": 0.4},
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_it_is_the_reference(case: str, tmp_path: Path) -> None:
    def given(made: Case) -> dict[str, Any]:
        keys = read_config(made.keys)
        public = public_examples(keys, load_partitioned(keys)[0]).x.numpy()
        size = keys.feddf.batch_size

        def order(t: int) -> list[np.ndarray]:
            rows = seeds.rng_for(keys.seeds.train, seeds.PUBLIC, t).permutation(len(public))
            return [rows[i : i + size] for i in range(0, len(rows), size)][: keys.feddf.steps]

        levels = levels_of(keys) if keys.models.levels else None
        kinds = {c: levels.of(c) for c in made.played.names} if levels else {}
        assert len({*kinds.values()}) == (2 if levels else 0)
        return {"public": public, "order": order, "kinds": kinds}

    against_reference(tmp_path, feddf.FedDF, given, **CASES[case], public__examples=9, feddf__lr=0.05)


def models(keys: dict[str, Any], **more: Any) -> list[str]:
    return [row["model_sha256"] for row in play(keys, **more).rows]


def test_kinds_without_steps_are_fedavg_of_each_kind_alone_and_nodes_change_no_byte(tmp_path: Path) -> None:
    """Also after a resume on more nodes: with `fedavg` of the clients of a kind, and nobody else."""
    keys = config(tmp_path, models__levels="mlp,logistic", feddf__steps=0, local_test_fraction=0.3)
    keys["fraction-evaluate"] = 1.0
    whole = play(keys, nodes=1)
    rest = play(keys, journal=Keep(whole.keep.snapshots[1]), nodes=4, seed=4)
    assert [r["model_sha256"] for r in rest.rows] == [r["model_sha256"] for r in whole.rows[2:]]
    assert [r["client_loss"] for r in rest.rows] == [r["client_loss"] for r in whole.rows[2:]]
    levels = levels_of(read_config(keys))
    for kind in levels.values:
        with np.load(tmp_path / "owners.npz") as file:
            rows = np.array([levels.of(str(c)) == kind for c in file["client"]])
            mine = {n: file[n][rows] if len(file[n]) == len(rows) else file[n] for n in file.files}
        assert 0 < rows.sum() < len(rows)
        np.savez(tmp_path / "some.npz", **mine)
        more = {"algorithm": "fedavg", "model": kind, "data-path": str(tmp_path / "some.npz")}
        own = ("feddf.", "public.", "models.")
        alone = play({k: v for k, v in keys.items() if not k.startswith(own)} | more)
        got, want = alone.arrays(3), whole.arrays(3)
        assert all(np.array_equal(a, want[f"{kind}/{n}"]) for n, a in got.items())


def test_clients_neither_train_on_the_public_examples_nor_need_them(tmp_path: Path) -> None:
    keys = read_config(config(tmp_path))
    node = open_node(keys, {})
    assert sum(len(node.clients.train(k)) for k in range(len(node.clients.names))) == 63 - 9
    assert node.public() is None
    assert registration_of(node).code.keys() == {ROWS}


# ------------------------------------------------------------------------------------------ refusals


def test_without_a_distiller_the_rule_says_what_it_lacks() -> None:
    strategy = FedDF()
    stack = model([[0, 0], [0, 0]], [0, 0])
    with pytest.raises(
        ConfigError, match=r'"feddf.steps": expected `strategy\.engine\.distil`.*or 0; got none'
    ):
        next(strategy.rule.round(ServerState(stack), context(strategy)))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"secagg": True}, '"secagg".*needs each client'),
        ({"transcript": "full"}, '"transcript": .*it does not hold public examples'),
        (
            {"models__levels": "mlp,logistic", "width__levels": "1,0.5"},
            '"width.levels".*does not go with algorithm = "feddf"',
        ),
        (
            {"models__levels": "mlp,logistic", "codec__down": "fp16"},
            '"models.levels": expected "" with codec.down = "fp16", as no whole model is sent',
        ),
        (
            {"models__levels": "mlp,logistic", "codec__up": "fp16"},
            '"models.levels": expected "" with codec.up = "fp16", as the combination is untested',
        ),
        (
            {"models__levels": "mlp,logistic", "fraction_heldout": 0.2, "local_test_fraction": 0.3},
            '"models.levels": expected "" with fraction-heldout = 0.2',
        ),
        ({"task": "regression"}, '"task": FedDF distils probabilities of classes'),
    ],
)
def test_what_does_not_go_with_it_is_refused(keys: dict[str, Any], expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=expected):
        read_config(config(tmp_path, **keys))


def test_public_examples_that_cannot_be_are_refused(tmp_path: Path) -> None:
    other = read_config(config(tmp_path, public__data="digits"))
    for shape in ((4,), (8, 8)):
        dataset = load_partitioned(other)[0] if shape == (4,) else None
        with pytest.raises(ConfigError, match=r'"public.data": expected examples of shape'):
            distiller(other, linear(), dataset, (4,))
    none = read_config({"algorithm": "feddf", "dataset": "npz"})
    with pytest.raises(ConfigError, match=r'"public.data": expected a data set that all parties can have'):
        distiller(none, linear(), None, (4,))


def test_the_mean_is_fedavgs_to_the_bit() -> None:
    rng = np.random.default_rng(5)
    sizes = {"a": 3, "b": 7, "c": 2}
    replies = {c: ({"w": rng.normal(size=50).astype(np.float32)}, n) for c, n in sizes.items()}
    one, other = (reduced(name, replies) for name in ("feddf", "fedavg"))
    state = ServerState({"w": np.zeros(50, np.float32)})
    got, want = FedDF.update(state, one, Config())[0], FedAvg.update(state, other, Config())[0]
    assert np.array_equal(got.arrays["w"], want.arrays["w"])
