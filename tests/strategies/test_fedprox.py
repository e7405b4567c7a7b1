"""FedProx, server side: mu and its adaptation by hand, and the pipeline against the reference."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from strategies import FedProx
from strategies.rules.fedprox import FedProxState, server_update
from task.config.algorithm_sections import FedProxConfig
from task.config.knobs import Config
from tests.reference import fedprox
from tests.support.personal import against_reference
from tests.support.rules import reduced, w

ADAPTIVE = Config(algorithm="fedprox", fedprox=FedProxConfig(adaptive=True))


def test_the_model_is_averaged_as_in_fedavg_and_mu_stays() -> None:
    # (1*2 + 3*6) / 4 = 5; the loss rose from 1 to 9, but mu is not adaptive
    state = FedProxState(w(100), mu=0.3, previous_loss=1.0)
    losses = {"loss-before": [9.0, 9.0]}
    new, metrics = server_update(
        state, reduced("fedprox", {"a": (w(2), 1), "b": (w(6), 3)}, scalars=losses), Config()
    )
    assert new.arrays["w"].tolist() == [5.0]
    assert (new.mu, metrics) == (0.3, {"proximal-mu": 0.3})


def adapt(state: FedProxState, *losses: float) -> list[float]:
    """Return mu after each of these losses of one client."""
    mus = []
    for loss in losses:
        replies = reduced("fedprox", {"a": (w(0), 1)}, scalars={"loss-before": [loss]})
        used = state.mu
        state, metrics = server_update(state, replies, ADAPTIVE)
        assert metrics["proximal-mu"] == used  # the mu of this round, not of the next
        mus.append(state.mu)
    return mus


@pytest.mark.parametrize(
    ("losses", "wanted"),
    [
        # first loss: nothing. Rise: +0.1. Then five that do not rise (the equal one counts): -0.1, and the
        # count starts again: four more falls do nothing, the rise ends them, five falls again: -0.1.
        (
            [3.0, 3.1, 3.0, 2.9, 2.9, 2.8, 2.7, 2.6, 2.5, 2.4, 2.3, 2.4, 2.3, 2.2, 2.1, 2.0, 1.9],
            [0.5, 0.6, 0.6, 0.6, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6, 0.5],
        ),
        ([6, 5, 4, 3, 2, 1], [0.5, 0.5, 0.5, 0.5, 0.5, 0.4]),  # five falls need six losses
        ([6, 5, 4, 3, 2, 2], [0.5, 0.5, 0.5, 0.5, 0.5, 0.4]),  # an equal one also as the fifth
    ],
)
def test_adaptive_mu_by_hand(losses: list[float], wanted: list[float]) -> None:
    assert adapt(FedProxState(w(0), mu=0.5), *losses) == pytest.approx(wanted, abs=1e-12)


def test_adaptive_mu_goes_by_the_loss_of_all_answers_weighted_by_examples() -> None:
    # (1*4 + 3*2) / 4 = 2.5 > 2.4: a rise. The plain mean 3 would be one too, so weight it the other way:
    # (3*2 + 1*4) / 4 = 2.5 against 2.6: no rise, though the plain mean 3 > 2.6.
    replies = {"a": (w(0), 1), "b": (w(0), 3)}
    got = reduced("fedprox", replies, scalars={"loss-before": [4.0, 2.0]})
    state = FedProxState(w(0), mu=0.5, previous_loss=2.4)
    assert server_update(state, got, ADAPTIVE)[0].mu == pytest.approx(0.6)
    assert server_update(replace(state, previous_loss=2.6), got, ADAPTIVE)[0].mu == 0.5
    # where the selection made the clients count alike the loss is 3
    alike = replace(got, weights=np.array([1, 1]))
    assert server_update(replace(state, previous_loss=2.6), alike, ADAPTIVE)[0].mu == pytest.approx(0.6)


def test_a_loss_that_is_missing_does_not_count_and_without_any_nothing_changes() -> None:
    state = FedProxState(w(0), mu=0.5, previous_loss=1.0, falls=4)
    clients = {"a": (w(0), 1), "b": (w(0), 3)}
    none = reduced("fedprox", clients, scalars={"loss-before": [float("nan")] * 2})
    assert server_update(state, none, ADAPTIVE)[0] == state
    one = reduced("fedprox", clients, scalars={"loss-before": [4.0, float("nan")]})
    assert server_update(state, one, ADAPTIVE)[0] == FedProxState(w(0), mu=0.6, previous_loss=4.0)


def test_the_state_begins_with_the_configured_mu() -> None:
    rule = FedProx(Config(algorithm="fedprox", fedprox=FedProxConfig(mu=0.7))).rule
    state = rule.initial_state(w(1), ("w",))
    assert rule.down_scalars(state) == {"proximal-mu": 0.7}


def test_adaptive_mu_rises_and_falls_as_in_the_reference(tmp_path: Path) -> None:
    few = {"fraction_train": 0.4, "local_epochs": 4, "lr_decay": 1.0, "learning_rate": 0.3, "batch_size": 10}
    adaptive = {
        "fedprox__mu": 0.15,
        "fedprox__adaptive": True,
        "fedprox__measure_gamma": True,
        "num_server_rounds": 18,
    }
    alone = {"local_test_fraction": 0.0, "fraction_evaluate": 0.0}
    _, trace = against_reference(tmp_path, fedprox.FedProx, **adaptive, **alone, **few)
    assert len({round(mu, 3) for mu in trace.mu}) > 2
    assert any(b > a for a, b in pairwise(trace.mu))


def test_adaptive_mu_falls_to_0_as_in_the_reference(tmp_path: Path) -> None:
    full = {"fraction_train": 1.0, "local_epochs": 2, "lr_decay": 1.0, "learning_rate": 0.1, "batch_size": 0}
    adaptive = {
        "fedprox__mu": 0.15,
        "fedprox__adaptive": True,
        "fedprox__measure_gamma": True,
        "num_server_rounds": 13,
    }
    _, trace = against_reference(tmp_path, fedprox.FedProx, **adaptive, **full)
    assert min(trace.mu) == 0.0
