"""What a cell of a table counts: a number of a run's result.json, and which of two is the better one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from server_app.results.lines import number

PERCENT = 100
DIGITS = 6  # that are kept behind the point


@dataclass(frozen=True)
class Measure:
    """One number of a finished run."""

    name: str
    words: str  # the head of a column
    decimals: int
    more_is_better: bool
    of: Callable[[Mapping[str, Any]], float | None]  # of the result

    @property
    def to_target(self) -> bool:
        """Whether it is the rounds to the run's target-accuracy, at which the run ends."""
        return self.name == "rounds"


def _at(*path: str) -> Callable[[Mapping[str, Any]], float | None]:
    def find(result: Mapping[str, Any]) -> float | None:
        value: Any = result
        for key in path:
            value = (value or {}).get(key)
        return number(value)

    return find


def _percent(*path: str) -> Callable[[Mapping[str, Any]], float | None]:
    find = _at(*path)
    return lambda result: None if (value := find(result)) is None else PERCENT * value


def _variance(result: Mapping[str, Any]) -> float | None:
    std = _at("clients", "std")(result)
    return None if std is None else (PERCENT * std) ** 2


MEASURES = {
    measure.name: measure
    for measure in (
        # Of the targets the own one; it is the highest that a run which stops there can reach.
        Measure("rounds", "rounds to the target", 1, False, lambda result: None),
        Measure("accuracy", "accuracy at the end, %", 2, True, _percent("accuracy")),
        Measure("best-accuracy", "best accuracy, %", 2, True, _percent("best_accuracy")),
        Measure("loss", "loss at the end", 4, False, _at("loss")),
        Measure("best-loss", "lowest loss", 4, False, _at("best_loss")),
        Measure("clients-best", "clients' accuracy in the best round, %", 2, True,
                _percent("clients", "best_weighted_mean")),
        Measure("clients-mean", "mean accuracy over clients, %", 1, True, _percent("clients", "mean")),
        Measure("clients-worst", "mean of the worst tenth of clients, %", 1, True,
                _percent("clients", "worst_decile")),
        Measure("clients-variance", "variance over clients, points²", 0, False, _variance),
    )
}  # fmt: skip


def values_of(result: Mapping[str, Any], target: float) -> dict[str, float]:
    """Return every measure that a result has; "rounds" are those to `target`, if it was reached."""
    reached = (result.get("rounds_to_target") or {}).get(str(float(target))) if target else None
    found = {name: measure.of(result) for name, measure in MEASURES.items()} | {"rounds": number(reached)}
    return {name: round(value, DIGITS) for name, value in found.items() if value is not None}
