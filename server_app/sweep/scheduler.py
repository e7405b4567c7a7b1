"""Works off a sweep's queue: each run is forked from this process, which has imported everything once.

Measured on two cores, MNIST and `2nn`, five rounds: a run forked from here takes 1.55 s of CPU time, the
command `bouquet run` 4.7 s, of which 2.6 s are imports. Two runs with a worker process each take 0.8 of the
time of one run after the other with two workers each, since start, evaluation and report keep one core busy.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server_app.deploy.host.forks import Forks
from server_app.engines.simulate import simulate
from server_app.results.folder import ROUNDS
from server_app.results.lines import read_lines
from server_app.sweep.queue import FAILED, FINISHED, RUNNING, STOPPED, WAITING, Entry, SweepQueue
from server_app.sweep.stopping import Curve, verdict
from task.datasets import load_dataset, spec_of
from task.errors import BouquetError
from task.resolve.read import read_config
from task.storage.files import make_folder, private

LOOK_S = 0.25  # between looks at the rounds of the running runs
TAIL_BYTES = 4000


@dataclass
class _ForkedRun:
    entry: Entry
    began: float
    after: int = 0  # what was read of rounds.jsonl, see `read_lines`
    mark: str = ""
    stopped: bool = False


def prepare_data(queue: SweepQueue) -> None:
    """Decode every data set of the waiting runs once, before several of them would at the same time.

    Raises:
        BouquetError: A data set is not there or cannot be used.
    """
    seen = set[str]()
    for entry in queue.entries:
        config = read_config(entry.keys)
        if spec_of(config.data.dataset).own and not config.data.data_path:
            continue
        seed = config.seeds.data if config.data.max_examples or config.data.dataset == "synthetic" else 0
        key = repr(
            (config.data.dataset, config.data.data_path, config.data.max_examples, config.synthetic, seed)
        )
        if entry.state == WAITING and key not in seen:
            seen.add(key)
            load_dataset(config.data, config.synthetic, config.seeds.data)


class Scheduler:
    """Runs what waits in a queue, so many at once.

    It must be used in the main thread of a process with no other, which has done nothing in torch.
    """

    def __init__(
        self,
        queue: SweepQueue,
        jobs: int,
        nodes: int,
        *,
        warm_up: int | None = None,
        ended: Callable[[Entry], object] = lambda entry: None,
        looked: Callable[["Scheduler"], object] = lambda scheduler: None,
    ) -> None:
        """Prepare.

        Args:
            queue: What is to be run; it is saved after every change.
            jobs: Runs at the same time.
            nodes: Virtual nodes, that is worker processes, of each.
            warm_up: First round at which the median rule may stop a run; None = it stops none.
            ended: Called with each run that has ended.
            looked: Called a few times a second.
        """
        self.queue, self.jobs, self.nodes, self.warm_up = queue, jobs, nodes, warm_up
        self._ended, self._looked = ended, looked
        self._forks = Forks()
        self.running: dict[int, _ForkedRun] = {}  # by process id
        self.curves: dict[str, Curve] = {}
        for entry in queue.entries:
            if entry.state in (FINISHED, STOPPED):
                rows = queue.run(entry).rounds(unfinished=True)
                last = entry.stopped_at if entry.state == STOPPED else None
                self.curves[entry.name] = curve = Curve(ended=True)
                curve.add([row for row in rows if last is None or row["round"] <= last])

    def work(self) -> None:
        """Return when nothing waits any more; at an exception, Ctrl-C included, end what runs."""
        try:
            waiting = [entry for entry in self.queue.entries if entry.state == WAITING]
            while waiting or self.running:
                while waiting and len(self.running) < self.jobs:
                    self._start(waiting.pop(0))
                self._looked(self)
                for pid, code in self._forks.wait(LOOK_S):
                    self._over(self.running.pop(pid), code)
                for run in self.running.values():
                    self._follow(run)
                self._stop_hopeless()
            self._looked(self)
        finally:
            for pid in self.running:
                self._forks.kill(pid)
            while self._forks.pids:
                self._forks.wait(LOOK_S)
            for run in self.running.values():
                run.entry.seconds += time.monotonic() - run.began
                run.entry.state = WAITING
            self.queue.save()

    def _start(self, entry: Entry) -> None:
        keys = {
            **entry.keys,
            "run-name": entry.name,
            "runs-dir": str(self.queue.folder),
            "progress": "none",
            "resume": self.queue.run(entry).begun(),
        }
        log, nodes = self.queue.log(entry), self.nodes
        make_folder(log.parent)
        entry.state = RUNNING
        self.queue.save()
        self.curves[entry.name] = Curve()
        pid = self._forks.fork(lambda: one_run(keys, nodes, log))
        self.running[pid] = _ForkedRun(entry, time.monotonic())

    def _follow(self, run: _ForkedRun) -> None:
        """Read the rounds that a run has finished since the last look."""
        more = True
        while more:
            chunk = read_lines(self.queue.run(run.entry).path / ROUNDS, run.after, run.mark)
            if chunk.restarted:  # a resumed run has cut what came after its checkpoint
                self.curves[run.entry.name] = Curve()
            self.curves[run.entry.name].add(chunk.rows)
            run.after, run.mark, more = chunk.after, chunk.mark, chunk.more

    def _stop_hopeless(self) -> None:
        if self.warm_up is None:
            return
        order = [(entry.name, entry.seed) for entry in self.queue.entries if entry.state != FAILED]
        for pid, run in self.running.items():
            why = None if run.stopped else verdict(run.entry.name, order, self.curves, self.warm_up)
            if why is not None and not self.queue.run(run.entry).finished():
                run.stopped, run.entry.stopped_at, run.entry.error = True, why.round, str(why)
                self._forks.kill(pid)

    def _over(self, run: _ForkedRun, code: int) -> None:
        entry = run.entry
        entry.seconds += time.monotonic() - run.began
        self._follow(run)
        curve = self.curves[entry.name]
        curve.ended = True
        if self.queue.run(entry).finished():
            entry.state, entry.error, entry.stopped_at = FINISHED, "", None
        elif run.stopped:
            entry.state = STOPPED
            curve.best = {t: best for t, best in curve.best.items() if t <= (entry.stopped_at or 0)}
        else:
            entry.state, entry.error = FAILED, why_failed(code, self.queue.log(entry))
        self.queue.save()
        self._ended(entry)


def one_run(keys: dict[str, Any], nodes: int, log: Path) -> None:
    """Run one point in the forked process; all that it prints goes into its log."""
    with open(log, "ab", opener=private) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        simulate(keys, nodes)
    except (BouquetError, OSError) as err:
        print(f"error: {err}", file=sys.stderr)
        sys.exit(1)


def why_failed(code: int, log: Path) -> str:
    """Return why a run ended without a result: the last line of its log, or its signal."""
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - TAIL_BYTES, 0))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("error: ") if lines else f"ended with exit code {code}"
