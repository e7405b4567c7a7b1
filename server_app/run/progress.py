"""Progress of a run on a terminal: a live bar or one line per round, and the closing table."""

import logging
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any, Self, TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, ProgressColumn, RenderableColumn, Task
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from server_app.results.headline import headline, short
from server_app.results.summary import MEASURED, measured_on, measures_of, scalars_of
from server_app.run.notebook import NotebookBar, in_notebook
from server_app.run.terminal import Terminal
from task.catalogue.user_algorithm import algorithm_of
from task.config.knobs import Config
from task.config.read import as_run_config
from task.resolve.effective import models_in
from task.units import clock, human_seconds

GLUE = "\N{NO-BREAK SPACE}"

MOST_MEASURES = 2  # in the line of a round


class _TimeLeft(ProgressColumn):
    """The finished share of the run, and the time left."""

    def render(self, task: Task) -> Text:
        """Return both in words; nothing where no number of rounds is known."""
        if task.total is None:
            return Text("")
        ends = task.fields.get("ends")
        left = None if ends is None else max(ends - task.get_time(), 0.0)
        return Text(f"{task.percentage / 100:4.0%}  {_left(left)}")


class Bar(RichProgress):
    """A bar, and below it a line about the running round with a clock; all else scrolls above both.

    The clock starts again with each round: a long one without replies shows that it is at work.
    """

    def __init__(self, title: str, rounds: int | None, console: Console, clock: Callable[[], float]) -> None:
        self._status, self._round = ("waiting for the first round", ""), 0
        self._clock, self._since = clock, clock()
        super().__init__(
            # Not a column of text, which would read markup in the title.
            RenderableColumn(Text(title, "bold"), table_column=Column(no_wrap=True, max_width=30)),
            BarColumn(bar_width=None),
            _TimeLeft(Column(no_wrap=True, justify="right", min_width=18)),
            console=console,
            get_time=clock,
            expand=True,
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),  # a redirected stderr must stay in its file
        )
        self._streams = ExitStack()
        total = None if rounds is None else max(rounds, 1)
        self._task = self.add_task("", total=total, completed=rounds == 0)

    def show(self, done: float, words: str, measured: str = "", **fields: Any) -> None:
        """Show how many rounds are done, words about the running one, and what was last measured, if new."""
        self._status = words, measured or self._status[1]
        if int(done) != self._round:
            self._round, self._since = int(done), self._clock()
        self.update(self._task, completed=done, **fields)

    def start(self) -> None:
        """Start drawing."""
        out, err = sys.stdout, sys.stderr
        super().start()
        # A log handler keeps the stream that it was made with, and would write into the bar.
        for handler in _stream_handlers():
            for old, new in ((out, sys.stdout), (err, sys.stderr)):
                if handler.stream is old is not new:
                    self._streams.callback(handler.setStream, old)
                    handler.setStream(new)
                    break

    def stop(self) -> None:
        """Stop drawing, and restore the streams of the log handlers."""
        super().stop()
        self._streams.close()

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the bar and the line below it."""
        yield self.make_tasks_table(self.tasks)
        words, measured = self._status
        after = ("  " + measured if measured else "", "cyan")
        yield Text.assemble(
            f"{words}  {clock(self._clock() - self._since)}", after, no_wrap=True, overflow="ellipsis"
        )


class Progress:
    """Live progress of a run; a context manager.

    The mode is "bar"; "log" = one line a round; "none" = silence; "auto" = "bar" on a terminal, else "log".
    `total_rounds` is None where nobody knows how many there will be.
    """

    def __init__(
        self,
        mode: str,
        total_rounds: int | None,
        title: str,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Terminal()
        self.bar: Bar | NotebookBar | None = None
        if in_notebook() and mode in ("auto", "bar"):
            mode, self.bar = "bar", NotebookBar(title, total_rounds)
        if mode == "auto":
            # rich takes FORCE_COLOR for a terminal; a build log that sets it still cannot redraw.
            live = self._console.is_terminal and self._console.file.isatty()
            mode = "bar" if live and not self._console.is_dumb_terminal else "log"
        self.mode = mode
        self._total = total_rounds
        self._clock = clock
        self._recent: deque[float] = deque(maxlen=10)  # seconds of the last rounds
        if mode == "bar" and self.bar is None:
            self.bar = Bar(title, total_rounds, self._console, clock)

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar:
            self.bar.stop()

    def replies(self, server_round: int, answered: int, asked: int) -> None:
        """Show how many clients have answered in the running round."""
        if self.bar:
            done = max(server_round - 1, 0) + (answered / asked if asked else 0.0)
            self.bar.show(done, f"{self._round(server_round)}  clients {answered}/{asked}")

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Show a finished round, given by its line of rounds.jsonl."""
        number, seconds = row["round"], (row.get("seconds") or {}).get("total")
        if seconds is not None and number > 0:
            self._recent.append(seconds)
        known = self._recent and self._total is not None
        left = fmean(self._recent) * max((self._total or 0) - number, 0) if known else None
        words, measured, replies = self._round(number), _measured(row), _replies(row)
        if self.bar:
            ends = None if left is None else self._clock() + left
            done = 1 if self._total == 0 else number
            self.bar.show(done, "  ".join([words, *replies]), "  ".join(measured), ends=ends)
        elif self.mode == "log":
            took = [] if seconds is None else [human_seconds(seconds)]
            end = [] if self._total is None else [_left(left)]
            self.message("  ".join([words, *measured, *replies, *took, *end]))

    def message(self, text: str, style: str = "") -> None:
        """Print a line, above the bar if there is one; nothing if the mode is "none"."""
        if self.mode == "none":
            return
        # Soft wrap: a log line is one line however narrow the console that rich assumes.
        self._console.print(Text(text, style), soft_wrap=True)

    def _round(self, number: int) -> str:
        total = self._total
        return f"round {number}" if total is None else f"round {number:>{len(str(total))}}/{total}"


def _stream_handlers() -> Iterator[logging.StreamHandler[TextIO]]:
    loggers = [logging.root, *list(logging.root.manager.loggerDict.values())]
    for logger in loggers:
        for handler in getattr(logger, "handlers", []):  # a placeholder has none
            if isinstance(handler, logging.StreamHandler):
                yield handler


def _measured(row: Mapping[str, Any]) -> list[str]:
    """Return loss, accuracy and the run's own metrics in words, as the headline has them.

    What was not measured is left out; if nothing was, it is the training loss, or what the rule reports.
    """
    on = measured_on([row])
    if on is None:
        if row.get("train_loss") is not None:
            return [f"train loss {short(row['train_loss'])}"]
        said = scalars_of(row.get("metrics") or {})
        return [f"{name.replace('-', ' ')} {short(value)}" for name, value in said.items()][:MOST_MEASURES]
    accuracy, loss = (row.get(key) for key in MEASURED[on])
    parts = [] if loss is None else [f"loss {short(loss)}"]
    if accuracy is not None:
        parts.append(f"accuracy {short(accuracy)}")
    measures = scalars_of(measures_of([row], "client_" if on == "clients" else ""))
    parts += [f"{name} {short(value)}" for name, value in list(measures.items())[:MOST_MEASURES]]
    return [*parts[:-1], parts[-1] + (" (clients)" if on == "clients" else "")]


def _replies(row: Mapping[str, Any]) -> list[str]:
    """Return who answered in words, and what went wrong if anything did."""
    width = len(str(row.get("asked")))
    parts = [f"clients {row['answered']:>{width}}/{row['asked']}"] if row.get("asked") else []
    if row.get("quarantined"):
        parts.append(f"quarantined {len(row['quarantined'])}")
    if row.get("untested"):
        parts.append(f"no test examples {len(row['untested'])}")
    if row.get("epsilon") is not None:
        parts.append(f"epsilon {row['epsilon']:.4g}")
    if row.get("rolled_back") is not None:
        parts.append(f"back to the model of round {row['rolled_back']}")
    return [*parts, "skipped"] if row.get("skipped") else parts


def _left(seconds: float | None) -> str:
    return "left -:--:--" if seconds is None else f"left {clock(seconds)}"


def progress_of(config: Config) -> Progress:
    """Return the progress of a run; its rounds have no total where their number is but a limit."""
    rounds = None if algorithm_of(config.algorithm).ends_itself else config.server.num_server_rounds
    return Progress(config.output.progress, rounds, title_of(config))


def title_of(config: Config) -> str:
    """Return what a run is called above its progress."""
    parts = (algorithm_of(config.algorithm).title, config.data.dataset, models_in(as_run_config(config)))
    return " · ".join(filter(None, parts))


def closing_table(result: Mapping[str, Any], folder: Path, console: Console | None = None) -> None:
    """Print the headline numbers of a finished run and where its results lie; a notebook shows its result."""
    if in_notebook():
        return
    console = console or Terminal()
    rows = headline(result)
    wide = max(len(label) for label, _ in rows) + 2
    room = max(console.width - wide, 20) if console.is_terminal else sys.maxsize  # a log has no width
    for label, text in rows:
        # A list breaks after a comma only, so that no number loses its label.
        long = any(len(part) > room for part in text.split(", "))
        glued = text if long else text.replace(" ", GLUE).replace(f",{GLUE}", ", ")
        lines = textwrap.wrap(glued, room, break_on_hyphens=False)
        for head, line in zip_longest([label], lines, fillvalue=""):
            words = line.replace(GLUE, " ")
            console.print(Text.assemble((head.ljust(wide), "bold"), words), soft_wrap=True)
    if result.get("encrypted"):
        console.print(
            Text("Model: encrypted; with a node's key: bouquet decrypt RUN --kit KIT"), soft_wrap=True
        )
    console.print(Text(f"Results: {Path(folder).absolute()}"), soft_wrap=True)
