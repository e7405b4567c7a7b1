"""Cox's regression: its columns, and what a site sums up of its rows by cell.

A *cell* is a set of persons that always count together: those with the event in one bin, or those whose
observation ended without it from that bin on until the next with an event. Of each cell go up, over its
persons, with r = exp(eta) and eta = sum_j (x_j - c_j) beta_j,

    sum r;  sum r z_j;  sum r z_i z_j, i <= j, row by row

z_j = (x_j - c_j) s_j is at most 1 in size: c_j is the middle of the declared range (1/2 of 0 and 1) and s_j a
power of two. Cell 0 has those who left before the first event. One more number counts the rows with
|eta| > 20, for which eta counts as 20. All sums are exact (`task.numerics.row_sums`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from task.classical.columns import Floats, NamedColumns, check_once, scale_of, variables_of
from task.classical.design import Design
from task.classical.survival import EVENT, FATES, KEYS, LEFT, Survival, survival_of
from task.config.knobs import Config
from task.errors import ConfigError
from task.numerics.elementary import exp
from task.numerics.row_sums import row_sums

FARTHEST = 20.0  # of |eta|
MOST_COLUMNS = 64
MOST_SUMS = 2**19  # of one question
Cells = npt.NDArray[np.int64]  # [strata, bins, fates]: the cell of a person


@dataclass(frozen=True)
class Cox:
    """A regression of hazards."""

    survival: Survival
    design: Design  # with an intercept, which is not used
    efron: bool
    scores: int = 0  # bins of the risk score for Harrell's c; 0 = it is not asked for

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return self.design.names[1:]

    @property
    def p(self) -> int:
        """How many columns there are."""
        return len(self.names)

    @property
    def triangle(self) -> int:
        """How many numbers a cell has."""
        return (self.p + 1) * (self.p + 2) // 2

    @cached_property
    def centres(self) -> tuple[float, ...]:
        """What is subtracted from each column."""
        found: list[float] = []
        for v in self.design.variables:
            found += [0.5] * (len(v.levels) - 1) if v.levels else [(v.low + v.high) / 2]
        return tuple(found)

    @cached_property
    def scales(self) -> tuple[float, ...]:
        """By what each centred column is multiplied."""
        return tuple(scale_of(half) for half in self.halves)

    @cached_property
    def halves(self) -> tuple[float, ...]:
        """Half the declared range of each column, which no centred value exceeds in size."""
        found: list[float] = []
        for v in self.design.variables:
            found += [0.5] * (len(v.levels) - 1) if v.levels else [(v.high - v.low) / 2]
        return tuple(found)

    def centred(self, table: NamedColumns) -> list[Floats]:
        """Return x_j - c_j of a client's rows; raises what `NamedColumns.of` does."""
        columns = self.design.columns(table)[1:]
        return [x - c for x, c in zip(columns, self.centres, strict=True)]


def cox_of(config: Config) -> Cox:
    """Return the regression that a run asks for.

    Raises:
        ConfigError: Its columns are not declared as they should be.
    """
    keys, survival = config.survival, survival_of(config)
    variables = variables_of("survival.columns", keys.columns)
    design = Design(variables, survival.event)
    check_once(KEYS, (survival.time, survival.event, *survival.strata, *variables))
    found = Cox(survival, design, keys.ties == "efron", keys.concordance)
    if found.p > MOST_COLUMNS:
        raise ConfigError(
            f'run-config key "survival.columns": expected at most {MOST_COLUMNS} columns with the levels; '
            f"got {found.p}"
        )
    return found


@dataclass(frozen=True)
class Strata:
    """The bins with events, stratum after stratum, in ascending order: one pair of cells each, from 1."""

    stratum: list[int]
    bins: list[int]
    events: list[int]
    at_risk: list[int]
    cells: Cells

    @property
    def many(self) -> int:
        """How many cells there are, with that of the persons who left before the first event."""
        return FATES * len(self.bins) + 1


def strata_of(cox: Cox, bins: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> Strata:
    """Return the cells for merged bins [strata, bins, fates] and pooled counts of the same shape.

    Raises:
        ConfigError: There are too many.
    """
    found = Strata([], [], [], [], np.zeros(bins.shape, np.int64))
    for s, of in enumerate(counts):
        at_risk = of.sum(axis=1)[::-1].cumsum()[::-1]
        first, occupied = len(found.bins), np.flatnonzero(of[:, EVENT])
        for j in occupied.tolist():
            found.stratum.append(s)
            found.bins.append(j)
            found.events.append(int(of[j, EVENT]))
            found.at_risk.append(int(at_risk[j]))
        for fate in (EVENT, LEFT):
            place = np.searchsorted(occupied, bins[s, :, fate], side="right") - 1
            found.cells[s, :, fate] = np.where(place < 0, 0, 1 + FATES * (first + place) + fate)
    if (sums := found.many * cox.triangle) > MOST_SUMS:
        raise ConfigError(
            f'run-config key "survival.step": expected at most {MOST_SUMS} sums; got {sums}, {found.many} '
            f"cells of {cox.triangle}. Choose a wider step, or fewer columns"
        )
    return found


def hazards_of(centred: Sequence[Floats], beta: Sequence[float]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return r of each row, and where eta is too far out."""
    eta = eta_of(centred, beta)
    return exp(np.minimum(np.maximum(eta, -FARTHEST), FARTHEST)), np.abs(eta) > FARTHEST


def eta_of(centred: Sequence[Floats], beta: Sequence[float]) -> Floats:
    """Return eta of each row, summed column after column, so that any division of the rows has the same."""
    eta: Floats = np.zeros(len(centred[0]))
    for x, b in zip(centred, beta, strict=True):
        eta = eta + x * b
    return eta


def cell_sums(
    cox: Cox, centred: Sequence[Floats], beta: Sequence[float], cell: npt.NDArray[np.int64], many: int
) -> list[int]:
    """Return a client's sums in units of 2^-51: cell after cell, and how many rows are too far out.

    Raises:
        FieldError: A term does not fit.
    """
    r, far = hazards_of(centred, beta)
    z = [np.ones(len(r)), *(x * s for x, s in zip(centred, cox.scales, strict=True))]
    totals = [[0] * cox.triangle for _ in range(many)]
    order = np.argsort(cell, kind="stable")
    cuts = np.flatnonzero(np.diff(cell[order])) + 1
    for rows in np.split(order, cuts) if len(order) else ():
        part, weight = [column[rows] for column in z], r[rows]
        terms = [part[i] * part[j] * weight for i in range(cox.p + 1) for j in range(i, cox.p + 1)]
        totals[cell[rows[0]]] = row_sums(np.stack(terms, axis=1), "risk-sums")
    (too_far,) = row_sums(far.astype(np.float64)[:, None], "risk-sums")
    return [number for of in totals for number in of] + [too_far]


ANALYSES = {"hazards": cox_of}
