"""The queue of ``bouquet reproduce``: runs what the cells need, cell by cell, and records the results.

Every run is a result folder below the runs' folder, named by its keys. One that has its result.json is
finished and is only written down; one that has begun goes on from its checkpoint. A lock for each run lets
several processes work on one table: each takes what no other does.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from server_app.extras.reproduce.plan import Standing, Wanted, enough, standing
from server_app.extras.reproduce.records import SECONDS_AN_HOUR, RunRecord, RunRecords, record_of, results_of
from server_app.extras.reproduce.tables import Cell, PublishedTable
from server_app.results.folder import ROUNDS, RunFolder
from server_app.results.lines import last_rows
from server_app.run.run_lock import is_held
from server_app.sweep.pool import PooledRun, RunPool
from task.datasets import find_files
from task.errors import DataError
from task.references import is_reference
from task.resolve.read import read_config
from task.storage.locks import HeldError, is_locked, locked

LOOK_S = 0.5
CHECKPOINT_S = 60.0  # between two checkpoints of a run, about
CLAIMS = ".claims"
Standings = Sequence[tuple[PublishedTable, Standing]]


@dataclass
class Remaining:
    """What is not done when the queue ends."""

    standings: list[Standing]
    failed: dict[str, str] = field(default_factory=dict)  # by folder, why
    busy: int = 0  # runs that other processes work on
    over_budget: bool = False


@dataclass
class _CellRun:
    table: PublishedTable
    run: Wanted
    claim: ExitStack  # holds the lock of the run


class TableQueue:
    """The cells of some tables and their runs; use it in the main thread, with nothing done in torch."""

    def __init__(
        self,
        cells: Sequence[tuple[PublishedTable, Cell]],
        runs_dir: Path,
        nodes: int,
        *,
        jobs: int = 1,
        gpu: bool = False,
        results: Callable[[Path], Path] = results_of,
        began: Callable[[str, Wanted, bool], object] = lambda table, run, resumed: None,
        looked: Callable[[Sequence[tuple[Wanted, int]]], object] = lambda running: None,
        ended: Callable[[str, Wanted, RunRecord | str], object] = lambda table, run, record: None,
    ) -> None:
        """Prepare.

        Args:
            cells: Those to work on, with their tables.
            runs_dir: Where result folders are.
            nodes: Worker processes of a run; 0 = one for each core.
            jobs: Runs at the same time.
            gpu: Whether a machine with a GPU is at hand for the budget and no longer: quoted cells that
                nobody has measured come first, and what is at work when the budget ends is killed. Its
                checkpoint, a minute old or less, is what the next call goes on from.
            results: From the file of a table to that of its results.
            began: Called with each run that starts, and whether it is a resumed one.
            looked: Called a few times a second with the runs at work and the last round of each.
            ended: Called with each run's record, or why it failed.
        """
        self.cells, self.runs_dir, self.nodes, self.jobs = cells, runs_dir, nodes, jobs
        self._order = _most_wanted_first if gpu else _cheapest_first
        self._cut = gpu
        self._began, self._looked, self._ended = began, looked, ended
        self.records = {table.path: RunRecords(results(table.path)) for table, _ in cells}
        self.failed: dict[str, str] = {}

    def standings(self) -> list[tuple[PublishedTable, Standing]]:
        """Return how far each cell is; those that cannot be run here are left out."""
        for records in self.records.values():
            records.read()
        return [
            (table, standing(cell, self.records[table.path].by_run))
            for table, cell in self.cells
            if not cell.needs
        ]

    def collect(self) -> None:
        """Write down the finished runs that are in their folders and nowhere else."""
        more = True
        while more:
            more = False
            for table, at in self.standings():
                for run in at.wanted:
                    record = None if self._is_taken(run) else self._finished(table, run)
                    if record is not None:
                        more = self._record(table, run, record) or more

    def missing_data(self) -> dict[str, str]:
        """Return why the data set of cells that are not done cannot be found, by its name.

        The cells that need it are left out of the queue from now on.
        """
        self.collect()
        why = dict[str, str]()
        found = set[str]()
        lacking = set[tuple[Path, str]]()
        for table, at in self.standings():
            if at.done:
                continue
            config = read_config(at.wanted[0].keys)
            name = config.data.dataset
            if is_reference(name):  # the user's own code, which only a run's own process imports
                continue
            place = f"{name} {config.data.data_dir} {config.data.data_path}"
            if place not in found and name not in why:
                try:
                    find_files(config.data, config.synthetic, config.seeds.data)
                    found.add(place)
                except DataError as err:
                    why[name] = str(err)
            if place not in found:
                lacking.add((table.path, at.cell.name))
        self.cells = [(table, cell) for table, cell in self.cells if (table.path, cell.name) not in lacking]
        return why

    def work(self, budget_s: float) -> Remaining:
        """Run what fits into the budget; return what is left. Ctrl-C, or any exception, ends what runs."""
        began = time.monotonic()
        pool: RunPool[_CellRun] = RunPool(self.runs_dir, self.nodes)
        try:
            with pool:
                while True:
                    self.collect()
                    found = self.standings()
                    ready = [pair for pair in self._order(found) if pair[1].folder not in self.failed]
                    free = [(table, run) for table, run in ready if not self._is_taken(run)]
                    left = budget_s - (time.monotonic() - began)
                    if self._cut:
                        fit = free if left > 0 else []
                    else:
                        fit = [pair for pair in free if pair[1].hours * SECONDS_AN_HOUR <= left]
                    for table, run in fit[: self.jobs - len(pool.running)]:
                        self._start(pool, table, run)
                    if not (fit or pool.running) or (self._cut and left <= 0):
                        busy = len(ready) - len(free)
                        over = bool(free or pool.running)
                        return Remaining([at for _, at in found], self.failed, busy, over)
                    self._one_has_ended(pool, began + budget_s if self._cut else math.inf)
        finally:
            for pooled in pool.running:
                pooled.of.claim.close()

    def _start(self, pool: RunPool[_CellRun], table: PublishedTable, run: Wanted) -> None:
        """Start one run, unless another process has just taken or finished it."""
        path = self.runs_dir / run.folder
        with ExitStack() as claim:
            if not claim.enter_context(self._claimed(run)) or self._finished(table, run) is not None:
                return
            every = max(1, round(CHECKPOINT_S / run.round_seconds))
            # A run that was killed may be beyond a limit that has fallen since.
            rounds = max(run.rounds, _last_round(path))
            self._began(table.name, run, RunFolder(path).begun())
            keys = {**run.keys, "num-server-rounds": rounds, "checkpoint-every": every}
            pool.start(_CellRun(table, run, claim.pop_all()), run.folder, keys)

    def _one_has_ended(self, pool: RunPool[_CellRun], until: float) -> None:
        """Wait until a run has ended, if there is one, or until a time; record what has."""
        ended: list[tuple[PooledRun[_CellRun], int]] = []
        while pool.running and not ended and time.monotonic() < until:
            ended = pool.ended(LOOK_S)
            at_work = [*pool.running, *(pooled for pooled, _ in ended)]
            self._looked([(each.of.run, _last_round(each.folder.path)) for each in at_work])
        for pooled, code in ended:
            table, run = pooled.of.table, pooled.of.run
            with pooled.of.claim:
                record = self._finished(table, run)
                if code or record is None:
                    self.failed[run.folder] = why = pooled.why_failed(code)
                    self._ended(table.name, run, why)
                else:
                    self._record(table, run, record)

    def _finished(self, table: PublishedTable, run: Wanted) -> RunRecord | None:
        """Return the record of a run whose folder is complete and that was not stopped."""
        folder = RunFolder(self.runs_dir / run.folder)
        result = folder.result()
        if result is None or result.get("stopped"):
            return None
        record = record_of(folder, run.keys, table.name, run.cell.name, run.rate)
        return record if enough(run.cell, record, run.rounds) else None

    def _record(self, table: PublishedTable, run: Wanted, record: RunRecord) -> bool:
        if new := self.records[table.path].add(record):
            self._ended(table.name, run, record)
        return new

    def _is_taken(self, run: Wanted) -> bool:
        return is_locked(self._claim(run)) or is_held(self.runs_dir / run.folder)

    def _claim(self, run: Wanted) -> Path:
        return self.runs_dir / CLAIMS / run.folder

    @contextmanager
    def _claimed(self, run: Wanted) -> Iterator[bool]:
        try:
            with locked(self._claim(run), f"{os.getpid()}\n"):
                yield True
        except HeldError:
            yield False


def _last_round(path: Path) -> int:
    return next((int(row["round"]) for row in last_rows(path / ROUNDS)), 0)


def _cheapest_first(found: Standings) -> Iterator[tuple[PublishedTable, Wanted]]:
    return _runs_by(found, lambda at: (at.hours_left,))


def _most_wanted_first(found: Standings) -> Iterator[tuple[PublishedTable, Wanted]]:
    """Yield runs of cells that the paper quotes, then the others; of each first those without a value."""
    return _runs_by(found, lambda at: (at.cell.published is None, bool(at.by_seed), at.hours_left))


def _runs_by(
    found: Standings, key: Callable[[Standing], tuple[float, ...]]
) -> Iterator[tuple[PublishedTable, Wanted]]:
    seen = set[str]()
    for table, at in sorted(found, key=lambda pair: key(pair[1])):
        for run in at.wanted:
            if run.folder not in seen:
                seen.add(run.folder)
                yield table, run
