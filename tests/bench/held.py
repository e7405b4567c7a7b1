"""Runs that are held up after each block of rounds, so that others can take their turn in between.

A block lasts from one gate to the next, and a gate is the moment when a round's line is written. A run that
evaluates a round while it trains the next is timed right by that too: each block has as many trainings as
evaluations in it. Between its blocks all processes of a run are stopped, so that it gets nothing done in
somebody else's time. The first and the last block do not count: the one warms up, and in the other there is
no next round to be trained during the last evaluation.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from tests.bench.data import ROOT
from tests.bench.processes import LIMIT_S, bouquet, end, last_lines, read_rows

FEWEST = 5  # blocks that count


def blocks_for(rounds: int, block: int, quick: bool) -> int:
    """Return the number of blocks in all for so many rounds that count."""
    return 2 + max(1 if quick else FEWEST, math.ceil(rounds / block))


def in_turns(sides: Sequence[Callable[[], float]], blocks: int) -> list[list[float]]:
    """Let the sides run a block each in turns; return the seconds of the blocks that count, by side."""
    seconds = [[side() for side in sides] for _ in range(blocks)]
    return [list(each) for each in zip(*seconds[1:-1], strict=True)]


class Held:
    """A ``bouquet run`` that goes on a block at a time.

    Args:
        folder: Its result folder, not there yet.
        keys: Run-config keys.
        env: Environment.
        block: Rounds in a block.
        blocks: Blocks in all; the number of rounds is their product.
        more: Further words of the command line.
    """

    def __init__(
        self,
        folder: Path,
        keys: Mapping[str, Any],
        env: Mapping[str, str],
        *,
        block: int,
        blocks: int,
        more: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.log = folder.with_suffix(".log")
        self._frozen: list[psutil.Process] = []
        self._hear, theirs_say = os.pipe()
        theirs_hear, self._say = os.pipe()
        words = bouquet(folder, {**keys, "num-server-rounds": block * blocks}, *more)[1:]
        gate = [str(theirs_say), str(theirs_hear), str(block)]
        folder.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.bench.gated", *gate, *words],
                cwd=ROOT, env=dict(env), stdout=sink, stderr=subprocess.STDOUT,
                pass_fds=(theirs_say, theirs_hear),
            )  # fmt: skip
        os.close(theirs_say)
        os.close(theirs_hear)
        self.family = psutil.Process(self.process.pid)

    def __enter__(self) -> Held:
        try:
            self._wait()  # for the gate after round 0
        except BaseException:
            self._leave()
            raise
        return self

    def block(self) -> float:
        """Let it run to its next gate and return the seconds."""
        start = time.perf_counter()
        self._go()
        return self._wait() - start

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The lines of its rounds.jsonl so far."""
        return read_rows(self.folder)

    def _go(self) -> None:
        for process in self._frozen:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            os.write(self._say, b".")

    def _wait(self) -> float:
        """Wait for the gate and stop all processes; return when it was reached."""
        ready, _, _ = select.select([self._hear], [], [], LIMIT_S)
        if not ready or not os.read(self._hear, 1):
            why = "ended before its last round" if ready else f"was silent for {LIMIT_S:g} s"
            raise RuntimeError(f"{self.folder.name} {why}:\n{last_lines(self.log)}")
        reached = time.perf_counter()
        for process in self._frozen:  # the ones known already, at once
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGSTOP)
        self._frozen = [self.family, *self.family.children(recursive=True)]
        for process in self._frozen:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGSTOP)
        return reached

    def _leave(self) -> None:
        for process in self._frozen:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)
        end(self.family, *self._frozen)
        self.process.wait()
        os.close(self._hear)
        os.close(self._say)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._go()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(60)  # it writes its report
        self._leave()
        if kind is None and self.process.returncode != 0:
            code = self.process.returncode
            raise RuntimeError(f"{self.folder.name} ended with {code}:\n{last_lines(self.log)}")


def accuracy(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the last accuracy in `rows`, with its round."""
    known = [row for row in rows if row["accuracy"] is not None]
    return f"{known[-1]['accuracy']:.4f} after {known[-1]['round']} rounds" if known else "unknown"
