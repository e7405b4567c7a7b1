from __future__ import annotations

import io
import logging
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from server_app.run.progress import Bar, Progress, closing_table, progress_of, title_of
from task.config.read import as_run_config
from task.resolve.effective import models_in
from task.resolve.read import read_config


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def plain(width: int = 40) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, width=width), stream


def terminal() -> tuple[Console, Terminal]:
    stream = Terminal()
    env = {"TERM": "xterm"}
    return Console(file=stream, width=80, force_terminal=True, color_system=None, _environ=env), stream


def row(number: int, **more: Any) -> dict[str, Any]:
    base = {"round": number, "loss": 0.3124, "accuracy": 0.914, "asked": 10, "answered": 10}
    return base | {"seconds": {"total": 0.42}, "quarantined": [], "skipped": False} | more


@pytest.mark.parametrize(
    ("keys", "title", "models"),
    [
        ({}, "FedAvg · digits · mlp", "mlp"),
        ({"algorithm": "fedmd", "models.levels": "mlp,2nn"}, "FedMD · digits · mlp, 2nn", "mlp, 2nn"),
        ({"algorithm": "vertical-logistic"}, "Vertical logistic regression · digits", ""),
    ],
)
def test_a_run_is_called_by_the_models_that_it_trains(keys: dict[str, Any], title: str, models: str) -> None:
    config = read_config(keys)
    assert title_of(config) == title
    assert models_in(as_run_config(config)) == models
    assert models_in({"model": "mlp"}) == "mlp"  # of an older run


def test_one_line_a_round_however_narrow_the_console() -> None:
    console, stream = plain(width=20)
    with Progress("auto", 10, "run", console) as progress:
        progress.round_done(row(0, asked=0, answered=0, seconds={"total": 9.0}))
        progress.replies(1, 3, 10)
        progress.round_done(row(1))
        progress.message("a [bold] word")
        progress.round_done(row(2, seconds={"total": 1.0}))
    assert progress.mode == "log"
    assert stream.getvalue().splitlines() == [
        "round  0/10  loss 0.312  accuracy 0.914  9.00 s  left -:--:--",
        # 420 ms a round, nine to go: 3.78 s; the evaluation of round 0 says nothing of it.
        "round  1/10  loss 0.312  accuracy 0.914  clients 10/10  420 ms  left 0:00:04",
        "a [bold] word",
        # mean 0.71 s, eight to go: 5.68 s
        "round  2/10  loss 0.312  accuracy 0.914  clients 10/10  1.00 s  left 0:00:06",
    ]


def test_what_went_wrong_and_what_was_not_measured() -> None:
    console, stream = plain()
    none = {"loss": None, "accuracy": None}
    with Progress("log", 2, "run", console) as progress:
        progress.round_done(row(1, **none, train_loss=0.5, quarantined=[{}], answered=8))
        progress.round_done(row(2, **none, skipped=True, answered=0, seconds={}))
        progress.round_done(row(2, **none, metrics={"pooled-loss": 0.25, "moved": None}))
    assert stream.getvalue().splitlines() == [
        "round 1/2  train loss 0.500  clients  8/10  quarantined 1  420 ms  left 0:00:00",
        "round 2/2  clients  0/10  skipped  left 0:00:00",
        "round 2/2  pooled loss 0.250  clients 10/10  420 ms  left 0:00:00",
    ]


def test_rounds_that_are_but_a_limit_are_no_total() -> None:
    """A table of statistics showed "round 1/100  left 0:00:09" and was done at round 23."""
    config = read_config({"algorithm": "statistics", "dataset": "csv", "statistics.columns": "age(0..120)"})
    assert progress_of(config)._total is None
    assert progress_of(read_config({}))._total == 10
    console, stream = plain()
    none = {"loss": None, "accuracy": None}
    with Progress("log", None, "run", console) as progress:
        progress.round_done(row(1, **none, metrics={"cuts": 4}))
        progress.round_done(row(10, **none, metrics={"cuts": 0}))
    assert stream.getvalue().splitlines() == [
        "round 1  cuts 4.000  clients 10/10  420 ms",
        "round 10  cuts 0.000  clients 10/10  420 ms",
    ]
    console, stream = terminal()
    with Progress("bar", None, "run", console) as progress:
        progress.round_done(row(1, **none))
        assert isinstance(progress.bar, Bar)
        assert not progress.bar.tasks[0].finished
    assert "%" not in stream.getvalue()
    assert "left" not in stream.getvalue()


def test_a_personalised_run_shows_what_its_clients_measured() -> None:
    console, stream = plain()
    told = {"train_loss": 0.5, "client_loss": 0.0625, "client_accuracy": 0.981}
    with Progress("log", 3, "run", console) as progress:
        progress.round_done(row(1, loss=None, accuracy=None, **told))
        progress.round_done(row(2, **told))  # a central accuracy goes first
        progress.round_done(row(3, loss=None, accuracy=None, **told | {"client_loss": float("nan")}))
    end = "clients 10/10  420 ms  left 0:00:0"
    assert stream.getvalue().splitlines() == [
        f"round 1/3  loss 0.062  accuracy 0.981 (clients)  {end}1",
        f"round 2/3  loss 0.312  accuracy 0.914  {end}0",
        f"round 3/3  loss nan  accuracy 0.981 (clients)  {end}0",
    ]


def test_none_is_silent() -> None:
    console, stream = plain()
    with Progress("none", 2, "run", console) as progress:
        progress.round_done(row(1))
        progress.message("text")
    assert stream.getvalue() == ""


@pytest.mark.parametrize(("make", "mode"), [(plain, "log"), (terminal, "bar")])
def test_auto_asks_the_terminal(make: Any, mode: str) -> None:
    assert Progress("auto", 2, "run", make()[0]).mode == mode
    # A build log with FORCE_COLOR is no terminal.
    assert Progress("auto", 2, "run", Console(file=io.StringIO(), force_terminal=True)).mode == "log"


def test_the_bar_shows_round_loss_accuracy_clients_and_time_left() -> None:
    console, stream = terminal()
    now = [100.0]
    with Progress("bar", 4, "fedavg on digits", console, clock=lambda: now[0]) as progress:
        progress.round_done(row(1, seconds={"total": 10.0}))
        progress.replies(2, 5, 10)
        now[0] += 4.0
        still, picture = plain(width=80)
        assert progress.bar is not None
        still.print(progress.bar.get_renderable())
        progress.message("a message")
    top, status = picture.getvalue().splitlines()
    assert top.startswith("fedavg on digits ")
    # One and a half of four rounds; 3 rounds of 10 s are left, of which 4 s have passed.
    assert top.rstrip().endswith("38%  left 0:00:26")
    assert status.rstrip() == "round 2/4  clients 5/10  0:00:04  loss 0.312  accuracy 0.914"
    shown = stream.getvalue()
    assert "a message\n" in shown
    assert shown.endswith("\x1b[?25h")  # the cursor is back


def test_log_handlers_write_above_the_bar_and_get_their_stream_back(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    logger = logging.getLogger("bouquet-test-progress")
    loud, quiet = logging.StreamHandler(out), logging.StreamHandler(err)
    console = Console(width=80, force_terminal=True, color_system=None, _environ={"TERM": "xterm"})
    logger.addHandler(loud)
    logger.addHandler(quiet)
    try:
        with Progress("bar", 2, "run", console) as progress:
            progress.round_done(row(1))
            assert loud.stream is not out
            assert quiet.stream is err  # a redirected stderr stays in its file
            thread = threading.Thread(target=logger.warning, args=("from a thread",))
            thread.start()
            thread.join()
        assert loud.stream is out
    finally:
        logger.removeHandler(loud)
        logger.removeHandler(quiet)
    assert sys.stdout is out
    assert "from a thread\n" in out.getvalue()
    assert err.getvalue() == "from a thread\n"


def test_a_run_of_no_rounds() -> None:
    console, _ = terminal()
    with Progress("bar", 0, "run", console) as progress:
        progress.round_done(row(0, asked=0))


def test_the_closing_table(tmp_path: Path) -> None:
    console, stream = plain(width=60)
    result = {
        "algorithm": "fedavg", "dataset": "digits", "seed": 7, "rounds": 10, "accuracy": 0.91, "loss": 0.3,
        "best_accuracy": 0.92, "best_round": 9, "rounds_to_target": {"0.5": 1.25, "0.99": None},
        "bytes_down": 2_000_000, "bytes_up": 900, "seconds": 4.2, "quarantined": 1, "skipped": 2,
        "clients": {"mean": 0.9, "std": 0.01, "worst_decile": 0.8, "jain": 0.99},
    }  # fmt: skip
    folder = tmp_path / "[red]" / ("long" * 30)
    closing_table(result, folder, console)
    *lines, last = stream.getvalue().splitlines()
    assert last == f"Results: {folder}"
    text = "\n".join(lines)
    for label, value in [
        ("Run", "fedavg, digits, seed 7"),
        ("Rounds", "10 (2 skipped)"),
        ("Accuracy, best", "0.920 (round 9)"),
        ("Rounds to accuracy", "0.5: 1.2\n"),
        ("Sent to clients", "2.0 MB"),
        ("Received from clients", "900 B"),
        ("Time", "4.20 s"),
        ("Quarantined replies", "1"),
        ("Accuracy over clients", "unweighted mean 0.900, std 0.010"),
        ("Worst 10 % of clients", "mean accuracy 0.800"),
    ]:
        assert any(line.startswith(label) and value.strip() in line for line in lines), (label, text)
    assert "0.99:" not in text
    assert "(clients)" not in text


def test_the_closing_table_names_the_nodes_that_a_run_continued_without(tmp_path: Path) -> None:
    why = (
        "is refused: it lacks the numeric column age, which most nodes have, and has an older date of birth."
    )
    out = {"node": "7", "name": "west", "reason": why}
    console, stream = terminal()
    console.width = 60
    closing_table({"left_out": [out, out | {"name": "", "reason": "has not registered"}]}, tmp_path, console)
    text = " ".join(stream.getvalue().split())
    assert f"Left out node west ({why[:-1]}), node 7 (has not registered)" in text


def test_the_closing_table_keeps_numbers_with_their_labels(tmp_path: Path) -> None:
    """In a log file "Rounds to accuracy" ended in "0.97:", its value on a line of its own."""
    reached = {str(t): 10.0 * t for t in (0.5, 0.8, 0.9, 0.95, 0.97, 0.99)}
    console, stream = plain(width=60)
    closing_table({"rounds_to_target": reached}, tmp_path, console)
    assert "0.95: 9.5, 0.97: 9.7, 0.99: 9.9" in stream.getvalue()
    narrow, stream = terminal()
    narrow.width = 60
    closing_table({"rounds_to_target": reached}, tmp_path, narrow)
    lines = stream.getvalue().splitlines()
    assert not any(line.rstrip().endswith(":") for line in lines), lines
    assert all(f"{t}: {v:.1f}" in stream.getvalue() for t, v in reached.items())


def test_the_closing_table_of_a_personalised_run(tmp_path: Path) -> None:
    console, stream = plain(width=80)
    after = {"mean": 0.9, "weighted_mean": 0.95, "std": 0.01}
    result = {"measured_on": "clients", "accuracy": 0.981, "loss": 0.1, "client_accuracy": 0.981}
    closing_table(
        result | {"best_accuracy": 0.99, "best_round": 3, "clients_after": after}, tmp_path, console
    )
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert "Accuracy, final        0.981 (clients, weighted by examples)" in lines
    assert "Accuracy, best         0.990 (round 3)" in lines
    assert "Loss, final            0.100 (clients, weighted by examples)" in lines
    assert "After local training   0.950 weighted by examples, 0.900 unweighted, std 0.010" in lines
    assert not any(line.startswith("Client accuracy") for line in lines)


def test_a_long_round_shows_a_clock_that_starts_again_with_each_round() -> None:
    """A first round of 36 seconds looked as if nothing ran."""
    now = [0.0]
    console, _ = terminal()
    progress = Progress("bar", 3, "run", console, clock=lambda: now[0])
    assert progress.bar

    def line() -> str:
        out = io.StringIO()
        assert isinstance(progress.bar, Bar)
        Console(file=out, width=80).print(list(progress.bar.get_renderables())[1])
        return out.getvalue().strip()

    now[0] = 5.0
    assert line() == "waiting for the first round  0:00:05"
    progress.replies(1, 0, 10)
    now[0] = 36.0
    assert line() == "round 1/3  clients 0/10  0:00:36"
    progress.round_done(row(1))
    now[0] = 38.0
    assert line().startswith("round 1/3  clients 10/10  0:00:02")
