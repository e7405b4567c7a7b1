"""Scalars out of range, or left out: one client must not steer, end or blank a run by them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strategies import FedAvg
from strategies.engine.journal import Journal
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.entry import COMMON, evaluation_of
from task.catalogue.selections import SELECTIONS, with_selection
from task.errors import FieldError, StateError
from task.wire import checks
from tests.strategies.test_base import COUNTS, model, named_grid
from tests.support.federation import SIZES, Keep, Played, owners_config, play
from tests.support.liar import liar

CONTRACTS = {
    **ALGORITHMS,
    **{f"{n}, {phase}": c for n, a in ALGORITHMS.items() for phase, c in a.phases.items()},
    **{f"{n}, evaluation": evaluation_of(a) for n, a in ALGORITHMS.items()},
    **{s.name: s.query for s in SELECTIONS.values() if s.query},
    **{f"fedavg, {s}": with_selection(ALGORITHMS["fedavg"], s) for s in SELECTIONS},
}


def run(owners: Path, algorithm: str, tamper: Any = None, **keys: Any) -> Played:
    given = {"num_server_rounds": 3, "local_test_fraction": 0.25, **keys}
    return play(owners_config(owners, algorithm=algorithm, **given), nodes=len(SIZES), tamper=tamper)


# --------------------------------------------------------------------------------------- the gate


def test_every_scalar_of_the_catalogue_has_a_range() -> None:
    fields = {f for entry in CONTRACTS.values() if entry for f in (*COMMON, *entry.up_scalars)}
    assert {f.name for f in fields if not (f.low >= 0 and f.high > f.low)} == set()


@pytest.mark.parametrize("name", sorted(CONTRACTS))
def test_the_gate_holds_each_scalar_to_its_range(name: str) -> None:
    entry = CONTRACTS[name]
    assert entry is not None
    right = {f.name: max(f.low, 1) for f in (*COMMON, *entry.up_scalars)}
    checks.check_scalars(entry, right)
    for f in (*COMMON, *entry.up_scalars):
        highest = min(f.high, checks.LARGEST)
        for wrong in (np.nextafter(f.low, -1), -1e30, 1.01 * highest, math.nan, math.inf, "1", True):
            with pytest.raises(FieldError) as caught:
                checks.check_scalars(entry, {**right, f.name: wrong})
            assert caught.value.field == f.name
        checks.check_scalars(entry, {**right, f.name: f.low})
        checks.check_scalars(entry, {**right, f.name: highest})


def test_metrics_that_the_catalogue_does_not_know_have_to_be_finite_only() -> None:
    entry = evaluation_of(ALGORITHMS["fedavg"])
    checks.check_scalars(entry, {"num-examples": 5, "eval_loss": -3.5, "eval_acc": 97.5})
    with pytest.raises(FieldError, match="eval_loss"):
        checks.check_scalars(entry, {"num-examples": 5, "eval_loss": math.inf})


# -------------------------------------------------------------------------- whole runs with a liar

# Ranges that follow from what was asked for and registered; those of the catalogue the gate has.
LIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "rho": ("adaptive-tau", {"rho": -1e6, "beta": 1.0}, {}),
    "step-seconds": ("adaptive-tau", {"step-seconds": 1e30}, {"adaptive_tau__resource": "seconds"}),
    "lipschitz": ("qfedavg", {"lipschitz": 3e38}, {}),
    "step-weight of more steps than were asked for": ("fednova", {"step-weight": 1e6}, {}),
    "num-examples": ("fedavg", {"num-examples": max(SIZES.values()) + 1}, {}),
    "num-examples of a gradient": ("fedsgd", {"num-examples": 10**6}, {}),
    "test-examples": ("fedper", {"test-examples": -40}, {"fraction_evaluate": 1.0}),
    "loss-rms": ("fedavg", {"loss-rms": -1.0}, {"selection": "oort"}),
}


@pytest.mark.parametrize("lie", sorted(LIES))
def test_a_scalar_out_of_range_is_its_senders_own_fault(lie: str, owners: Path) -> None:
    algorithm, scalars, keys = LIES[lie]
    keys = {"model": "mlp", **keys} if ALGORITHMS[algorithm].personal else keys
    played = run(owners, algorithm, liar(scalars=scalars), **keys)
    assert len(played.rows) == 4
    for row in played.rows[1:]:
        (line,) = row["quarantined"]
        assert line["field"] in scalars
        assert "from" in line["expected"]
        assert row["answered"] == len(SIZES) - 1
        assert not row["skipped"]


def test_a_lie_before_the_training_is_found_there(owners: Path) -> None:
    played = run(owners, "fsvrg", liar(scalars={"num-examples": 10**6}, kind="train.gradient"))
    for row in played.rows[1:]:
        assert [line["field"] for line in row["quarantined"]] == ["num-examples"]
        assert row["answered"] == len(SIZES) - 1


def test_a_merged_reply_is_held_to_what_was_registered_too(owners: Path) -> None:
    keys = owners_config(owners, algorithm="fedavg", num_server_rounds=1)
    row = play(keys, nodes=2, tamper=liar(scalars={"num-examples": 10**6})).rows[1]
    assert {line["field"] for line in row["quarantined"]} == {"num-examples"}
    assert 0 < row["answered"] < len(SIZES)


@pytest.mark.parametrize("value", [1e30, 1.5, -1.0])
def test_an_impossible_accuracy_does_not_end_a_run(value: float, owners: Path) -> None:
    tamper = liar(scalars={"accuracy": value}, kind="evaluate")
    played = run(owners, "fedavg", tamper, fraction_evaluate=1.0, target_accuracy=0.999)
    assert len(played.rows) == 4
    for row in played.rows[1:]:
        assert [line["field"] for line in row["quarantined"]] == ["accuracy"]
        assert 0 <= row["client_accuracy"] <= 1


def test_a_client_that_leaves_a_metric_out_does_not_blank_it_for_all(owners: Path) -> None:
    whole = run(owners, "fedavg", fraction_evaluate=1.0, num_server_rounds=1)
    tamper = liar(drop=["accuracy"], kind="evaluate")
    played = run(owners, "fedavg", tamper, fraction_evaluate=1.0, num_server_rounds=1)
    n = len(SIZES)
    assert whole.rows[1]["client_counts"] == {"client_loss": n, "client_accuracy": n}
    row = played.rows[1]
    assert row["client_counts"] == {"client_loss": n, "client_accuracy": n - 1}
    assert row["client_loss"] == whole.rows[1]["client_loss"]
    sent = [c for c in played.keep.clients if c["phase"] == "evaluate" and "accuracy" in c["metrics"]]
    total = sum(c["examples"] for c in sent)
    assert row["client_accuracy"] == pytest.approx(
        sum(c["metrics"]["accuracy"] * c["examples"] for c in sent) / total
    )


def test_a_client_that_leaves_its_training_loss_out_does_not_blank_it(owners: Path) -> None:
    row = run(owners, "fedavg", liar(drop=["train-loss"]), num_server_rounds=1).rows[1]
    assert row["answered"] == len(SIZES)
    assert row["train_loss"] > 0


def test_measured_seconds_of_a_step_are_within_the_round(owners: Path) -> None:
    """A lie below the catalogue's bound does not spend the budget either."""
    keys = {"adaptive_tau__resource": "seconds", "adaptive_tau__budget": 3600.0}
    played = run(owners, "adaptive-tau", liar(scalars={"step-seconds": 9e5}), **keys)
    assert len(played.rows) == 4
    assert all(not row["skipped"] for row in played.rows[1:])


# --------------------------------------------------------------------- what a rule makes of replies


@pytest.mark.parametrize("error", [ValueError, ZeroDivisionError, KeyError, IndexError])
def test_what_a_rule_raises_keeps_the_model_and_the_run(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    update = FedAvg.update

    def breaks(state: Any, reduced: Any, config: Any) -> Any:
        if reduced.round == 2:
            raise error("from the replies")
        return update(state, reduced, config)

    monkeypatch.setattr(FedAvg.rule_type, "update", staticmethod(breaks))
    keep = Keep()
    FedAvg().start(named_grid(2), model(), num_rounds=3, journal=keep)
    assert [row["skipped"] for row in keep.rows[1:]] == [False, True, False]
    assert keep.rows[1]["model_sha256"] == keep.rows[2]["model_sha256"]


@pytest.mark.parametrize("error", [StateError, MemoryError, OSError])
def test_what_this_machine_lacks_ends_the_run(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(state: Any, reduced: Any, config: Any) -> Any:
        raise error("the disk is full")

    monkeypatch.setattr(FedAvg.rule_type, "update", staticmethod(breaks))
    with pytest.raises(error):
        FedAvg().start(named_grid(2), model(), num_rounds=1, journal=Journal())


@pytest.mark.parametrize("hook", ["take_in", "on_round_skipped"])
def test_what_the_other_hooks_of_a_rule_raise_costs_a_round_at_most(
    hook: str, owners: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strategies.rules.fsvrg import FSVRG

    def breaks(self: Any, state: Any, *reduced: Any) -> Any:
        raise ValueError("from the replies")

    monkeypatch.setattr(FSVRG, hook, breaks)
    silent = liar(scalars={"num-examples": -1}, nodes=range(5)) if hook == "on_round_skipped" else None
    played = run(owners, "fsvrg", silent, num_server_rounds=2)
    assert [row["skipped"] for row in played.rows[1:]] == [True, True]
    assert len({row["model_sha256"] for row in played.rows}) == 1


def test_a_selection_that_cannot_learn_from_replies_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from strategies.selection.policies import Uniform

    def breaks(self: Any, pool: Any, scalars: Any) -> None:
        raise ValueError("from the replies")

    monkeypatch.setattr(Uniform, "observe", breaks)
    keep = Keep()
    FedAvg().start(named_grid(2), model(), num_rounds=2, journal=keep)
    assert [row["answered"] for row in keep.rows[1:]] == [len(COUNTS)] * 2
