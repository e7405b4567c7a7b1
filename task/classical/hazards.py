"""The tables of Cox's regression, from the arrays of its result.

se = sqrt(diag I^-1), z = coefficient / se, p of the normal distribution; the hazard ratio is e^coefficient,
its limits e^(coefficient +- 1.96 se). The baseline hazard is Breslow's, d / S0, of a person whose columns are
at their means over all persons.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from task.classical.concordance import Concordance
from task.classical.cox import Cox
from task.classical.curves import merged_in
from task.classical.kaplan_meier import Z, chi2_tail
from task.classical.printed import Cell, Printed
from task.numerics.arrays import NamedArrays

FIGURES = (
    "rows", "events", "log-likelihood", "null-log-likelihood", "score-test", "iterations", "decrement",
)  # fmt: skip
HEAD = (
    "name", "coefficient", "se", "z", "p", "hazard_ratio", "lower", "upper", "proportional_chi2",
    "proportional_p",
)  # fmt: skip
BASELINE = ("stratum", "time", "at_risk", "events", "hazard", "survival")
LATEX = {
    "name": "", "coefficient": "Coefficient", "se": "SE", "z": "$z$", "p": "$p$",
    "hazard_ratio": "Hazard ratio", "lower": "95 \\% from", "upper": "to",
    "proportional_chi2": "Proportional $\\chi^2$", "proportional_p": "$p$",
}  # fmt: skip


def hazards_table(cox: Cox, arrays: NamedArrays) -> Printed:
    """Return the table of a result that has ended; numbers of a test that has collinear columns are None."""
    found = dict(zip(FIGURES, arrays["figures"].tolist(), strict=True))
    beta, p = arrays["coefficients"].tolist(), cox.p
    errors = np.sqrt(np.diag(arrays["covariance"])).tolist()
    tests = [None if math.isnan(t) else t for t in arrays["proportional"].tolist()]
    rows = [
        (
            name, b, se, b / se, math.erfc(abs(b / se) / math.sqrt(2)),
            math.exp(b), math.exp(b - Z * se), math.exp(b + Z * se),
            test, None if test is None else chi2_tail(test, 1),
        )
        for name, b, se, test in zip(cox.names, beta, errors, tests[:p], strict=True)
    ]  # fmt: skip
    value, null, together = found["log-likelihood"], found["null-log-likelihood"], tests[p]
    ratio = 2.0 * (value - null)
    figures: dict[str, Any] = {
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
        **_concordance(arrays),
        "iterations": int(found["iterations"]),
        "time": cox.survival.time.name,
        "merged": merged_in(cox.survival, arrays["bins"]),
    }
    return Printed("coefficients", HEAD, tuple(rows), figures, arrays["sums-sha256"].tobytes().hex())


def _concordance(arrays: NamedArrays) -> dict[str, float | int | None]:
    """Return Harrell's c of a result that has one, how far off its bins are at most, and the pairs."""
    if "concordance" not in arrays:
        return {}
    pairs = Concordance(*map(int, arrays["concordance"].tolist()))
    return {
        "concordance": pairs.index,
        "concordance_error": pairs.error,
        "comparable_pairs": pairs.comparable,
    }


def baseline_table(cox: Cox, arrays: NamedArrays) -> Printed:
    """Return the cumulative baseline hazard of each stratum after each time with events."""
    found: list[tuple[Cell, ...]] = []
    for s, stratum in enumerate(cox.survival.names(cox.survival.strata)):
        hazard = 0.0
        for j in np.flatnonzero(arrays["events"][s]).tolist():
            hazard += float(arrays["baseline"][s, j])
            at_risk, events = int(arrays["at-risk"][s, j]), int(arrays["events"][s, j])
            found.append((stratum, cox.survival.at(j), at_risk, events, hazard, math.exp(-hazard)))
    return Printed("baseline", BASELINE, tuple(found), {}, arrays["sums-sha256"].tobytes().hex())
