"""A pool of runs: each is forked from this process, which has imported everything once.

Measured on two cores, MNIST and `2nn`, five rounds: a run forked from here takes 1.55 s of CPU time, the
command `bouquet run` 4.7 s (2.6 s of it for imports). Two runs with a worker process each take 0.8 of the
time of one run after the other with two workers each, since start, evaluation and report keep one core busy.
"""

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from server_app.deploy.host.forks import Forks
from server_app.deploy.host.processes import how_it_ended, how_the_work_ended
from server_app.engines.simulate import simulate
from server_app.results.folder import RunFolder
from task.errors import BouquetError
from task.storage.files import make_folder, private

LOGS = "logs"  # next to the result folders
TAIL_BYTES = 4000

T = TypeVar("T")


@dataclass(eq=False)
class PooledRun(Generic[T]):
    """A run at work."""

    of: T  # what it was started for
    folder: RunFolder
    log: Path  # has what it prints
    began: float = field(default_factory=time.monotonic)

    def why_failed(self, code: int) -> str:
        """Return why it ended without a result: the last line of its log, or its signal."""
        if code < 0:
            return how_the_work_ended(code)
        with self.log.open("rb") as file:
            file.seek(max(self.log.stat().st_size - TAIL_BYTES, 0))
            lines = file.read().decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("error: ") if lines else how_it_ended(code)


class RunPool(Generic[T]):
    """The runs at work, a context manager whose end kills them.

    It must be used in the main thread of a process with no other, which has done nothing in torch.
    """

    def __init__(self, folder: Path, nodes: int) -> None:
        """Prepare; `folder` has the result folders; each run has this number of virtual `nodes`."""
        self.folder, self.nodes = folder, nodes
        self._forks = Forks()
        self._running: dict[int, PooledRun[T]] = {}  # by process id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for pid in self._running:
            self._forks.kill(pid)
        while self._forks.pids:
            self._forks.wait(None)

    @property
    def running(self) -> list[PooledRun[T]]:
        """The runs that were started and that `ended` has not reported."""
        return list(self._running.values())

    def start(self, of: T, name: str, keys: Mapping[str, Any]) -> PooledRun[T]:
        """Start a run, or go on with one whose folder says that it has begun."""
        run = PooledRun(of, RunFolder(self.folder / name), self.folder / LOGS / f"{name}.log")
        make_folder(run.log.parent)
        own = {"run-name": name, "runs-dir": str(self.folder), "progress": "none"}
        keys, nodes = {**keys, **own, "resume": run.folder.begun()}, self.nodes
        self._running[self._forks.fork(lambda: one_run(keys, nodes, run.log))] = run
        return run

    def ended(self, timeout_s: float) -> list[tuple[PooledRun[T], int]]:
        """Return the runs that have ended, with their exit codes; wait for one up to `timeout_s` seconds."""
        return [(self._running.pop(pid), code) for pid, code in self._forks.wait(timeout_s)]

    def kill(self, run: PooledRun[T]) -> None:
        """End a run at once; `ended` says when it has."""
        for pid, at_work in self._running.items():
            if at_work is run:
                self._forks.kill(pid)


def one_run(keys: Mapping[str, Any], nodes: int, log: Path) -> None:
    """Do a run in the forked process; all that it prints goes into its log."""
    with open(log, "ab", opener=private) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        simulate(keys, nodes)
    except (BouquetError, OSError) as err:
        print(f"error: {err}", file=sys.stderr)
        sys.exit(1)
