"""The tables of survival curves, from the arrays of their result."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from task.classical.kaplan_meier import CurvePoint, LogRank, curve, log_rank, median
from task.classical.printed import Printed
from task.classical.survival import Survival
from task.numerics.arrays import NamedArrays

_COLUMNS = tuple(f.name for f in fields(CurvePoint))
GROUPS = ("group", "persons", "events", "expected", "median_time", "median_lower", "median_upper")
LATEX = {
    "group": "", "persons": "Persons", "events": "Events", "expected": "Expected",
    "median_time": "Median", "median_lower": "95 \\% from", "median_upper": "to",
}  # fmt: skip


@dataclass(frozen=True)
class GroupCurve:
    """The curve of one group."""

    name: str
    persons: int
    events: int
    points: list[CurvePoint]


@dataclass(frozen=True)
class Curves:
    """Curves, the test between them, and which bins were merged."""

    groups: list[GroupCurve]
    test: LogRank | None
    merged: list[dict[str, Any]]
    digest: str  # SHA-256 of all counts

    def points(self) -> Printed:
        """Return a row for each point of each curve."""
        rows = tuple((g.name, *astuple(p)) for g in self.groups for p in g.points)
        return Printed("points", ("group", *_COLUMNS), rows, {}, self.digest)

    def medians(self) -> Printed:
        """Return a row for each group, and the test.

        The limits of a median are where those of the curve are at most one half; None = they never are.
        """
        expected = self.test.expected if self.test else [None] * len(self.groups)
        rows = tuple(
            (g.name, g.persons, g.events, e, *(median(g.points, of) for of in ("survival", "lower", "upper")))
            for g, e in zip(self.groups, expected, strict=True)
        )
        found = self.test
        test = {"chi2": found.chi2, "df": found.df, "p": found.p} if found else None
        figures = {"log_rank": test, "merged": self.merged}
        return Printed("curves", GROUPS, rows, figures, self.digest)

    def as_dict(self) -> dict[str, Any]:
        """Return an object of JSON."""
        found = self.medians().as_dict()
        for row, g in zip(found["curves"], self.groups, strict=True):
            row["points"] = [dict(zip(_COLUMNS, astuple(p), strict=True)) for p in g.points]
        return found


def curves_of(survival: Survival, arrays: NamedArrays) -> Curves:
    """Return the table of a result that has counts."""
    counts: npt.NDArray[np.int64] = arrays["counts"]
    times = [survival.at(k) for k in range(survival.last + 1)]
    pooled = counts.sum(axis=0)  # over strata
    groups = [
        GroupCurve(name, int(pooled[g].sum()), int(pooled[g, :, 0].sum()), curve(pooled[g], times))
        for g, name in enumerate(survival.names(survival.groups))
    ]
    test = log_rank(counts) if len(groups) > 1 else None
    return Curves(groups, test, merged_in(survival, arrays["bins"]), arrays["sums-sha256"].tobytes().hex())


def merged_in(survival: Survival, bins: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return the bins that sites had merged: stratum, fate, and the times above which and up to which."""
    found = []
    for stratum, name in enumerate(survival.names(survival.strata)):
        for fate, what in enumerate(("events", "censored")):
            before = -1
            for end in np.unique(bins[stratum, :, fate]).tolist():
                if end - before > 1:
                    first = None if before < 0 else survival.at(before)  # None: from the range's start
                    found.append({"stratum": name, "of": what, "above": first, "up_to": survival.at(end)})
                before = end
    return found
