"""Cuts of columns into bins: where a tree may split.

A value is in bin b if b cuts are at most it.

Cut k of B bins, k = 1..B - 1, is the least candidate that ceil(k N / B) of the column's N values are at
most. Those that are no more than the least value's separate nothing and are left out, as are repeats. The
candidates are

quantiles   every float32 in the declared range: the cut is an order statistic, that is, somebody's value
grid        the ends of a declared number of equal steps of the range
ranges      no search: the range is cut into B equal steps

The server finds them by bisection: it sends candidates, and the sites count the values that are at most
these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from task.classical.columns import Variable

Ints = npt.NDArray[np.int64]
Cuts = npt.NDArray[np.float32]  # of one column, ascending
RANGES, GRID, QUANTILES = "ranges", "grid", "quantiles"
MISSING = -1  # the bin of a row without a value
_SIGN = -(2**31)


@dataclass(frozen=True)
class Candidates:
    """The values that a column's cuts may have, by their place from 0 to `last`."""

    variable: Variable
    steps: int  # of the grid; 0 = every float32

    @property
    def last(self) -> int:
        """The place of the last candidate."""
        low, high = _keys(np.array([self.variable.low, self.variable.high], np.float32)).tolist()
        return self.steps or int(high - low)

    def at(self, places: Ints) -> Cuts:
        """Return the candidates at places."""
        v = self.variable
        if self.steps:
            return (v.low + (v.high - v.low) * (places / self.steps)).astype(np.float32)
        key = places + _keys(np.array([v.low], np.float32))
        bits = np.where(key < 0, _SIGN - key, key).astype(np.int32)
        return bits.view(np.float32)

    def has(self, values: Cuts) -> npt.NDArray[np.bool_]:
        """Return which values are candidates."""
        v = self.variable
        if not self.steps:
            within = (values >= np.float32(v.low)) & (values <= np.float32(v.high))
            return np.asarray(within, np.bool_)
        share = (values.astype(np.float64) - v.low) / (v.high - v.low)
        places = np.clip(np.rint(share * self.steps), 0, self.steps)
        return np.asarray(self.at(places.astype(np.int64)) == values, np.bool_)


def _keys(x: Cuts) -> Ints:
    """Return integers in the order of float32 values, next to each other where these are."""
    bits = x.view(np.int32).astype(np.int64)
    return np.where(bits < 0, _SIGN - bits, bits)


def equal_steps(v: Variable, bins: int) -> Cuts:
    """Return the cuts of a range into equal steps.

    >>> equal_steps(Variable("age", "gbdt.columns", 0, 120), 4).tolist()
    [30.0, 60.0, 90.0]
    """
    return np.unique(Candidates(v, bins).at(np.arange(1, bins)))


@dataclass(frozen=True)
class CutSearch:
    """A search for the cuts of columns, each [columns, B]: of the least value, and of cuts 1..B - 1."""

    candidates: tuple[Candidates, ...]
    ranks: Ints
    low: Ints
    high: Ints

    @classmethod
    def begin(cls, candidates: Sequence[Candidates], present: Sequence[int], bins: int) -> CutSearch:
        """Begin one for columns that have so many values; one without any has no cuts."""
        n = np.array(present, np.int64)[:, None]
        ranks = np.maximum(-(-np.arange(bins) * n // bins), 1)
        high = np.broadcast_to(np.array([[c.last] for c in candidates], np.int64), ranks.shape)
        return cls(tuple(candidates), ranks, np.where(n > 0, 0, high), high)

    @property
    def ended(self) -> bool:
        """Whether all are found."""
        return bool((self.low == self.high).all())

    def asked(self) -> npt.NDArray[np.float64]:
        """Return the candidates to count values up to, float64 [candidates, 2]: column and value."""
        found = [
            np.stack([np.full(len(places), j, np.float64), c.at(places).astype(np.float64)], axis=1)
            for j, c in enumerate(self.candidates)
            if len(places := self._middle(j))
        ]
        return np.concatenate(found)

    def _middle(self, column: int) -> Ints:
        low, high = self.low[column], self.high[column]
        return np.unique(((low + high) // 2)[low < high])

    def after(self, counts: Ints) -> CutSearch:
        """Return the search after counts of values, int64 [candidates]."""
        low, high, at = self.low.copy(), self.high.copy(), 0
        for j in range(len(self.candidates)):
            places = self._middle(j)
            middle = (low[j] + high[j]) // 2
            of = counts[at : at + len(places)]
            at += len(places)
            if not len(places):
                continue
            going = low[j] < high[j]
            enough = of[np.minimum(np.searchsorted(places, middle), len(places) - 1)] >= self.ranks[j]
            low[j] = np.where(going & ~enough, middle + 1, low[j])
            high[j] = np.where(going & enough, middle, high[j])
        return CutSearch(self.candidates, self.ranks, low, high)

    def found(self) -> list[Cuts]:
        """Return the cuts of each column."""
        return [
            np.unique(c.at(np.unique(places[1:][places[1:] > places[0]])))
            for c, places in zip(self.candidates, self.high, strict=True)
        ]


def below(cuts: Sequence[Cuts]) -> npt.NDArray[np.float64]:
    """Return, as `CutSearch.asked` does, the largest value below each cut."""
    found = [np.zeros((0, 2))]
    for j, of in enumerate(cuts):
        under = np.nextafter(of, np.float32(-np.inf)).astype(np.float64)
        found.append(np.stack([np.full(len(of), j, np.float64), under], axis=1))
    return np.concatenate(found)


def merged(cuts: Cuts, under: Ints, present: int, least: int) -> Cuts:
    """Return those cuts between which `least` values are, or more; `under` counts the values below each.

    >>> merged(np.array([1, 2, 3, 4], np.float32), np.array([1, 5, 9, 12]), 14, 5).tolist()
    [2.0]
    """
    kept, before = [], 0
    for j, n in enumerate(under.tolist()):
        if n - before >= least and present - n >= least:
            kept.append(j)
            before = n
    return cuts[np.array(kept, np.int64)]


def bins_of(x: npt.NDArray[np.float32], cuts: Cuts) -> npt.NDArray[np.int32]:
    """Return the bin of each value; `MISSING` of NaN.

    >>> bins_of(np.array([0, 1, 1.5, 2, np.nan], np.float32), np.array([1, 2], np.float32)).tolist()
    [0, 1, 1, 2, -1]
    """
    found = np.searchsorted(cuts, x, "right")
    return np.where(np.isnan(x), MISSING, found).astype(np.int32)
