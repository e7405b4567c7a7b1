"""Progress of a sweep on a terminal: a line for each finished run, and a bar if it can be redrawn."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from server_app.results.headline import short
from server_app.run.terminal import Terminal
from server_app.sweep.queue import FAILED, FINISHED, STOPPED, Entry, SweepQueue
from task.resolve.read import read_config
from task.units import human_seconds

if TYPE_CHECKING:
    from server_app.sweep.scheduler import Scheduler


class Shown:
    """Live progress of a sweep; a context manager.

    It has no thread, since the process forks: the bar moves when `looked` is called.
    """

    def __init__(self, queue: SweepQueue) -> None:
        self._queue, self._began = queue, time.monotonic()
        self._console = Terminal(stderr=True)
        self._rounds = {e.name: read_config(e.keys).server.num_server_rounds for e in queue.entries}
        live = (
            self._console.is_terminal and self._console.file.isatty() and not self._console.is_dumb_terminal
        )
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=None), TaskProgressColumn(),
            TimeElapsedColumn(), TimeRemainingColumn(),
            console=self._console, auto_refresh=False, expand=True, redirect_stdout=False,
            redirect_stderr=False,
        ) if live else None  # fmt: skip
        self._task = self._bar.add_task("", total=max(sum(self._rounds.values()), 1)) if self._bar else None

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.stop()

    def looked(self, scheduler: Scheduler) -> None:
        """Move the bar."""
        if self._bar is None or self._task is None:
            return
        over = [e.name for e in self._queue.entries if e.state in (FINISHED, FAILED, STOPPED)]
        running = [entry.name for entry in scheduler.running]
        done = sum(self._rounds[name] for name in over)
        done += sum(max(scheduler.curves[name].last, 0) for name in running)
        words = f"{len(over)}/{len(self._queue.entries)} runs, {len(running)} running"
        self._bar.update(self._task, completed=done, description=words)
        self._bar.refresh()

    def done(self, runs: int) -> None:
        """Print how many runs were done, and how long they took."""
        took = human_seconds(time.monotonic() - self._began)
        self._console.print(f"sweep: {runs} runs in {took}", soft_wrap=True, highlight=False)

    def ended(self, entry: Entry) -> None:
        """Print a line about a run that has ended."""
        over = sum(e.state in (FINISHED, FAILED, STOPPED) for e in self._queue.entries)
        result = (self._queue.run(entry).result() if entry.state == FINISHED else None) or {}
        parts = [f"[{over}/{len(self._queue.entries)}]", entry.name, entry.state]
        parts += [
            f"{key} {short(result[key])}" for key in ("accuracy", "loss") if result.get(key) is not None
        ]
        parts += [f"{result['rounds']} rounds"] if result else [entry.error]
        style = {FAILED: "red", STOPPED: "yellow"}.get(entry.state, "")
        self._console.print(Text("  ".join([*parts, human_seconds(entry.seconds)]), style), soft_wrap=True)
