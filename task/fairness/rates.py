"""Rates and gaps of groups of people, from exact counts alone.

=========================================  ==========================================================
accuracy                                   (TP + TN) / n; the **worst group** has the least
selection                                  (TP + FP) / n, the share that is predicted
tpr, fpr, ppv                              TP / (TP + FN), FP / (FP + TN), TP / (TP + FP)
ece                                        sum_b |sum of p - positives| / n over bins of p
demographic parity                         largest less smallest selection, and smallest / largest
equal opportunity, predictive parity       largest less smallest tpr; ppv
equalised odds                             the larger of the gaps of tpr and fpr
=========================================  ==========================================================

Of more than two classes the rates are those of each class against the rest, and a gap is the largest over the
classes. A rate whose denominator is 0 is undefined, and one that no site shows is withheld; neither counts in
a gap. Intervals are Wilson's at 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from task.fairness.counts import CountLayout, CountTable, Ints, bins_of
from task.fairness.groups import Comparison

Z = 1.959963984540054  # of 95 %
OUTCOMES = ("tpr", "fpr", "ppv")
RATES = ("accuracy", "selection", *OUTCOMES, "ece")
UNDEFINED, WITHHELD = "undefined", "withheld"


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Return the ends of Wilson's interval for the share hits / n at 95 %."""
    p, z2 = hits / n, Z * Z
    centre, width = p + z2 / (2 * n), Z * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return (centre - width) / (1 + z2 / n), (centre + width) / (1 + z2 / n)


def _rate(hits: int, n: int, shown: int) -> dict[str, Any]:
    if not shown or not n:
        return {"value": None, "of": n, "why": UNDEFINED if shown else WITHHELD}
    low, high = wilson(hits, n)
    return {"value": hits / n, "of": n, "low": low, "high": high}


def _by_class(table: CountTable, g: int, k: int) -> dict[str, dict[str, Any]]:
    chosen, rest = map(int, table.chosen[g, k])
    tp, fp, fn, tn = map(int, table.outcomes[g, k])
    shown = int(table.outcome[g])
    return {
        "selection": _rate(chosen, chosen + rest, int(table.choice[g])),
        "tpr": _rate(tp, tp + fn, shown),
        "fpr": _rate(fp, fp + tn, shown),
        "ppv": _rate(tp, tp + fp, shown),
    }


def _calibration(table: CountTable, g: int) -> dict[str, Any]:
    shown = int(table.outcome[g])
    try:
        bins = bins_of(table.begins[g], table.tenths[g], shown)
    except ArithmeticError:  # the model diverged
        return {"value": None, "of": 0, "bins": 0, "why": UNDEFINED}
    n = sum(count for count, _, _ in bins)
    if not n:
        return {"value": None, "of": 0, "bins": 0, "why": UNDEFINED if shown else WITHHELD}
    gap = sum(abs(p - right) for _, right, p in bins)
    return {"value": float(gap / n), "of": n, "bins": len(bins)}


def _gap(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return max(known) - min(known) if len(known) > 1 else None


def _most(values: Sequence[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


def compared(groups: Sequence[Mapping[str, Any]], classes: int) -> dict[str, Any]:
    """Return the gaps between groups, see the table above."""

    def of(rate: str, k: int) -> list[float | None]:
        return [group["classes"][k][rate]["value"] for group in groups]

    every = range(classes)
    ratios = list[float | None]()
    for k in every:
        known = [v for v in of("selection", k) if v is not None]
        ratios.append(min(known) / max(known) if len(known) > 1 and max(known) > 0 else None)
    gaps = {rate: [_gap(of(rate, k)) for k in every] for rate in ("selection", *OUTCOMES)}
    both = [
        None if t is None or f is None else max(t, f) for t, f in zip(gaps["tpr"], gaps["fpr"], strict=True)
    ]
    found = [(g["accuracy"]["value"], g["group"]) for g in groups if g["accuracy"]["value"] is not None]
    worst = min(found, default=None)
    return {
        "worst_group": None if worst is None else worst[1],
        "worst_accuracy": None if worst is None else worst[0],
        "accuracy_gap": _gap([g["accuracy"]["value"] for g in groups]),
        "demographic_parity_difference": _most(gaps["selection"]),
        "demographic_parity_ratio": min((r for r in ratios if r is not None), default=None),
        "equal_opportunity_difference": _most(gaps["tpr"]),
        "equalised_odds_difference": _most(both),
        "predictive_parity_difference": _most(gaps["ppv"]),
        "calibration_gap": _gap([g["ece"]["value"] for g in groups]),
    }


def brief(report: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the values of a report alone; a rate is a list with a value for each class."""
    return [
        {
            "by": comparison["by"],
            "groups": [
                {
                    "group": group["group"],
                    "n": group["n"],
                    "accuracy": group["accuracy"]["value"],
                    **{
                        rate: [k[rate]["value"] for k in group["classes"]]
                        for rate in ("selection", *OUTCOMES)
                    },
                    "ece": group["ece"]["value"],
                }
                for group in comparison["groups"]
            ],
        }
        for comparison in report
    ]


def report_of(comparisons: Sequence[Comparison], rows: Ints, classes: int) -> list[dict[str, Any]]:
    """Return, by comparison, its groups with their rates, and the gaps between them.

    `rows` are those of one client, or the sums over some, [G, width] as in `task.fairness.counts`. A group
    has "sites", how many clients are behind its accuracy. A rate has "value", "of", its denominator, and
    "low" and "high", or "why" there is none.
    """
    layout = CountLayout(classes)
    table, found, g = layout.parts(rows), list[dict[str, Any]](), 0
    for comparison in comparisons:
        groups = list[dict[str, Any]]()
        for name in comparison.names:
            right, wrong = map(int, table.right[g])
            shown = int(table.people[g])
            groups.append(
                {
                    "group": name,
                    "n": right + wrong if shown else None,
                    "sites": shown,
                    "accuracy": _rate(right, right + wrong, shown),
                    "classes": [_by_class(table, g, k) for k in range(layout.told)],
                    "ece": _calibration(table, g),
                }
            )
            g += 1
        found.append({"by": comparison.title, "groups": groups, **compared(groups, layout.told)})
    return found
