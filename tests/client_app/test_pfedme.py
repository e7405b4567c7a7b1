"""pFedMe, both halves, against its slow reference and by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from client_app.solvers.pfedme import PFedMeSolver
from client_app.training.loop import Examples, LocalTask, train
from client_app.training.programs import Dense, Single
from strategies.engine.state import AggregatedReplies, ServerState
from strategies.rules.pfedme import server_update
from task.config.knobs import Config
from task.config.personal_sections import PFedMeConfig
from task.config.sections import TrainConfig
from tests.support.models import Noisy, OneNumber, blobs, sigmoid, task_on

# ------------------------------------------------------------------------------------------- the client


def solver_of(lam: float, steps: int, inner_lr: float, K: int = 1) -> PFedMeSolver:
    knobs = PFedMeConfig(lambda_=lam, steps=steps, inner_lr=inner_lr)
    return PFedMeSolver(Config(pfedme=knobs), {}, {}, [{}] * K)


def test_two_batches_by_hand() -> None:
    """One example x = 2 of class 1: f'(w) = -2 sigmoid(-2w). K = 2, then w; theta goes on in batch 2."""
    lam, i, eta = 3.0, 0.1, 0.05
    task = task_on(OneNumber(0.5), torch.tensor([2.0]), torch.tensor([1]), epochs=2, lr=eta)
    solver = solver_of(lam, 2, i)
    solver.begin(task)
    (stats,) = train(task, solver)
    w = theta = 0.5
    losses = []
    for _ in range(2):
        losses.append(math.log1p(math.exp(-2 * theta)))
        for _ in range(2):
            theta -= i * (-2 * sigmoid(-2 * theta) + lam * (theta - w))
        w -= eta * lam * (w - theta)
    ((upload, keep),) = solver.finish(task, [stats])
    assert upload.arrays["arrays"]["w"].tolist() == pytest.approx([w], rel=1e-6)
    assert keep["personal"]["w"].tolist() == pytest.approx([theta], rel=1e-6)
    assert theta - w > 0.05
    assert stats["train-loss"] == pytest.approx(sum(losses) / 2)
    assert solver.own_models(task)[0]["w"].tolist() == keep["personal"]["w"].tolist()


class Quadratic:
    """f(theta) = a/2 |theta - c|^2 of one tensor."""

    def __init__(self, a: float, c: torch.Tensor) -> None:
        self.a, self.c = a, c

    def gradient(self, params: list[torch.Tensor], batch: Any) -> tuple[torch.Tensor, Dense]:
        away = params[0] - self.c
        return self.a / 2 * away.square().sum(1), Dense([self.a * away])


@pytest.mark.parametrize("steps", [1, 4, 60])
def test_theta_goes_to_the_proximal_point_of_a_quadratic(steps: int) -> None:
    """theta* = (a c + lambda w) / (a + lambda), and each step leaves 1 - i (a + lambda) of the way."""
    a, lam, i = 2.0, 3.0, 0.05
    w, c, theta = (torch.tensor([v], dtype=torch.float64) for v in ([1.0, -2.0], [4.0, 0.0], [0.0, 5.0]))
    task: Any = SimpleNamespace(program=Quadratic(a, c), params=[w], memory={"theta": [theta.clone()]})
    loss, gradient = solver_of(lam, steps, i).gradient(task, None)  # type: ignore[arg-type]
    nearest = (a * c + lam * w) / (a + lam)
    got = task.memory["theta"][0]
    torch.testing.assert_close(got - nearest, (1 - i * (a + lam)) ** steps * (theta - nearest))
    torch.testing.assert_close(gradient.tensors()[0], lam * (w - got))
    assert loss.tolist() == [a / 2 * (16 + 25)]  # before the steps
    if steps == 60:  # then a step of w is one along the gradient of the envelope
        torch.testing.assert_close(gradient.tensors()[0], a * (nearest - c), rtol=1e-5, atol=1e-5)


def test_running_statistics_follow_theta_go_up_and_are_kept() -> None:
    x, y = blobs(12)
    task = task_on(Noisy(), x, y, epochs=2, batch_size=6, lr=0.1)
    received = {n: a.copy() for n, a in task.received.items()}
    solver = solver_of(2.0, 3, 0.1)
    solver.begin(task)
    ((upload, keep),) = solver.finish(task, train(task, solver))
    up, own = upload.arrays["arrays"], keep["personal"]
    assert own["norm.num_batches_tracked"] == up["norm.num_batches_tracked"] == 2 * 2 * 3
    for n in ("norm.running_mean", "norm.running_var"):
        assert np.array_equal(own[n], up[n])
        assert not np.array_equal(own[n], received[n])
    assert not np.array_equal(own["out.weight"], up["out.weight"])
    assert np.array_equal(own["frozen.weight"], received["frozen.weight"])
    # the client's own model is that, whole, when it comes back
    back = PFedMeSolver(Config(), {}, {}, [{"personal": own}])
    task = LocalTask(
        Single(Noisy()), received, Examples(x, y, [12]), [1], 0.1, TrainConfig(), [np.random.default_rng(1)]
    )
    back.personalise(task)
    assert all(np.array_equal(a, own[n]) for n, a in task.states()[0].items())
    solver_of(2.0, 3, 0.1).personalise(task)
    assert all(np.array_equal(a, received[n]) for n, a in task.states()[0].items())


def test_the_next_round_begins_with_theta_at_the_received_model() -> None:
    """Whatever was kept."""
    found = []
    for kept in ({}, {"personal": {"w": np.array([9.0], np.float32)}}):
        task = task_on(OneNumber(0.5), torch.tensor([2.0]), torch.tensor([1]))
        solver = PFedMeSolver(Config(), {}, {}, [kept])
        solver.begin(task)
        train(task, solver)
        found.append(solver.own_models(task)[0]["w"].tolist())
    assert found[0] == found[1]


# ------------------------------------------------------------------------------------------- the server


@pytest.mark.parametrize(("beta", "want"), [(1.0, [3.0, 8.0]), (0.25, [1.5, 3.5]), (2.0, [5.0, 14.0])])
def test_the_server_steps_with_beta_and_averages_buffers(beta: float, want: list[float]) -> None:
    state = ServerState({"w": np.array([1, 2], np.float32), "norm.count": np.array(7)})
    mean = {"w": np.array([3, 8], np.float32), "norm.count": np.array(9)}
    reduced = AggregatedReplies({"arrays": mean}, ("a", "b"), np.array([1, 99]), trainable=("w",))
    new, metrics = server_update(state, reduced, Config(pfedme=PFedMeConfig(beta=beta)))
    assert new.arrays["w"].tolist() == want
    assert new.arrays["w"].dtype == np.float32
    assert new.arrays["norm.count"] == 9
    assert metrics == {}


def test_beta_1_is_the_mean_to_the_last_bit() -> None:
    rng = np.random.default_rng(1)
    w, mean = ({"w": rng.normal(size=1000).astype(np.float32)} for _ in range(2))
    reduced = AggregatedReplies({"arrays": mean}, ("a",), np.array([1]), trainable=("w",))
    new, _ = server_update(ServerState(w), reduced, Config())
    assert np.array_equal(new.arrays["w"], mean["w"])
