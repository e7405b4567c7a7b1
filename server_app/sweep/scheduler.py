"""Processes a sweep's queue, and ends the runs that fall behind."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from server_app.results.folder import ROUNDS
from server_app.results.lines import read_lines
from server_app.sweep.pool import PooledRun, RunPool
from server_app.sweep.queue import FAILED, FINISHED, RUNNING, STOPPED, WAITING, Entry, SweepQueue
from server_app.sweep.stopping import Curve, verdict
from task.datasets import load_dataset, spec_of
from task.resolve.read import read_config

LOOK_S = 0.25  # between checks of the running runs' rounds


@dataclass
class Followed:
    """A run of the queue, and how far its rounds were read."""

    entry: Entry
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
        key = repr((config.data, config.synthetic, config.seeds.data))
        if entry.state == WAITING and key not in seen:
            seen.add(key)
            load_dataset(config.data, config.synthetic, config.seeds.data)


class Scheduler:
    """Runs a queue's waiting runs, several at a time, see `server_app.sweep.pool.RunPool`."""

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
        self.queue, self.jobs, self.warm_up = queue, jobs, warm_up
        self._ended, self._looked = ended, looked
        self.pool: RunPool[Followed] = RunPool(queue.folder, nodes)
        self.curves: dict[str, Curve] = {}
        for entry in queue.entries:
            if entry.state in (FINISHED, STOPPED):
                rows = queue.run(entry).rounds(unfinished=True)
                last = entry.stopped_at if entry.state == STOPPED else None
                self.curves[entry.name] = curve = Curve(ended=True)
                curve.add([row for row in rows if last is None or row["round"] <= last])

    @property
    def running(self) -> list[Entry]:
        """The entries whose runs are at work."""
        return [run.of.entry for run in self.pool.running]

    def work(self) -> None:
        """Return when no run waits; at an exception, Ctrl-C included, stop the running ones."""
        try:
            with self.pool:
                waiting = [entry for entry in self.queue.entries if entry.state == WAITING]
                while waiting or self.running:
                    while waiting and len(self.running) < self.jobs:
                        self._start(waiting.pop(0))
                    self._looked(self)
                    for run, code in self.pool.ended(LOOK_S):
                        self._over(run, code)
                    for run in self.pool.running:
                        self._follow(run.of)
                    self._stop_hopeless()
                self._looked(self)
        finally:
            for run in self.pool.running:
                run.of.entry.seconds += time.monotonic() - run.began
                run.of.entry.state = WAITING
            self.queue.save()

    def _start(self, entry: Entry) -> None:
        entry.state = RUNNING
        self.queue.save()
        self.curves[entry.name] = Curve()
        self.pool.start(Followed(entry), entry.name, entry.keys)

    def _follow(self, run: Followed) -> None:
        """Read the rounds that a run has finished since the last check."""
        more = True
        while more:
            chunk = read_lines(self.queue.run(run.entry).path / ROUNDS, run.after, run.mark)
            if chunk.restarted:  # a resumed run has truncated to its checkpoint
                self.curves[run.entry.name] = Curve()
            self.curves[run.entry.name].add(chunk.rows)
            run.after, run.mark, more = chunk.after, chunk.mark, chunk.more

    def _stop_hopeless(self) -> None:
        if self.warm_up is None:
            return
        order = [(entry.name, entry.seed) for entry in self.queue.entries if entry.state != FAILED]
        for pooled in self.pool.running:
            run = pooled.of
            why = None if run.stopped else verdict(run.entry.name, order, self.curves, self.warm_up)
            if why is not None and not pooled.folder.finished():
                run.stopped, run.entry.stopped_at, run.entry.error = True, why.round, str(why)
                self.pool.kill(pooled)

    def _over(self, pooled: PooledRun[Followed], code: int) -> None:
        run, entry = pooled.of, pooled.of.entry
        entry.seconds += time.monotonic() - pooled.began
        self._follow(run)
        curve = self.curves[entry.name]
        curve.ended = True
        if pooled.folder.finished():
            entry.state, entry.error, entry.stopped_at = FINISHED, "", None
        elif run.stopped:
            entry.state = STOPPED
            curve.best = {t: best for t, best in curve.best.items() if t <= (entry.stopped_at or 0)}
        else:
            entry.state, entry.error = FAILED, pooled.why_failed(code)
        self.queue.save()
        self._ended(entry)
