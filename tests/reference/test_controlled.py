"""The references of SCAFFOLD, FedNova and FedDyn: where they rest, and where they are FedAvg or FedSGD."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference import fedavg, feddyn, fednova, fedsgd, scaffold
from tests.reference.mlp import Data, Params, average, loss_and_gradient, passes, plus, sgd, zero
from tests.reference.test_reference import CLIENTS, W0, pairs, same

RNG = np.random.default_rng(3)
EQUAL: Data = {k: (RNG.normal(size=(8, 3)), RNG.integers(0, 4, 8)) for k in range(3)}
ALL = [[0, 1, 2]] * 5


def whole(t: int, k: int, epoch: int) -> list[np.ndarray]:
    return [np.arange(8)]


def optimum() -> Params:
    """Return the minimum of the mean loss of the three equal clients, found by gradient descent.

    Labels are noise and examples few, so it exists but is not near 0.
    """
    return fedsgd.run(
        EQUAL, {"1.weight": np.zeros((4, 3)), "1.bias": np.zeros(4)}, cohorts=[[0, 1, 2]] * 1500, lr=0.5
    ).w[-1]


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_with_one_step_of_everybody_is_gradient_descent(option: str) -> None:
    one = scaffold.run(EQUAL, W0, cohorts=ALL, lr=0.4, batches=whole, epochs=lambda t, k: 1, option=option)
    other = fedsgd.run(EQUAL, W0, cohorts=ALL, lr=0.4)
    assert all(same(a, b) for a, b in zip(one.w, other.w, strict=True))


def test_the_servers_control_variate_is_the_mean_of_the_clients() -> None:
    cohorts = [[0, 2], [1], [1, 2], [0, 1], [2]]
    trace = scaffold.run(CLIENTS, W0, cohorts=cohorts, lr=0.3, batches=pairs, epochs=lambda t, k: 2)
    for c, own in zip(trace.control, trace.own, strict=True):
        mean = zero(c)
        for c_i in own.values():
            mean = plus(mean, c_i, 1 / 3)
        assert same(c, mean)


def test_scaffold_in_its_first_round_is_fedavg_of_uniform_weights() -> None:
    """All control variates are 0 then."""
    trace = scaffold.run(CLIENTS, W0, cohorts=ALL[:1], lr=0.3, batches=pairs, epochs=lambda t, k: 3)
    local = [sgd(W0, c, passes(pairs, 1, k, 0, 3), 0.3) for k, c in CLIENTS.items()]
    assert same(trace.w[1], average(local, [1, 1, 1]))


def test_scaffold_and_feddyn_rest_at_the_optimum_and_fedavg_does_not() -> None:
    start = optimum()
    common = {"cohorts": [[0, 1, 2]] * 400, "lr": 0.4, "batches": whole}
    # the clients' own optima are elsewhere
    assert np.abs(loss_and_gradient(start, *EQUAL[0])[1]["1.weight"]).max() > 1e-2
    held = scaffold.run(EQUAL, start, epochs=lambda t, k: 4, **common)
    assert same(held.w[-1], start, 1e-6)
    held_too = feddyn.run(EQUAL, start, epochs=lambda t, k: 4, alpha=0.5, **common)
    assert same(held_too.w[-1], start, 1e-6)
    left = fedavg.run(EQUAL, start, epochs=4, **common)
    assert not same(left.w[-1], start, 1e-3)


def test_fednova_with_equal_steps_is_fedavg_and_with_unequal_ones_is_not() -> None:
    common = {"cohorts": ALL[:4], "lr": 0.3}
    one = fednova.run(EQUAL, W0, batches=whole, epochs=lambda t, k: 3, **common)
    other = fedavg.run(EQUAL, W0, batches=whole, epochs=3, **common)
    assert all(same(a, b) for a, b in zip(one.w, other.w, strict=True))
    assert one.tau_eff[1:] == pytest.approx([3.0] * 4)
    uneven = fednova.run(CLIENTS, W0, batches=pairs, epochs=lambda t, k: 3, **common)
    plain = fedavg.run(CLIENTS, W0, batches=pairs, epochs=3, **common)
    assert not same(uneven.w[1], plain.w[1], 1e-3)


def test_the_factors_are_those_of_the_steps() -> None:
    """By hand, three steps: momentum 1/2 gives (1.75, 1.5, 1), the proximal term 0.1 (0.81, 0.9, 1)."""
    assert fednova.factors(3).tolist() == [1, 1, 1]
    assert fednova.factors(3, 0.5).tolist() == [1.75, 1.5, 1]
    assert fednova.factors(3, 0.0, 0.1) == pytest.approx([0.81, 0.9, 1])
