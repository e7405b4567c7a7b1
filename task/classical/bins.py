"""Bins of time that are wide enough for the sites: which of the finest bins are merged, and how sites agree.

A person's time is put in one of the bins 0..J. Halving gives levels of ever finer bins: all in one, halves,
quarters, and at last single bins. A site says of each bin of each level whether it is *closed* there: whether
it, or its other half, has some persons but fewer than the site's bound, or whether what it is a half of is
closed. So a site shows no more of its times than where halving ends. The sum of these bits over the sites is
0 where none objects, and the merged bins are the finest ones without objection. Masked, the bits say how many
sites object and not which.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Bins = npt.NDArray[np.int64]  # the last of the finest bins that each of them is merged with, [J + 1]
Counts = npt.NDArray[np.int64]  # [groups, J + 1]
Least = Sequence[int]  # the fewest persons by group


@cache
def levels(last: int) -> tuple[Bins, ...]:
    """Return by level, coarsest first, the last of the finest bins 0..`last` in each of its bins.

    >>> [ends.tolist() for ends in levels(5)]
    [[5], [3, 5], [2, 3, 4, 5], [1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]
    """
    found = [np.array([last])]
    while len(found[-1]) < last:
        ends = found[-1]
        before = np.concatenate([[0], ends[:-1]])
        found.append(np.unique([*(before + (ends - before + 1) // 2), *ends]))
    return (*found, np.arange(last + 1))


def parents(last: int) -> tuple[npt.NDArray[np.int64], ...]:
    """Return for each level but the first the place of the bin that each of its bins is a part of."""
    found = levels(last)
    return tuple(np.searchsorted(up, down) for up, down in pairwise(found))


def bits(last: int) -> int:
    """Return how many bins all levels but the first have."""
    return sum(len(ends) for ends in levels(last)[1:])


def is_small(counts: Counts, ends: Bins, least: Least) -> npt.NDArray[np.bool_]:
    """Return which bins have some persons of a group, but fewer than its `least`."""
    sums = np.add.reduceat(counts, np.concatenate([[0], ends[:-1] + 1]), axis=1)
    few = (sums > 0) & (sums < np.array(least)[:, None])
    return np.asarray(few.any(axis=0))


def closed(
    counts: Counts, least: Least, barred: npt.NDArray[np.bool_] | None = None
) -> npt.NDArray[np.bool_]:
    """Return which bins of all levels but the first are closed at a site, level by level.

    No bin ends, except with the one that it is a part of, where it is `barred`, bool [J + 1].

    >>> closed(np.array([[0, 9, 2, 7, 8]]), [5]).astype(int).tolist()  # halves 11 and 15; 9 | 2, 7 | 8; 0 | 9
    [0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 0]
    """
    last = counts.shape[1] - 1
    above, found = np.zeros(1, np.bool_), list[npt.NDArray[np.bool_]]()
    for up, ends, parent in zip(levels(last), levels(last)[1:], parents(last), strict=False):
        objects = above.copy()
        small = is_small(counts, ends, least)
        if barred is not None:
            small |= barred[ends] & (ends != up[parent])
        np.logical_or.at(objects, parent, small)
        above = objects[parent]
        found.append(above)
    return np.concatenate(found)


def merged(last: int, objections: Sequence[int]) -> Bins:
    """Return the bins of a sum of `closed` over sites, which is 0 where no site objects.

    >>> merged(4, [0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 0]).tolist()  # 0 to 2, 3, 4
    [2, 2, 2, 3, 4]
    """
    finest = np.full(last + 1, last)
    above, at = np.zeros(1, bool), 0
    for ends, parent in zip(levels(last)[1:], parents(last), strict=True):
        against = np.array([total != 0 for total in objections[at : at + len(ends)]])
        at += len(ends)
        objects = above.copy()
        np.logical_or.at(objects, parent, against)  # a site that closes one half closes the other
        above = objects[parent]
        place = np.searchsorted(ends, np.arange(last + 1))
        finest = np.where(above[place], finest, ends[place])
    return finest


def are_bins(ends: npt.NDArray[np.float64]) -> bool:
    """Return whether numbers are merged bins: each a last one, of itself too, in ascending order."""
    last = len(ends) - 1
    if not (np.isfinite(ends).all() and (ends == np.rint(ends)).all()):
        return False
    if not ((ends >= np.arange(last + 1)).all() and (ends <= last).all() and (np.diff(ends) >= 0).all()):
        return False
    return bool((ends[ends.astype(np.int64)] == ends).all())
