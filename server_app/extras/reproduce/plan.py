"""Plan the runs that a cell needs: learning-rate grid on the first seed, then other seeds at the best rate.

The rate is chosen on the first seed alone, and all seeds count in the mean, so that no seed is chosen by its
result. A run of the grid ends once it has done as many rounds as the best one so far needed: it can no longer
be chosen, so the choice is the same as without that limit. ``grid = "walk"`` begins at `start` and goes on to
the neighbours of the best rate until both are worse, which finds the whole grid's best rate if the measure
has one optimum over the rates; ``grid = "full"`` runs all.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from server_app.extras.reproduce.records import SECONDS_AN_HOUR, RunRecord, folder_name, run_id
from server_app.extras.reproduce.tables import FULL, Cell, RunSeed
from task.config.sections import Value
from task.numerics.metrics import mean_and_std

NEIGHBOURS = 2
ROUNDS_OVER = "num-server-rounds"  # in `RunRecord.ended_by`
Runs = Mapping[str, RunRecord]


@dataclass(frozen=True)
class Wanted:
    """A run that a cell needs next."""

    cell: Cell
    rate: float
    seed: RunSeed
    rounds: int  # its limit
    hours: float  # estimate
    round_seconds: float  # as measured in the cell's runs so far, or the table's estimate

    @property
    def keys(self) -> dict[str, Value]:
        """Every key that the run sets."""
        return {**self.cell.keys_of(self.rate, self.seed), "num-server-rounds": self.rounds}

    @property
    def folder(self) -> str:
        """The name of its result folder."""
        return folder_name(self.keys)


@dataclass(frozen=True)
class Standing:
    """Progress of a cell."""

    cell: Cell
    tried: Mapping[float, RunRecord]  # by learning rate, on the first seed
    rate: float | None  # the best of them, once the grid is done
    by_seed: Mapping[RunSeed, RunRecord]  # at that rate
    wanted: tuple[Wanted, ...]  # runs that can start now; none of them needs another one's result
    hours_left: float  # estimate, all further runs

    @property
    def done(self) -> bool:
        """Whether every run of the cell is there."""
        return not self.wanted

    @property
    def values(self) -> list[float]:
        """The measure of each seed that has one."""
        found = [record.values.get(self.cell.measure.name) for record in self.by_seed.values()]
        return [value for value in found if value is not None]

    @property
    def missed(self) -> int:
        """Seeds whose run ended before the target."""
        return len(self.by_seed) - len(self.values)

    @property
    def mean(self) -> float | None:
        """Mean over the seeds; None if there is none, or if a seed missed the target."""
        return mean_and_std(self.values)[0] if self.by_seed and not self.missed else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation over the seeds."""
        return mean_and_std(self.values)[1] if self.mean is not None else None

    @property
    def at_the_edge(self) -> bool:
        """Whether the best rate is the first or last of the grid, so that a better one may lie outside."""
        return self.rate in (self.cell.rates[0], self.cell.rates[-1]) and len(self.cell.rates) > 1

    @property
    def hours(self) -> float:
        """Hours of all its runs, the grid's included."""
        runs = {record.run: record for record in (*self.tried.values(), *self.by_seed.values())}
        return math.fsum(record.hours for record in runs.values())


def standing(cell: Cell, runs: Runs) -> Standing:
    """Return how far a cell is, given all measured runs by `run_id`."""
    first = cell.seeds[0]
    found = {rate: runs.get(run_id(cell.keys_of(rate, first))) for rate in cell.rates}
    known = {rate: record for rate, record in found.items() if record is not None}
    limit = _limit(cell, known.values())
    # A record with a lower limit than today's says nothing about later rounds.
    tried = {rate: record for rate, record in known.items() if enough(cell, record, limit)}
    best = min(tried, key=lambda rate: _rank(cell, tried[rate]), default=None)
    seconds = _round_seconds(cell, known.values())
    rates = _next_rates(cell, tried, best)
    likely = _likely(cell, known.values(), limit)
    if rates:
        wanted = [
            Wanted(cell, rate, first, limit, _hours(cell, limit, likely, seconds), seconds) for rate in rates
        ]
        more = len(cell.seeds) - 1 + (0 if cell.grid == FULL or best is not None else NEIGHBOURS)
        more = min(more, len(cell.rates) - 1 + len(cell.seeds) - 1)
        left = math.fsum(run.hours for run in wanted) + more * _hours(cell, cell.rounds, likely, seconds)
        return Standing(cell, tried, None, {}, tuple(wanted), left)
    assert best is not None
    at = {seed: runs.get(run_id(cell.keys_of(best, seed))) for seed in cell.seeds}
    there = {s: r for s, r in at.items() if r is not None and enough(cell, r, cell.rounds)}
    one = _hours(cell, cell.rounds, likely, seconds)
    wanted = [Wanted(cell, best, seed, cell.rounds, one, seconds) for seed in cell.seeds if seed not in there]
    return Standing(cell, tried, best, there, tuple(wanted), math.fsum(run.hours for run in wanted))


def once_more(cell: Cell, at: Standing) -> Cell:
    """Return a measured cell with its best rate alone, and its runs as the estimate of new ones.

    Its rate must be known: `at` is the standing of the same cell, perhaps with other seeds.
    """
    assert at.rate is not None
    records = [*at.by_seed.values()] or [at.tried[at.rate]]
    # The median, as a run may have waited for others or for the night.
    seconds = [record.round_seconds for record in records if record.on_gpu == cell.on_gpu]
    return replace(
        cell,
        rates=(at.rate,),
        start=at.rate,
        round_seconds=median(seconds) if seconds else cell.round_seconds,
        likely_rounds=math.ceil(sum(record.rounds for record in records) / len(records)),
    )


def _limit(cell: Cell, records: Iterable[RunRecord]) -> int:
    """Return the rounds after which a run of the grid can no longer be the best."""
    reached = [r.values.get("rounds") for r in records] if cell.measure.to_target else []
    least = min([cell.rounds, *(math.ceil(value) for value in reached if value is not None)])
    return max(least, cell.least_rounds)


def _likely(cell: Cell, records: Iterable[RunRecord], limit: int) -> int:
    """Estimate the rounds of a run: those that are known, or of the runs that ended by themselves."""
    if cell.likely_rounds:
        return cell.likely_rounds
    ended = [r.rounds for r in records if r.ended_by not in (None, ROUNDS_OVER)]
    return limit if cell.measure.to_target or not ended else max(ended)


def enough(cell: Cell, record: RunRecord, limit: int) -> bool:
    """Return whether a run reached its target, did all rounds up to the limit, or ended by itself."""
    whole = not cell.measure.to_target or "rounds" in record.values or record.rounds >= limit
    return whole or record.ended_by not in (None, ROUNDS_OVER)


def _rank(cell: Cell, record: RunRecord) -> tuple[float, float]:
    """Return what is smallest for the best run: the measure, and without one the best accuracy."""
    value = record.values.get(cell.measure.name)
    if value is not None:
        return (-value if cell.measure.more_is_better else value), 0.0
    return math.inf, -(record.values.get("best-accuracy") or 0.0)


def _next_rates(cell: Cell, tried: Mapping[float, RunRecord], best: float | None) -> list[float]:
    if best is None:
        return [cell.start]
    if cell.grid == FULL:
        return [rate for rate in cell.rates if rate not in tried]
    at = cell.rates.index(best)
    return [rate for rate in cell.rates[max(at - 1, 0) : at + 2] if rate not in tried]


def _round_seconds(cell: Cell, records: Iterable[RunRecord]) -> float:
    """Return the measured seconds of a round on such a device; before there are any, the estimate."""
    done = [r for r in records if r.rounds and r.on_gpu == cell.on_gpu]
    rounds = sum(r.rounds for r in done)
    return math.fsum(r.hours for r in done) * SECONDS_AN_HOUR / rounds if rounds else cell.round_seconds


def _hours(cell: Cell, limit: int, likely: int, round_seconds: float) -> float:
    """Return the estimated hours of a run: to its likely round, or the paper's, or the limit."""
    rounds = min(limit, likely)
    known = cell.likely_rounds or likely != cell.rounds
    if cell.measure.to_target and not known and cell.published is not None:
        rounds = min(limit, math.ceil(cell.published))
    return rounds * round_seconds / SECONDS_AN_HOUR
