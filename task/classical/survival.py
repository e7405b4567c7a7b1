"""What a run declares for an analysis of times to an event, and a site's rows as it sees them.

``survival.time`` has a range and ``survival.step`` a grid on it: bin 0 is the range's start, and bin k holds
the times above start + (k - 1) steps, up to start + k steps. A time counts as the end of its bin. So the
result is exact for the file with these times, which is the file itself where times lie on the grid. A time
above ``survival.until`` counts as that time, without the event.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from task.classical.columns import NamedColumns, Variable, check_once, variable_of, variables_of
from task.config.knobs import Config
from task.errors import ConfigError, DataError, local

MOST_NUMBERS = 2**17  # of one question: bins x groups x strata x 2
MOST_CELLS = 64  # groups, or strata
ON_GRID = 1e-9  # of a step: a time so close above a point of the grid counts as on it
EVENT, LEFT = 0, 1  # what became of a person: the event, or observation ended without it
FATES = 2
KEYS = 'run-config keys "survival.*"'


@dataclass(frozen=True)
class Cases:
    """The rows of a client: a bin, a fate, a stratum and a group each, int64 [rows]."""

    bins: npt.NDArray[np.int64]
    fates: npt.NDArray[np.int64]
    strata: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Survival:
    """The columns of an analysis of times to an event."""

    time: Variable
    step: float
    until: float  # the end of follow-up: a later time counts as this one, without the event
    event: Variable
    happened: float  # the event column's value, or place of the level, that means the event
    groups: tuple[Variable, ...]
    strata: tuple[Variable, ...]

    @property
    def last(self) -> int:
        """J, the number of the last bin."""
        return math.ceil((self.until - self.time.low) / self.step - ON_GRID)

    @property
    def size(self) -> tuple[int, int, int, int]:
        """Strata, groups, bins and fates."""
        return len(self.names(self.strata)), len(self.names(self.groups)), self.last + 1, FATES

    def at(self, place: int) -> float:
        """Return the time of a bin: its end."""
        return self.until if place == self.last else self.time.low + place * self.step

    def names(self, variables: tuple[Variable, ...]) -> list[str]:
        """Return the names of the cells of some columns; ["all"] of none."""
        found = [""]
        for v in variables:
            levels = v.levels or [f"{k:g}" for k in range(int(v.low), int(v.high) + 1)]
            found = [f"{before}{', ' * bool(before)}{v.name}={level}" for before in found for level in levels]
        return found if variables else ["all"]

    def cases(self, table: NamedColumns) -> Cases:
        """Return a client's rows.

        Raises:
            ConfigError: A column is not there, or of another kind.
            DataError: A value does not fit its declaration.
        """
        times, events = table.of(self.time), table.of(self.event)
        if not self.event.levels and not ((events == 0) | (events == 1)).all():
            raise DataError(
                f"column {local(self.event.name)}: expected 1 for the event and 0 without; got others. "
                "Correct the data"
            )
        late = times > self.until
        ends = np.where(late, self.until, times)
        bins = np.ceil((ends - self.time.low) / self.step - ON_GRID).astype(np.int64)
        fates = np.where((events == self.happened) & ~late, EVENT, LEFT)
        return Cases(bins, fates, _cell(table, self.strata), _cell(table, self.groups))

    def ledger_name(self, fate: int) -> str:
        """Return what a node's ledger calls the times of those with the event, or of those without."""
        return f"{self.time.name} {'with' if fate == EVENT else 'without'} {self.event.name}"

    def counts(self, cases: Cases) -> npt.NDArray[np.int64]:
        """Return how many persons there are, [strata, groups, bins, fates]."""
        found = np.zeros(self.size, np.int64)
        np.add.at(found, (cases.strata, cases.groups, cases.bins, cases.fates), 1)
        return found


def _cell(table: NamedColumns, variables: tuple[Variable, ...]) -> npt.NDArray[np.int64]:
    """Return the number of each row's cell."""
    found = np.zeros(table.rows, np.int64)
    for v in variables:
        values = table.of(v)
        if not (values == np.rint(values)).all():
            raise DataError(
                f"column {local(v.name)}: expected whole numbers, as it makes groups or strata; got others. "
                "Correct the data, or choose another column"
            )
        low, many = (0, len(v.levels)) if v.levels else (int(v.low), int(v.high - v.low) + 1)
        found = found * many + (values.astype(np.int64) - low)
    return found


def survival_of(config: Config) -> Survival:
    """Return the analysis that a run asks for.

    Raises:
        ConfigError: Its columns are not declared as they should be.
    """
    keys = config.survival
    time, event = variable_of("survival.time", keys.time), variable_of("survival.event", keys.event)
    if time.levels:
        raise ConfigError(
            f'run-config key "survival.time": expected a range, as in "week(0..52)"; got {keys.time!r}'
        )
    if len(event.levels) > 2 or (not event.levels and (event.low, event.high) != (0, 1)):
        raise ConfigError(
            'run-config key "survival.event": expected a column of 0 and 1, "died(0..1)", or two levels, of '
            f'which the last is the event, "status(alive|dead)"; got {keys.event!r}'
        )
    groups = _cells("survival.groups", keys.groups if "survival.groups" in config.entry.reads else "")
    strata = _cells("survival.strata", keys.strata)
    last_named = keys.event.rpartition("|")[2].strip(" )")
    happened = float(event.levels.index(last_named)) if event.levels else 1.0
    if keys.until and not time.low < keys.until <= time.high:
        raise ConfigError(
            f'run-config key "survival.until": expected a time above {time.low:g} and up to {time.high:g}, '
            f"within the range of survival.time; got {keys.until:g}"
        )
    found = Survival(time, keys.step, keys.until or time.high, event, happened, groups, strata)
    check_once(KEYS, (time, event, *groups, *strata))
    for key, variables in (("survival.groups", groups), ("survival.strata", strata)):
        if (many := len(found.names(variables))) > MOST_CELLS:
            raise ConfigError(f'run-config key "{key}": expected at most {MOST_CELLS} cells; got {many}')
    if (numbers := math.prod(found.size)) > MOST_NUMBERS:
        raise ConfigError(
            f'run-config key "survival.step": expected at most {MOST_NUMBERS} counts, a time range of fewer '
            f"steps; got {numbers}: bins x groups x strata x 2"
        )
    return found


def _cells(key: str, text: str) -> tuple[Variable, ...]:
    variables = variables_of(key, text) if text else ()
    for v in variables:
        if not v.levels and (v.low != int(v.low) or v.high != int(v.high) or v.high - v.low > MOST_CELLS):
            raise ConfigError(
                f'run-config key "{key}": expected levels, "sex(Female|Male)", or a few whole numbers, '
                f'"stage(1..4)"; got {v.name}({v.low:g}..{v.high:g})'
            )
    return variables


ANALYSES = {"survival": survival_of}
