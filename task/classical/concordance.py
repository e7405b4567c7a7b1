"""Harrell's c of Cox's regression, from counts of persons by cell of time and bin of the risk score.

Two persons of a stratum are *comparable* if one has the event, and the other is observed for longer, or for
as long and without the event. Such a pair is concordant if who has the event has the larger score,
eta = sum_j (x_j - c_j) beta_j, and tied if the scores are equal:

c = (concordant + tied / 2) / comparable

Harrell, Califf, Pryor, Lee and Rosati 1982. Scores are put in B bins of equal width between -L and L,
L = sum_j |beta_j| h_j, where h_j is half of a column's declared range; scores of one bin count as equal. So c
differs from that of the scores themselves by at most half the share of tied pairs.

Cells are those of `task.classical.cox`: 1 + 2k of the persons with the event in the k-th bin with events, and
2 + 2k of those who left from then on until the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from task.classical.columns import Floats
from task.classical.cox import Cox, Strata, eta_of
from task.classical.survival import MOST_NUMBERS
from task.errors import ConfigError


@dataclass(frozen=True)
class Concordance:
    """Numbers of pairs of persons."""

    concordant: int
    tied: int
    comparable: int

    @property
    def index(self) -> float | None:
        """Harrell's c; None where all pairs are tied, as where one bin is left, or there are none."""
        untied = self.comparable > self.tied
        return (self.concordant + self.tied / 2) / self.comparable if untied else None

    @property
    def error(self) -> float | None:
        """How far c is at most from that of the scores before they were put in bins; None without c."""
        return self.tied / 2 / self.comparable if self.comparable > self.tied else None


def farthest(cox: Cox, beta: Sequence[float]) -> float:
    """Return L, above which no score of declared values is in size."""
    total = 0.0
    for half, b in zip(cox.halves, beta, strict=True):
        total += half * abs(b)
    return total


def score_bins(cox: Cox, centred: Sequence[Floats], beta: Sequence[float]) -> npt.NDArray[np.int64]:
    """Return the bin of each row's score, int64 [rows], 0 to B - 1."""
    most = farthest(cox, beta)
    if not most:
        return np.zeros(len(centred[0]), np.int64)
    place = np.floor((eta_of(centred, beta) + most) / (2.0 * most) * cox.scores)
    return np.clip(place, 0, cox.scores - 1).astype(np.int64)


def ranked(
    cox: Cox, centred: Sequence[Floats], beta: Sequence[float], cell: npt.NDArray[np.int64], many: int
) -> npt.NDArray[np.int64]:
    """Return how many rows each cell has in each bin of the score, int64 [many, B]."""
    found = np.zeros((many, cox.scores), np.int64)
    np.add.at(found, (cell, score_bins(cox, centred, beta)), 1)
    return found


def in_merged(counts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return counts [cells, B] in merged bins, given the last bin that each is merged with.

    >>> in_merged(np.array([[1, 2, 3, 4]]), np.array([1, 1, 2, 3])).tolist()
    [[3, 3, 4]]
    """
    starts = np.concatenate([[0], np.flatnonzero(np.diff(ends)) + 1])
    return np.add.reduceat(counts, starts, axis=1)


def check_scores(cox: Cox, strata: Strata) -> None:
    """Refuse too many counts.

    Raises:
        ConfigError: Naming the largest number of bins.
    """
    if (numbers := strata.many * cox.scores) > MOST_NUMBERS:
        raise ConfigError(
            f'run-config key "survival.concordance": expected at most {MOST_NUMBERS // strata.many} bins of '
            f"the risk score with {strata.many} cells of time; got {cox.scores}, {numbers} counts. Choose "
            "fewer, or a wider survival.step"
        )


def concordance(strata: Strata, counts: npt.NDArray[np.int64]) -> Concordance:
    """Return the pairs of pooled counts [cells, bins of the score in ascending order]."""
    concordant = tied = comparable = 0
    later, stratum = np.zeros(counts.shape[1], np.int64), -1
    for k in reversed(range(len(strata.bins))):
        if strata.stratum[k] != stratum:
            later, stratum = np.zeros_like(later), strata.stratum[k]
        with_event, left = counts[1 + 2 * k], counts[2 + 2 * k]
        later = later + left  # all who are observed for longer, or for as long without the event
        below = np.cumsum(later) - later
        concordant += int(with_event @ below)
        tied += int(with_event @ later)
        comparable += int(with_event.sum()) * int(later.sum())
        later = later + with_event
    return Concordance(concordant, tied, comparable)
