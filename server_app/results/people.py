"""What a run says of groups of people (run-config key ``groups``): lines, columns and tables of its rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from server_app.results.lines import Row
from task.fairness.rates import OUTCOMES, UNDEFINED

KEY, CENTRAL = "groups", "server_groups"
WHERE = {KEY: "on the clients' own test data", CENTRAL: "on the server's test set"}
# The gaps that a line of the headline and a comparison of runs have, with their words.
GAPS = {
    "demographic_parity_difference": "demographic parity",
    "equal_opportunity_difference": "equal opportunity",
    "equalised_odds_difference": "equalised odds",
}
MORE_GAPS = {
    "demographic_parity_ratio": "demographic parity, ratio",
    **{name: f"{words}, difference" for name, words in GAPS.items()},
    "predictive_parity_difference": "predictive parity, difference",
    "calibration_gap": "ECE, difference",
}
MOST_TABLES = 100


def last_of(rounds: Sequence[Row]) -> Row:
    """Return the figures of the last round that has some, under "groups", for result.json; {} without."""
    found = next((row for row in reversed(rounds) if row.get(KEY)), None)
    return {KEY: {"round": found["round"], **found[KEY]}} if found else {}


def _comparisons(result: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the comparisons of a result with where they were measured."""
    found = [(KEY, one) for one in (result.get(KEY) or {}).get("pooled", ())]
    return found + [(CENTRAL, one) for one in result.get(CENTRAL) or ()]


def lines_of(result: Mapping[str, Any], short: Callable[[float | None], str]) -> list[tuple[str, str]]:
    """Return a line of the headline for each comparison."""
    lines = []
    for where, one in _comparisons(result):
        parts = []
        if one["worst_group"] is not None:
            parts.append(f"lowest accuracy {short(one['worst_accuracy'])} ({one['worst_group']})")
        parts += [f"{words} {short(one[gap])}" for gap, words in GAPS.items() if one[gap] is not None]
        label = f"Groups, {one['by']}" + (", test set" if where == CENTRAL else "")
        lines.append((label, ", ".join(parts) or "nothing can be compared"))
    return lines


def columns_of(results: Sequence[Row]) -> list[tuple[str, str, str, str]]:
    """Return header, place of the measurement, comparison and figure of the columns of a table of runs."""
    found: dict[tuple[str, str, str, str], None] = {}
    for where, one in (pair for result in results for pair in _comparisons(result)):
        place = ", server" if where == CENTRAL else ""
        for name, words in {"worst_accuracy": "lowest accuracy (%)", **GAPS}.items():
            found[(f"{one['by']}{place}: {words}", where, one["by"], name)] = None
    return list(found)


def figure_of(result: Row, where: str, by: str, name: str) -> float | None:
    """Return one figure of a comparison; None where a run has it not."""
    return next((one[name] for at, one in _comparisons(result) if (at, one["by"]) == (where, by)), None)


def tables_of(
    result: Mapping[str, Any], names: Callable[[int], Sequence[str]] = lambda count: [*map(str, range(count))]
) -> list[Row]:
    """Return tables for the page, each with "caption", "head" and "rows" of texts and numbers.

    `result` has the figures under `KEY` and `CENTRAL`; `names` returns the names of this number of classes.
    """
    tables = list[Row]()
    for where, one in _comparisons(result):
        tables.append(_pooled(one, where, names))
        tables.append(_gaps(one))
        tables += _by_site(result, one["by"]) if where == KEY else []
    return tables[:MOST_TABLES]


def _pooled(one: Mapping[str, Any], where: str, names: Callable[[int], Sequence[str]]) -> Row:
    told = len(one["groups"][0]["classes"])
    classes = names(told) if (several := told > 1) else [""]
    head = ["group", *(["class"] if several else []), "people", "sites", "accuracy", "95 %", "selected"]
    rows = list[list[Any]]()
    for group in one["groups"]:
        for k, rates in enumerate(group["classes"]):
            people = "< m" if group["n"] is None else group["n"]
            rows.append(
                [
                    group["group"], *([classes[k]] if several else []), people, group["sites"],
                    _cell(group["accuracy"]), _interval(group["accuracy"]),
                    *(_cell(rates[rate]) for rate in ("selection", *OUTCOMES)), _cell(group["ece"]),
                ]
            )  # fmt: skip
    return {
        "caption": f"{one['by']}, {WHERE[where]}",
        "head": [*head, "TPR", "FPR", "PPV", "ECE"],
        "rows": rows,
    }


def _gaps(one: Mapping[str, Any]) -> Row:
    rows: list[list[Any]] = [["accuracy, difference", one["accuracy_gap"]]]
    rows += [[words, one[name]] for name, words in MORE_GAPS.items()]
    return {
        "caption": f"{one['by']}, gaps between the groups",
        "head": ["gap", "value"],
        "rows": [[words, "-" if value is None else value] for words, value in rows],
    }


def _by_site(result: Mapping[str, Any], by: str) -> list[Row]:
    """Return the table of the sites' own rates; those of several classes are in result.json."""
    rows = list[list[Any]]()
    for site, comparisons in ((result.get(KEY) or {}).get("sites") or {}).items():
        for group in next((c["groups"] for c in comparisons if c["by"] == by), ()):
            rates = [group[rate][0] if len(group[rate]) == 1 else None for rate in ("selection", *OUTCOMES)]
            values = [group["accuracy"], *rates, group["ece"]]
            people = "< m" if group["n"] is None else group["n"]
            rows.append([site, group["group"], people, *("-" if v is None else v for v in values)])
    head = ["site", "group", "people", "accuracy", "selected", "TPR", "FPR", "PPV", "ECE"]
    return [{"caption": f"{by}, by site", "head": head, "rows": rows}] if rows else []


def _cell(rate: Mapping[str, Any]) -> Any:
    if rate["value"] is not None:
        return rate["value"]
    return "undefined" if rate["why"] == UNDEFINED else "< m"


def _interval(rate: Mapping[str, Any]) -> str:
    return "" if rate["value"] is None else f"{rate['low']:.3f} to {rate['high']:.3f}"
