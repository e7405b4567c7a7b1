"""What a run amounts to: the content of result.json, and its headline numbers in words.

Pure functions of the rows that `server_app.results` reads and writes.
"""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from task.metrics import crossing, rounds_to_target, spread

Row = dict[str, Any]

TARGETS = (0.5, 0.8, 0.9, 0.95, 0.97, 0.99)


def summarise(
    rounds: Sequence[Row],
    clients: Sequence[Row],
    config: Mapping[str, Any],
    targets: Iterable[float] = TARGETS,
) -> Row:
    """Return what result.json holds.

    "accuracy" and "loss" are those of the last central evaluation. The x of "..._to_target" is
    interpolated as in `task.metrics.crossing`; seconds and bytes are summed over the rounds, so the time
    between a stop and a resume does not count. A target that was not reached is None. Simulated seconds are
    those of a trace of device speeds (`strategies.devices`), not measured.

    Args:
        rounds: Rows of rounds.jsonl, in order.
        clients: Rows of clients.jsonl.
        config: Every run-config key with its value.
        targets: Accuracies; the run's own target-accuracy joins them.
    """
    own = config.get("target-accuracy") or 0.0
    goals = sorted({float(t) for t in targets} | ({float(own)} if own > 0 else set()))
    number = [row["round"] for row in rounds]
    accuracy = [_number(row.get("accuracy")) for row in rounds]
    seconds = np.cumsum([_seconds(row) for row in rounds]).tolist()
    moved = np.cumsum([row.get("bytes_up", 0) + row.get("bytes_down", 0) for row in rounds]).tolist()
    simulated = np.cumsum([row.get("simulated_seconds") or 0.0 for row in rounds]).tolist()
    measured = [(a, -r) for a, r in zip(accuracy, number, strict=True) if a is not None]
    best = max(measured, default=None)  # the first round that reached the best
    central = _last(rounds, "accuracy", "loss")
    local = _last(rounds, "client_accuracy", "client_loss")
    return {
        **{key: config.get(key) for key in ("algorithm", "dataset", "model", "selection", "seed")},
        "rounds": number[-1] if number else 0,
        "accuracy": _number(central.get("accuracy")),
        "loss": _number(central.get("loss")),
        "best_accuracy": best[0] if best else None,
        "best_round": -best[1] if best else None,
        "train_loss": _number(_last(rounds, "train_loss").get("train_loss")),
        "client_accuracy": _number(local.get("client_accuracy")),
        "client_loss": _number(local.get("client_loss")),
        "rounds_to_target": {str(t): rounds_to_target(number, accuracy, t) for t in goals},
        "seconds_to_target": {str(t): crossing(seconds, accuracy, t) for t in goals},
        "bytes_to_target": {str(t): crossing(moved, accuracy, t) for t in goals},
        "simulated_seconds_to_target": {str(t): crossing(simulated, accuracy, t) for t in goals},
        "bytes_up": sum(row.get("bytes_up", 0) for row in rounds),
        "bytes_down": sum(row.get("bytes_down", 0) for row in rounds),
        "seconds": seconds[-1] if seconds else 0.0,
        "simulated_seconds": simulated[-1] if simulated else 0.0,
        "clients": _client_spread(clients),
        "participation": participation(rounds, clients),
        "quarantined": sum(len(row.get("quarantined", [])) for row in rounds),
        "skipped": sum(bool(row.get("skipped")) for row in rounds),
        "model_sha256": rounds[-1].get("model_sha256") if rounds else None,
    }


def _client_spread(clients: Sequence[Row]) -> Row:
    """Return the spread of the last client-side evaluation, with its round and number of clients."""
    rows = last_evaluation(clients)
    values = [row["metrics"]["accuracy"] for row in rows]
    return {"round": rows[0]["round"] if rows else None, "count": len(rows), **spread(values)}


def participation(rounds: Sequence[Row], clients: Sequence[Row]) -> Row:
    """Return how often clients took part: their training reply was used.

    Returns:
        ``population``, the most clients that were online in a round; ``clients``, how many took part at all;
        ``most``, how often the busiest did; ``jain``, the index over the population; ``histogram``, number of
        clients by how often they took part, 0 included, ascending.
    """
    times = Counter(row["name"] for row in clients if row.get("phase") == "train")
    population = max([row.get("population") or 0 for row in rounds] + [len(times)])
    counts = [*times.values(), *[0] * (population - len(times))]
    return {
        "population": population,
        "clients": len(times),
        "most": max(counts, default=0),
        "jain": spread(counts)["jain"],
        "histogram": {str(n): k for n, k in sorted(Counter(counts).items())},
    }


def last_evaluation(clients: Sequence[Row], phase: str = "evaluate", metric: str = "accuracy") -> list[Row]:
    """Return the rows of the last round in which clients reported this metric in this phase."""
    rows = [
        row
        for row in clients
        if row.get("phase") == phase and _number(row.get("metrics", {}).get(metric)) is not None
    ]
    last = max((row["round"] for row in rows), default=None)
    return [row for row in rows if row["round"] == last]


def _last(rounds: Sequence[Row], *keys: str) -> Row:
    """Return the last row that has any of the keys: a loss that went to NaN hides no accuracy."""
    return next(
        (row for row in reversed(rounds) if any(_number(row.get(key)) is not None for key in keys)), {}
    )


def _seconds(row: Row) -> float:
    seconds = row.get("seconds") or {}
    phases = (v for k, v in seconds.items() if k != "total")
    return float(seconds["total"] if seconds.get("total") is not None else sum(phases))


def _number(value: Any) -> float | None:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def headline(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the numbers a reader looks for first, as (label, text); what was not measured is left out."""
    run = [result.get(key) for key in ("algorithm", "dataset", "model") if result.get(key)]
    spread_ = result.get("clients") or {}
    reached = [f"{t}: {r:.1f}" for t, r in (result.get("rounds_to_target") or {}).items() if r is not None]
    best = result.get("best_accuracy")
    took = result.get("participation") or {}
    chosen = result.get("selection") not in (None, "uniform")
    rows = [
        ("Run", f"{', '.join(map(str, run))}, seed {result.get('seed')}" if run else ""),
        ("Rounds", f"{result.get('rounds', 0)}" + _more(result.get("skipped"), "skipped")),
        ("Accuracy, final", short(result.get("accuracy"))),
        ("Accuracy, best", f"{short(best)} (round {result.get('best_round')})" if best is not None else ""),
        ("Loss, final", short(result.get("loss"))),
        ("Client accuracy, final", short(result.get("client_accuracy"))),
        ("Train loss, final", short(result.get("train_loss"))),
        ("Rounds to accuracy", ", ".join(reached)),
        ("Sent to clients", human_bytes(result.get("bytes_down", 0))),
        ("Received from clients", human_bytes(result.get("bytes_up", 0))),
        ("Time", human_seconds(result.get("seconds", 0.0))),
        ("Time, simulated devices", human_seconds(result.get("simulated_seconds", 0.0)) if chosen else ""),
        ("Took part", _share(took)),
        ("Quarantined replies", str(result.get("quarantined", 0))),
    ]
    if spread_.get("mean") is not None:
        rows += [
            ("Accuracy over clients", f"mean {short(spread_['mean'])}, std {short(spread_['std'])}"),
            ("Worst tenth of clients", short(spread_["worst_decile"])),
            ("Jain index", short(spread_["jain"])),
        ]
    return [(label, text) for label, text in rows if text]


def _share(took: Mapping[str, Any]) -> str:
    if not took.get("clients"):
        return ""
    most = took["most"]
    return f"{took['clients']} of {took['population']} clients, at most {most} time{'s' if most > 1 else ''}"


def _more(count: object, what: str) -> str:
    return f" ({count} {what})" if count else ""


def short(value: float | None) -> str:
    """Return a number with three decimals, or three digits where those would say nothing; "" for None."""
    if value is None:
        return ""
    plain = value == 0 or 0.01 <= abs(value) < 1000
    return f"{value:.3f}" if plain else f"{value:.3g}"


def scale_bytes(largest: float) -> tuple[float, str]:
    """Return the decimal unit in which numbers up to this one are best read, as (bytes, name)."""
    units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")]
    return next(((size, name) for size, name in units if largest >= size), (1.0, "B"))


def human_bytes(count: float) -> str:
    """Return for example "12.3 MB"."""
    size, name = scale_bytes(count)
    return f"{count / size:.0f} B" if size == 1 else f"{count / size:.1f} {name}"


def human_seconds(seconds: float) -> str:
    """Return for example "0.42 s", "42.0 s" or "1:02:03"."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    return str(datetime.timedelta(seconds=round(seconds)))
