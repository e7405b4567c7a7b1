"""The cost of drift: accuracy before and after each change of the concept, and rounds to recover."""

from collections.abc import Mapping, Sequence
from typing import Any

from server_app.results.lines import Row, number
from task.config.data_sections import DriftConfig
from task.datasets.drift import changes
from task.population import some

RECOVERED = 0.95  # share of the former accuracy at which a model has recovered


def changes_of(keys: Mapping[str, Any], rounds: int) -> list[int]:
    """Return the rounds up to `rounds` in which a concept begins, from a run's keys, of any version."""
    first, span = (max(int(number(keys.get(f"drift.{name}")) or 0), 1) for name in ("round", "span"))
    kind, pattern = (str(keys.get(f"drift.{name}", "none")) for name in ("kind", "pattern"))
    return changes(DriftConfig(kind=kind, pattern=pattern, round=first, span=span), rounds)


def recoveries(rounds: Sequence[Row], keys: Mapping[str, Any], key: str = "accuracy") -> list[Row]:
    """Return a row for each change that was measured before and after.

    "before" is the accuracy `key` of the last round before the change, on the old concept; "after" that of
    the first one from then on, "lowest" the least up to the next change, each on the concept of its round.
    "recovery_rounds" is how many rounds after the change it was 95 % of "before" again, the first time after
    the lowest; 0 = it was never less, None = not by the next change.
    """
    last = rounds[-1]["round"] if rounds else 0
    begins = changes_of(keys, last)
    measured = [(row["round"], a) for row in rounds if (a := number(row.get(key))) is not None]
    found: list[Row] = []
    for begin, end in zip(begins, [*begins[1:], last + 1], strict=False):
        before = [a for r, a in measured if r < begin]
        since = [(r, a) for r, a in measured if begin <= r < end]
        if not before or not since:
            continue
        lowest, least = min((a, r) for r, a in since)
        goal = RECOVERED * before[-1]
        again = [r - begin for r, a in since if r >= least and a >= goal]
        rounds_to = 0 if lowest >= goal else again[0] if again else None
        row = {"round": begin, "before": before[-1], "after": since[0][1], "lowest": lowest}
        found.append({**row, "recovery_rounds": rounds_to})
    return found


def turns(keys: Mapping[str, Any], last: int) -> list[tuple[int, int]]:
    """Return the first and the last round of each time, up to round `last`, that the new concept holds."""
    begins = changes_of(keys, last)
    ends = [*(begin - 1 for begin in begins[1::2]), last]
    return list(zip(begins[::2], ends, strict=False))


def lines_of(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what each change cost, of a result.json, as (label, text)."""
    found = [(f"Drift in round {row['round']}", _in_words(row)) for row in result.get("drift") or ()]
    rounds = [f"{name} in {begin}" for name, begin in (result.get("drift_clients") or {}).items()]
    return [*found, ("Clients that drift", some(rounds))] if rounds else found


def _in_words(row: Mapping[str, Any]) -> str:
    worst = f"{row['lowest']:.3f} at worst" if row["lowest"] < row["before"] else f"{row['after']:.3f} after"
    text = f"accuracy {row['before']:.3f} before, {worst}"
    if (rounds := row["recovery_rounds"]) is None:
        return f"{text}, not recovered"
    return text if not rounds else f"{text}, 95 % of it again after {rounds} round{'s'[: rounds > 1]}"
