"""What a terminal shows of a run: a live bar, or one plain line a round, and the closing table."""

from __future__ import annotations

import dataclasses
import datetime
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from server_app.results.summary import MEASURED, headline, measured_on, short
from server_app.terminal import Terminal


@dataclasses.dataclass(frozen=True)
class _Shown:
    """All that the bar draws; replaced as a whole, because another thread draws."""

    done: float = 0.0  # rounds, with the share of the running one
    status: str = "waiting for the first round"
    last: str = ""  # loss and accuracy of the last round that has them
    round_started: float = 0.0  # clock
    round_s: float | None = None  # mean of the last rounds
    rounds_left: int = 0


class Progress:
    """Live progress of a run; a context manager.

    Args:
        mode: "bar"; "log" = one line a round; "none" = silence; "auto" = "bar" on a terminal, else "log".
        total_rounds: The number of the last round.
        title: What runs, in a few words.
        console: Where to; standard output by default.
        clock: Seconds, for the time left.
    """

    def __init__(
        self,
        mode: str,
        total_rounds: int,
        title: str,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Terminal()
        if mode == "auto":
            # rich takes FORCE_COLOR for a terminal; a build log that sets it still cannot redraw.
            live = self._console.is_terminal and self._console.file.isatty()
            mode = "bar" if live and not self._console.is_dumb_terminal else "log"
        self.mode = mode
        self._total = total_rounds
        self._title = title
        self._clock = clock
        self._recent: deque[float] = deque(maxlen=10)  # seconds of the last rounds
        self._shown = _Shown(round_started=clock(), rounds_left=total_rounds)
        self._live: Live | None = None
        self._moved: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        if self.mode == "bar":
            self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        for handler, stream in self._moved:
            handler.setStream(stream)
        self._moved.clear()

    def _start(self) -> None:
        """Draw the bar from now on, and let everything else that is printed scroll above it."""
        out, err = sys.stdout, sys.stderr
        self._live = Live(
            get_renderable=self._render,
            console=self._console,
            redirect_stdout=out.isatty(),
            redirect_stderr=err.isatty(),  # a redirected stderr must stay in its file
        )
        self._live.start()
        # A log handler keeps the stream that it was made with, and would write into the bar.
        for handler in _stream_handlers():
            for old, new in ((out, sys.stdout), (err, sys.stderr)):
                if handler.stream is old and new is not old:
                    self._moved.append((handler, old))
                    handler.setStream(new)
                    break

    def replies(self, server_round: int, answered: int, asked: int) -> None:
        """Show how many clients have answered in the running round."""
        with self._lock:
            self._shown = dataclasses.replace(
                self._shown,
                done=max(server_round - 1, 0) + (answered / asked if asked else 0.0),
                status=f"{self._round(server_round)}  clients {answered}/{asked}",
            )

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Show a finished round.

        Args:
            row: Its line of rounds.jsonl.
        """
        with self._lock:
            seconds = (row.get("seconds") or {}).get("total")
            if seconds is not None and row["round"] > 0:
                self._recent.append(seconds)
            mean = sum(self._recent) / len(self._recent) if self._recent else None
            left = max(self._total - row["round"], 0)
            self._shown = _Shown(
                done=row["round"],
                status="  ".join([self._round(row["round"]), *_replies(row)]),
                last="  ".join(_measured(row)) or self._shown.last,
                round_started=self._clock(),
                round_s=mean,
                rounds_left=left,
            )
        if self.mode == "log":
            time_left = None if mean is None else mean * left
            took = [] if seconds is None else [f"{seconds:.2f} s"]
            parts = [self._round(row["round"]), *_measured(row), *_replies(row), *took, _left(time_left)]
            self._print("  ".join(parts))

    def message(self, text: str, style: str = "") -> None:
        """Print a line, above the bar if there is one; nothing if the mode is "none".

        Args:
            text: The line.
            style: Its colour on a terminal.
        """
        if self.mode != "none":
            self._print(text, style)

    def _print(self, text: str, style: str = "") -> None:
        # Soft wrap: a log line is one line however narrow the console that rich assumes.
        self._console.print(Text(text, style), soft_wrap=True)

    def _round(self, number: int) -> str:
        return f"round {number}/{self._total}"

    def _render(self) -> Group:
        shown = self._shown
        time_left = None
        if shown.round_s is not None:
            spent = self._clock() - shown.round_started
            time_left = max(shown.round_s * shown.rounds_left - spent, 0.0)
        top = Table.grid(padding=(0, 1), expand=True)
        top.add_column(no_wrap=True, overflow="ellipsis", max_width=30)
        top.add_column(ratio=1)
        top.add_column(no_wrap=True, justify="right", min_width=18)
        share = shown.done / self._total if self._total else 1.0
        bar = ProgressBar(total=max(self._total, 1), completed=shown.done if self._total else 1)
        top.add_row(Text(self._title, style="bold"), bar, f"{share:4.0%}  {_left(time_left)}")
        status = Text(shown.status, no_wrap=True, overflow="ellipsis")
        if shown.last:
            status.append(f"  {shown.last}", style="cyan")
        return Group(top, status)


def _stream_handlers() -> Iterator[logging.StreamHandler[TextIO]]:
    loggers = [logging.root, *list(logging.root.manager.loggerDict.values())]
    for logger in loggers:
        for handler in getattr(logger, "handlers", []):  # a placeholder has none
            if isinstance(handler, logging.StreamHandler):
                yield handler


def _measured(row: Mapping[str, Any]) -> list[str]:
    """Return loss and accuracy in words, as the headline has them; else the training loss."""
    on = measured_on([row])
    if on is None:
        return [] if row.get("train_loss") is None else [f"train loss {short(row['train_loss'])}"]
    accuracy, loss = (row.get(key) for key in MEASURED[on])
    parts = [] if loss is None else [f"loss {short(loss)}"]
    return [*parts, f"accuracy {short(accuracy)}" + (" (clients)" if on == "clients" else "")]


def _replies(row: Mapping[str, Any]) -> list[str]:
    """Return who answered in words, and what went wrong if anything did."""
    parts = [f"clients {row['answered']}/{row['asked']}"] if row.get("asked") else []
    if row.get("quarantined"):
        parts.append(f"quarantined {len(row['quarantined'])}")
    if row.get("rolled_back") is not None:
        parts.append(f"back to the model of round {row['rolled_back']}")
    return [*parts, "skipped"] if row.get("skipped") else parts


def _left(seconds: float | None) -> str:
    return "left -:--:--" if seconds is None else f"left {datetime.timedelta(seconds=round(seconds))}"


def closing_table(result: Mapping[str, Any], folder: Path, console: Console | None = None) -> None:
    """Print the headline numbers of a finished run and where its results lie.

    Args:
        result: As in result.json.
        folder: The result folder.
        console: Where to; standard output by default.
    """
    console = console or Terminal()
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in headline(result):
        table.add_row(label, Text(text))
    console.print(table)
    console.print(Text(f"Results: {Path(folder).absolute()}"), soft_wrap=True)
