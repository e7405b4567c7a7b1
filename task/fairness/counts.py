"""What a client counts of each group, on its test data, and which of it its owner lets go.

The row of a group has integers in three layers. Each layer is complete in itself and has a flag, 1 = open, so
that the sum of many clients' rows is such a row, too, and its flags are numbers of clients. K classes are
told from the rest: class 1 of two classes, else each.

============  ==============================================  ==============================================
layer         counts                                          rates of them
============  ==============================================  ==============================================
``people``    right, wrong                                    accuracy
``chosen``    predicted, not predicted; K times               selection rate
``outcomes``  TP, FP, FN, TN; K times; then by tenth of the   TPR, FPR, PPV, calibration
              probability whether a new bin begins, and
              examples, right ones, sum of the probability
============  ==============================================  ==============================================

**What is closed**, where the owner says ``min-examples`` = m of 2 and more:

* a group of fewer than m persons; none counts as fewer;
* who is predicted, if there are fewer than m on either side;
* all outcomes, if any of TP, FP, FN and TN is below m, as a rate and the others would give it. Tenths are
  merged until each bin has m right and m other examples, and never over 1/2, where TP and FP begin;
* who is predicted, if the outcomes are closed and lie within less than m of each other, given how many are
  right; of more than two classes, whenever the outcomes are closed;
* more groups, the smallest first, until the closed ones of a comparison are at least two and together m: the
  total is known, and would give a single one back. In a comparison of pairs one closes all;
* a whole comparison, if one of its groups has 1 to m - 1 persons more or fewer than another comparison's, as
  in ``age>65, age>66``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from task.numerics.limbs import LIMBS, number_of
from task.numerics.metrics import TENTHS

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
MOST_LIMB = 2**46  # sums of limbs over batches; those of 2^17 clients stay within int64
_BIN = 3 + LIMBS  # whether it begins, examples, right ones, and limbs of the sum of their probability


@dataclass(frozen=True)
class CountLayout:
    """Where what stands in the row of a group."""

    classes: int

    @property
    def told(self) -> int:
        """K, the classes that are told from the rest."""
        return 1 if self.classes == 2 else self.classes

    @property
    def width(self) -> int:
        """How many integers a row has."""
        return 5 + 6 * self.told + TENTHS * _BIN

    def parts(self, rows: Ints) -> CountTable:
        """Return views of the parts of rows [G, width]."""
        k = self.told
        tenths = rows[:, 5 + 6 * k :].reshape(len(rows), TENTHS, _BIN)
        return CountTable(
            rows[:, 0],
            rows[:, 1:3],
            rows[:, 3],
            rows[:, 4 : 4 + 2 * k].reshape(-1, k, 2),
            rows[:, 4 + 2 * k],
            rows[:, 5 + 2 * k : 5 + 6 * k].reshape(-1, k, 4),
            tenths[..., 0],
            tenths[..., 1:],
        )


@dataclass(frozen=True)
class CountTable:
    """The counts of G groups."""

    people: Ints  # flags [G]
    right: Ints  # right and wrong [G, 2]
    choice: Ints  # flags [G]
    chosen: Ints  # predicted and not [G, K, 2]
    outcome: Ints  # flags [G]
    outcomes: Ints  # TP, FP, FN, TN [G, K, 4]
    begins: Ints  # by tenth, how many clients begin a bin there [G, TENTHS]
    tenths: Ints  # examples, right ones, limbs of the sum of their probability [G, TENTHS, 2 + LIMBS]


def outcomes_of(confusion: Ints) -> Ints:
    """Return TP, FP, FN and TN of each class against the rest, [G, K, 4].

    `confusion` has a table for each group, [G, C, C]: rows are classes, columns predictions.
    """
    hits = np.diagonal(confusion, axis1=1, axis2=2)
    false, missed = confusion.sum(1) - hits, confusion.sum(2) - hits
    rest = confusion.sum((1, 2))[:, None] - hits - false - missed
    found = np.stack([hits, false, missed, rest], 2)
    return found[:, 1:] if confusion.shape[1] == 2 else found


def rows_of(
    confusion: Ints, tenths: Ints, sizes: Sequence[tuple[int, bool]], least: int, closed: Mask
) -> Ints:
    """Return the rows of all groups, [G, width].

    Args:
        confusion: By group, examples by class and prediction [G, C, C].
        tenths: By group, the sums of `task.tasks.metrics` for calibration, [G, TENTHS, 2 + LIMBS].
        sizes: Of each comparison the number of its groups, and whether they are of pairs.
        least: m, fewest persons behind a count; 0 or 1 = any number.
        closed: Groups of which nothing may be said, [G].
    """
    layout = CountLayout(confusion.shape[1])
    rows = np.zeros((len(confusion), layout.width), np.int64)
    table, four = layout.parts(rows), outcomes_of(confusion)
    n, hits = confusion.sum((1, 2)), np.trace(confusion, axis1=1, axis2=2)
    right = np.stack([hits, n - hits], 1)
    chosen = np.stack([four[..., 0] + four[..., 1], four[..., 2] + four[..., 3]], 2)
    start = 0
    for size, pairs in sizes:
        span = slice(start, start + size)
        start += size
        cells = four[span].reshape(size, -1)
        if layout.told > 1:  # tenths are then of right and wrong predictions
            cells = np.concatenate([cells, right[span]], 1)
        people, choice, outcome = _open(
            n[span], hits[span], chosen[span].reshape(size, -1), cells, least, closed[span], pairs
        )
        table.people[span], table.choice[span], table.outcome[span] = people, choice, outcome
    table.right[:] = np.where(table.people[:, None], right, 0)
    table.chosen[:] = np.where(table.choice[:, None, None], chosen, 0)
    table.outcomes[:] = np.where(table.outcome[:, None, None], four, 0)
    halves = 2 if layout.told == 1 else 1
    for g in np.flatnonzero(table.outcome):
        table.begins[g], table.tenths[g] = _merged(tenths[g], least, halves)
    return rows


def _open(
    n: Ints, hits: Ints, chosen: Ints, cells: Ints, least: int, closed: Mask, pairs: bool
) -> tuple[Mask, Mask, Mask]:
    """Return which groups of a comparison are open by layer; counts are [groups, parts]."""
    people = _covered(n[:, None], n, least, ~closed, pairs)
    choice = people
    while True:
        outcome = _covered(cells, n, least, choice, pairs)
        wide = outcome
        if chosen.shape[1] == 2:  # TP is within these bounds, given who is predicted and how many are right
            within = np.minimum(chosen[:, 0], hits) - np.maximum(chosen[:, 0] + hits - n, 0)
            wide = outcome | (within >= least)
        both = _covered(chosen, n, least, choice & (wide if least > 1 else choice), pairs)
        if (both == choice).all():
            return people, choice, outcome & choice
        choice = both


def _covered(parts: Ints, n: Ints, least: int, start: Mask, pairs: bool) -> Mask:
    """Return which groups may show their parts, [groups, parts], so that no total gives others back."""
    if least < 2:
        return start
    open_ = start & (parts >= least).all(1)
    hidden = ~open_ & (n > 0)
    if pairs and hidden.any():
        return np.zeros_like(open_)
    while hidden.any() and open_.any() and (hidden.sum() == 1 or (parts[hidden].sum(0) < least).any()):
        smallest = np.flatnonzero(open_)[n[open_].argmin()]
        open_[smallest], hidden[smallest] = False, True
    return open_


def _merged(tenths: Ints, least: int, halves: int) -> tuple[Ints, Ints]:
    """Return where bins begin, [TENTHS], and the counts of each at its beginning, [TENTHS, 2 + LIMBS]."""
    begins, merged = np.zeros(TENTHS, np.int64), np.zeros_like(tenths)
    size = TENTHS // halves
    for low in range(0, TENTHS, size):
        starts, at = [low], low
        for b in range(low, low + size):
            if starts[-1] != at and b == at:
                starts.append(at)
            examples, right = tenths[at : b + 1, :2].sum(0)
            if least < 2 or min(right, examples - right) >= least:
                at = b + 1
        if at < low + size and starts[-1] == at and len(starts) > 1:
            starts.pop()  # the rest is too few
        ends = [*starts[1:], low + size]
        begins[starts] = 1
        for first, end in zip(starts, ends, strict=True):
            merged[first] = tenths[first:end].sum(0)
    return begins, merged


def nested(member: Mask, comparison: Sequence[int], least: int) -> Mask:
    """Return the groups [G] of comparisons that differ from an earlier one's group by too few persons.

    Args:
        member: Whether a row is of a group, [G, rows].
        comparison: The number of each group's comparison.
        least: m.
    """
    sizes, of = member.sum(1), np.array(comparison)
    common = member.astype(np.int64) @ member.T.astype(np.int64)
    bad = set[int]()
    for i in range(len(member)):
        for j in range(i + 1, len(member)):
            inside = common[i, j] == min(sizes[i], sizes[j])
            if of[i] != of[j] and inside and 0 < abs(int(sizes[i] - sizes[j])) < least:
                bad.add(int(of[j]))
    return np.isin(of, sorted(bad))


def bins_of(begins: Ints, tenths: Ints, clients: int) -> list[tuple[int, int, Fraction]]:
    """Return examples, right ones and the sum of their probability, of the bins that all clients have."""
    starts = [b for b in range(TENTHS) if b == 0 or begins[b] == clients]
    sums = [tenths[first:end].sum(0) for first, end in zip(starts, [*starts[1:], TENTHS], strict=True)]
    return [(int(s[0]), int(s[1]), number_of(s[2:])) for s in sums if s[0]]


def fault_of(row: Ints, layout: CountLayout, sizes: Sequence[int], examples: int) -> str:
    """Return what is wrong in one client's rows [G, width], given its test examples; "" = nothing."""
    t = layout.parts(row)
    flags = np.concatenate([t.people, t.choice, t.outcome, t.begins.ravel()])
    if not np.isin(flags, (0, 1)).all():
        return "a flag is neither 0 nor 1"
    if min(t.right.min(), t.chosen.min(), t.outcomes.min(), t.tenths[..., :2].min()) < 0:
        return "a count is below 0"
    if max(t.right.max(), t.chosen.max(), t.outcomes.max(), t.tenths[..., :2].max()) > examples:
        return f"a count is above the client's {examples} test examples"
    n, opened = t.right.sum(1), t.outcome == 1
    if (t.choice > t.people).any() or (t.outcome > t.choice).any() or n[t.people == 0].any():
        return "something is shown of a group that is closed"
    if (t.chosen.sum(2) != (n * t.choice)[:, None]).any() or (
        t.outcomes.sum(2) != (n * t.outcome)[:, None]
    ).any():
        return "the counts of a group are not of as many persons"
    if (t.outcomes[opened][..., :2].sum(2) != t.chosen[opened][..., 0]).any():
        return "TP and FP are not those who are predicted"
    if (t.tenths[..., 0].sum(1) != n * t.outcome).any() or (t.tenths[..., 1] > t.tenths[..., 0]).any():
        return "the bins of a group are not of its persons"
    start = 0
    for size in sizes:
        if n[start : start + size].sum() > examples:
            return f"groups of more persons than the client's {examples} test examples"
        start += size
    if np.abs(t.tenths[..., 2:]).max() >= MOST_LIMB:
        return "a limb is out of range"
    try:
        sums = [(number_of(bin_[2:]), int(bin_[0])) for group in t.tenths for bin_ in group]
    except ArithmeticError:
        return "a probability is no number"
    return "" if all(0 <= p <= most for p, most in sums) else "a sum of probabilities is beyond its examples"
