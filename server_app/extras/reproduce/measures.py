"""What a cell of a table counts: a number of a run's result.json, and which of two is the better one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server_app.results.lines import number

PERCENT = 100
DIGITS = 6  # that are kept behind the point
CONVERGED, DIVERGED, WINDOW = (
    1e-4,
    1.0,
    10,
)  # of the loss in one round, and within a number of rounds; as FedProx counts


@dataclass(frozen=True)
class Measure:
    """One number of a finished run."""

    name: str
    words: str  # the head of a column
    decimals: int
    more_is_better: bool
    of: Callable[[Mapping[str, Any]], float | None]  # of the result

    @property
    def at_clients(self) -> bool:
        """Whether clients measure it."""
        return self.name.startswith("clients-")

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
        # These two are not in the result; see `values_of`.
        Measure("rounds", "rounds to the target", 1, False, lambda result: None),
        Measure("counted-accuracy", "accuracy at convergence, divergence or the end, %", 2, True,
                lambda result: None),
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


def values_of(
    result: Mapping[str, Any], target: float, rounds: Sequence[Mapping[str, Any]] = ()
) -> dict[str, float]:
    """Return every measure that a run has, given its result and the rows of its rounds.

    "rounds" are those to `target`, if it was reached. Of the targets it is the run's own, the highest that a
    run which stops there can reach.
    """
    reached = (result.get("rounds_to_target") or {}).get(str(float(target))) if target else None
    found = {name: measure.of(result) for name, measure in MEASURES.items()}
    found |= {"rounds": number(reached), "counted-accuracy": counted_accuracy(rounds)}
    return {name: round(value, DIGITS) for name, value in found.items() if value is not None}


def counted_accuracy(rounds: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the accuracy, in percent, of the round at which FedProx ends a comparison; None without one.

    That is the first round t whose loss f_t is within 1e-4 of f_{t-1} (convergence) or more than 1 above
    f_{t-10} (divergence), else the last one (Li et al. 2020, Section 5.2). Here f is the loss on the test
    set, in the rounds that were evaluated.
    """
    losses: dict[int, float] = {}  # of the last ten rounds
    accuracy = None
    for row in rounds:
        loss, share = number(row.get("loss")), number(row.get("accuracy"))
        if share is None:
            continue
        t, accuracy = int(row["round"]), PERCENT * share
        if loss is None:  # too large for a number
            break
        losses = {s: f for s, f in losses.items() if s >= t - WINDOW}
        before = losses.get(t - 1)
        # f_{t-10}, or where that round was not evaluated the next one that was
        long_before = next(iter(losses.values()), None) if t >= WINDOW else None
        losses[t] = loss
        if before is not None and abs(loss - before) < CONVERGED:
            break
        if long_before is not None and loss - long_before > DIVERGED:
            break
    return accuracy
