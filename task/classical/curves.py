"""The table of survival curves, from the arrays of its result, as csv, LaTeX and an object of JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from task.classical.kaplan_meier import CurvePoint, LogRank, curve, log_rank, median
from task.classical.survival import Survival
from task.classical.table import escaped
from task.numerics.arrays import NamedArrays

_COLUMNS = tuple(f.name for f in fields(CurvePoint))
_HEADS = ("", "Persons", "Events", "Expected", "Median", "95 \\% from", "to")


@dataclass(frozen=True)
class GroupCurve:
    """The curve of one group."""

    name: str
    persons: int
    events: int
    points: list[CurvePoint]

    def medians(self) -> tuple[float | None, float | None, float | None]:
        """Return the median and its limits: where the curve and its limits are at most one half."""
        return median(self.points), median(self.points, "lower"), median(self.points, "upper")


@dataclass(frozen=True)
class Curves:
    """Curves, the test between them, and which bins were merged."""

    groups: list[GroupCurve]
    test: LogRank | None
    merged: list[dict[str, Any]]
    digest: str  # SHA-256 of all counts

    def as_dict(self) -> dict[str, Any]:
        """Return an object of JSON."""
        found = []
        for g in self.groups:
            middle, low, high = g.medians()
            found.append(
                {
                    "group": g.name, "persons": g.persons, "events": g.events,
                    "median_time": middle, "median_lower": low, "median_upper": high,
                    "points": [dict(zip(_COLUMNS, astuple(p), strict=True)) for p in g.points],
                }
            )  # fmt: skip
        test = vars(self.test) if self.test else None
        return {"curves": found, "log_rank": test, "merged": self.merged, "sums_sha256": self.digest}

    def csv(self) -> str:
        """Return all points with all digits; an empty cell is a number that there is not."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("group", *_COLUMNS))
        for g in self.groups:
            for p in g.points:
                writer.writerow([g.name, *("" if c is None else repr(c) for c in astuple(p))])
        return text.getvalue()

    def latex(self) -> str:
        """Return a LaTeX tabular with a line for each group; the test stands above it, as a comment."""
        expected: Sequence[float | None] = self.test.expected if self.test else [None] * len(self.groups)
        rows = [
            " & ".join([escaped(g.name), str(g.persons), str(g.events), *map(_short, (e, *g.medians()))])
            for g, e in zip(self.groups, expected, strict=True)
        ]
        above = f"% {words_of(self.test)}\n" if self.test else ""
        body = " \\\\\n".join([" & ".join(_HEADS) + " \\\\\n\\hline", *rows]).replace(
            "\\hline \\\\", "\\hline"
        )
        return f"{above}\\begin{{tabular}}{{lrrrrrr}}\n{body} \\\\\n\\end{{tabular}}\n"


def _short(number: float | None) -> str:
    return "" if number is None else f"{number:.6g}"


def words_of(test: LogRank) -> str:
    """Return the test in words."""
    if test.chi2 is None:
        return "log-rank: none, as no two groups were at risk together"
    return f"log-rank chi2 {test.chi2:.8g}, {test.df} degrees of freedom, p {test.p:.4g}"


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
