"""The table of Cox's regression, from the arrays of its result, as csv, LaTeX and an object of JSON.

se = sqrt(diag I^-1), z = coefficient / se, p of the normal distribution; the hazard ratio is e^coefficient,
its limits e^(coefficient +- 1.96 se). The baseline hazard is Breslow's, d / S0, of a person whose columns are
at their means over all persons.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np

from task.classical.cox import Cox
from task.classical.curves import merged_in
from task.classical.kaplan_meier import Z, chi2_tail
from task.classical.table import escaped
from task.numerics.arrays import NamedArrays

FIGURES = (
    "rows", "events", "log-likelihood", "null-log-likelihood", "score-test", "iterations", "decrement",
)  # fmt: skip


@dataclass(frozen=True)
class HazardRatio:
    """One line of the table."""

    name: str
    coefficient: float
    se: float
    z: float
    p: float
    hazard_ratio: float
    lower: float
    upper: float
    proportional_chi2: float | None  # None where the columns of the test are collinear
    proportional_p: float | None


@dataclass(frozen=True)
class BaselinePoint:
    """The cumulative baseline hazard of a stratum after a time with events."""

    stratum: str
    time: float
    at_risk: int
    events: int
    hazard: float
    survival: float


@dataclass(frozen=True)
class Hazards:
    """A table, the figures below it, and the baseline."""

    lines: list[HazardRatio]
    figures: Mapping[str, float | None]
    baseline: list[BaselinePoint]
    merged: list[dict[str, Any]]
    digest: str  # SHA-256 of all integers

    def as_dict(self) -> dict[str, Any]:
        """Return an object of JSON."""
        lines = [dict(zip(_HEAD, astuple(line), strict=True)) for line in self.lines]
        baseline: dict[str, list[dict[str, Any]]] = {}
        for point in self.baseline:
            row = dict(zip(_BASELINE[1:], astuple(point)[1:], strict=True))
            baseline.setdefault(point.stratum, []).append(row)
        found = {"coefficients": lines, **self.figures, "baseline": baseline}
        return {**found, "merged": self.merged, "sums_sha256": self.digest}

    def csv(self) -> str:
        """Return the lines with all digits."""
        return _csv(_HEAD, [astuple(line) for line in self.lines])

    def baseline_csv(self) -> str:
        """Return the baseline hazard with all digits."""
        return _csv(_BASELINE, [astuple(point) for point in self.baseline])

    def latex(self) -> str:
        """Return a LaTeX tabular with six significant digits."""
        heads = " & ".join(("", "Coefficient", "SE", "$z$", "$p$", "Hazard ratio", "95 \\% from", "to"))
        rows = [
            " & ".join([escaped(line.name), *(f"{c:.6g}" for c in astuple(line)[1:8])]) for line in self.lines
        ]
        known = {name: value for name, value in self.figures.items() if value is not None}
        below = ", ".join(f"{escaped(name)} {value:.8g}" for name, value in known.items())
        body = " \\\\\n".join(rows)
        return (
            f"% {below}\n\\begin{{tabular}}{{lrrrrrrr}}\n{heads} \\\\\n\\hline\n"
            f"{body} \\\\\n\\end{{tabular}}\n"
        )


_HEAD = tuple(f.name for f in fields(HazardRatio))
_BASELINE = tuple(f.name for f in fields(BaselinePoint))


def _csv(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    for row in rows:
        writer.writerow(["" if c is None else c if isinstance(c, str) else repr(c) for c in row])
    return text.getvalue()


def hazards_of_result(cox: Cox, arrays: NamedArrays) -> Hazards:
    """Return the table of a result that has ended."""
    found = dict(zip(FIGURES, arrays["figures"].tolist(), strict=True))
    beta, p = arrays["coefficients"].tolist(), cox.p
    errors = np.sqrt(np.diag(arrays["covariance"])).tolist()
    tests = [None if math.isnan(t) else t for t in arrays["proportional"].tolist()]
    lines = [
        HazardRatio(
            name, b, se, b / se, math.erfc(abs(b / se) / math.sqrt(2)),
            math.exp(b), math.exp(b - Z * se), math.exp(b + Z * se),
            test, None if test is None else chi2_tail(test, 1),
        )
        for name, b, se, test in zip(cox.names, beta, errors, tests, strict=False)
    ]  # fmt: skip
    value, null, together = found["log-likelihood"], found["null-log-likelihood"], tests[p]
    ratio = 2.0 * (value - null)
    figures: dict[str, float | None] = {
        "rows": int(found["rows"]),
        "events": int(found["events"]),
        "log_likelihood": value,
        "null_log_likelihood": null,
        "aic": 2.0 * p - 2.0 * value,
        "likelihood_ratio_chi2": ratio,
        "likelihood_ratio_p": chi2_tail(ratio, p),
        "score_chi2": found["score-test"],
        "score_p": chi2_tail(found["score-test"], p),
        "proportional_chi2": together,
        "proportional_p": None if together is None else chi2_tail(together, p),
        "iterations": int(found["iterations"]),
    }
    digest = arrays["sums-sha256"].tobytes().hex()
    merged = merged_in(cox.survival, arrays["bins"])
    return Hazards(lines, figures, _baseline(cox, arrays), merged, digest)


def _baseline(cox: Cox, arrays: NamedArrays) -> list[BaselinePoint]:
    found = []
    for s, stratum in enumerate(cox.survival.names(cox.survival.strata)):
        hazard = 0.0
        for j in np.flatnonzero(arrays["events"][s]).tolist():
            hazard += float(arrays["baseline"][s, j])
            at_risk, events = int(arrays["at-risk"][s, j]), int(arrays["events"][s, j])
            time = cox.survival.at(j)
            found.append(BaselinePoint(stratum, time, at_risk, events, hazard, math.exp(-hazard)))
    return found
