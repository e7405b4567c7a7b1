"""The checks of a run can fail: with one safeguard taken away, the right one does."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message, MetricRecord

from server_app.results import report
from server_app.run import terminal
from strategies import FedAvg
from strategies.engine import rule_round
from strategies.engine.fold import Fold
from task.errors import FieldError
from task.wire import checks
from task.wire import messages as wire
from tests.fuzz.check import violations
from tests.fuzz.runs import Case, Mutate, Player, leave

CASE = Case("fedavg", "plain", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def found(folder: Path, do: Mutate, kind: str = "train") -> str:
    player = Player(folder)
    return "\n".join(violations(player.disturb(CASE, kind, do), player))


def with_error(order: Message, reply: Message, kind: str) -> tuple[Message, str]:
    return Message(Error(2, "\x1b[2J"), reply_to=order), "an error"


def with_markup(order: Message, reply: Message, kind: str) -> tuple[Message, str]:
    return Message(Error(2, "<script>alert(1)</script>"), reply_to=order), "markup"


def with_nan(order: Message, reply: Message, kind: str) -> tuple[Message, str]:
    arrays = wire.read_arrays(reply.content["arrays"])  # type: ignore[arg-type]
    reply.content["arrays"] = wire.pack_arrays({n: a * np.float32(np.nan) for n, a in arrays.items()})
    return reply, "NaN"


def with_accuracy(order: Message, reply: Message, kind: str) -> tuple[Message, str]:
    reply.content["metrics"] = MetricRecord({**reply.content["metrics"], "accuracy": 2.0})  # type: ignore[dict-item]
    return reply, "accuracy"


@pytest.mark.parametrize(("do", "kind"), [(leave, "evaluate"), (with_markup, "train"), (with_nan, "train")])
def test_a_run_that_bears_it_breaks_nothing(do: Mutate, kind: str, folder: Path) -> None:
    assert found(folder, do, kind) == ""


def test_numbers_that_are_let_through(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "check_scalars", lambda *args, **more: None)
    assert "evaluate of round 1: accuracy = 2.0" in found(folder, with_accuracy, "evaluate")


def test_arrays_that_are_let_through(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update = FedAvg.update

    def spoils(state: Any, reduced: Any, config: Any) -> Any:
        state, told = update(state, reduced, config)
        return replace(state, arrays={n: a * np.float32(np.nan) for n, a in state.arrays.items()}), told

    monkeypatch.setattr(FedAvg.rule_type, "update", staticmethod(spoils))
    monkeypatch.setattr(rule_round, "not_finite", lambda state: "")
    assert "round 1: not finite: ['arrays/" in found(folder, leave)


def test_everybody_is_refused_for_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = Fold._checked

    def rejects(self: Fold, reply: Message, clients: Any) -> Any:
        if not self.entry.up:  # evaluations
            raise FieldError("loss", "another", "this one")
        return checked(self, reply, clients)

    monkeypatch.setattr(Fold, "_checked", rejects)
    lines = found(folder, leave)
    assert "round 1: an honest client is refused" in lines
    assert "round 1: client_accuracy = None" in lines


def test_a_reason_that_does_not_print(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "one_line", lambda text, *otherwise: text)
    monkeypatch.setattr(terminal, "plain", str)
    lines = found(folder, with_error)
    assert "a quarantine line has got = " in lines
    assert "printed or logged: " in lines


def test_a_report_that_does_not_escape(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Raw(str):
        def replace(self, *args: Any) -> str:
            return self

    class Encoded(bytes):
        def decode(self, *args: Any) -> Any:
            return Bare(super().decode())

    class Bare(str):
        def strip(self, *args: Any) -> Any:
            return Raw(self)

    as_it_is = report.to_json
    monkeypatch.setattr(report, "to_json", lambda value: Encoded(as_it_is(value)))
    assert "report.html: its data end early: " in found(folder, with_markup)


def test_a_report_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Path) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("server_app.run.finish.write_report", fails)
    assert "report.html is missing" in found(folder, leave)


def test_a_refused_reply_that_moves_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update, times = FedAvg.update, itertools.count()

    def drifts(state: Any, reduced: Any, config: Any) -> Any:
        state, told = update(state, reduced, config)
        step = np.float32(next(times))
        return replace(state, arrays={n: a + step for n, a in state.arrays.items()}), told

    monkeypatch.setattr(FedAvg.rule_type, "update", staticmethod(drifts))
    assert "differs from that without the refused replies" in found(folder, with_nan)
