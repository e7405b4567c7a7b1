"""The plots of a run, for its report and for the monitor's page; `server_app.results.svg` draws them.

Rows are those of rounds.jsonl and clients.jsonl. Numbers that were not measured have no point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from server_app.results.summary import (
    MEASURED,
    Clients,
    Row,
    Scores,
    human_bytes,
    human_seconds,
    last_evaluation,
    measured_on,
    short,
)
from server_app.results.svg import BLUE, GREEN, GREY, ORANGE, RED, SKY, Plot, Point, Series
from task.numerics.metrics import monotone, worst_decile

NAMED_CLIENTS = 30  # more bars than this get no names
LONGEST_NAME = 24
MOST_BARS = 60  # more rounds than this are drawn as means of neighbours
MOST_PHASES = 14
MOST_READOUTS = 120

CENTRAL, OWN = "central test set", "clients' own test data"

Column = tuple[str, int, Callable[[Row], Any]]  # name, colour, value of a row


def by_round(rounds: Sequence[Row], target: float = 0.0, clients: Clients | None = None) -> list[Plot]:
    """Return accuracy, loss, time, traffic and replies by round.

    Args:
        rounds: Rows of rounds.jsonl.
        target: The run's target-accuracy; 0 = none.
        clients: What the rows of clients.jsonl amount to, for the clients' band and their models after
            local training.
    """
    rows = sorted((row for row in rounds if _finite(row.get("round")) is not None), key=lambda r: r["round"])
    trained = [row for row in rows if row.get("asked") != 0]
    loss = _curves(
        "loss", "Loss", "cross-entropy, nats", rows,
        [
            (CENTRAL, BLUE, _key("loss")), ("training", GREEN, _key("train_loss")),
            (OWN, ORANGE, _key("client_loss")),
        ],
        note="Mean over the examples. A round without a finite loss has no point.",
    )  # fmt: skip
    sent = {
        key: list(accumulate(_finite(row.get(key)) or 0.0 for row in trained))
        for key in ("bytes_down", "bytes_up")
    }
    totals = [
        {"round": row["round"], "down": down, "up": up}
        for row, down, up in zip(trained, sent["bytes_down"], sent["bytes_up"], strict=True)
    ]
    traffic = _curves(
        "bytes", "Traffic", "total so far", totals,
        [("to clients", BLUE, _key("down")), ("from clients", ORANGE, _key("up"))],
        human_bytes, lambda y, highest: human_bytes(y).replace(".0 ", " "), zero=True,
        note="All messages as serialised, added up over the rounds.",
    )  # fmt: skip
    replies = _curves(
        "replies", "Replies", "clients in a round", trained,
        [
            ("asked", BLUE, _key("asked")), ("answered", ORANGE, _key("answered")),
            ("quarantined", RED, lambda r: r.get("quarantined_count", len(r.get("quarantined") or []))),
        ],
        lambda y: f"{y:,.0f}", zero=True,
        note="A quarantined reply is dropped before it reaches the model.",
    )  # fmt: skip
    return [_accuracy(rows, target, clients or Clients()), loss, _seconds(rows), traffic, replies]


def over_clients(lines: Sequence[Row], participation: Row) -> list[Plot]:
    """Return how the clients differ in the last round that measured them, and how often each took part.

    Args:
        lines: Rows of clients.jsonl.
        participation: As from `server_app.results.summary.participation`.
    """
    return [_clients(lines), _participation(participation)]


def _accuracy(rows: Sequence[Row], target: float, clients: Clients) -> Plot:
    def of(scores: Mapping[int, Scores], number: Callable[[Scores], float]) -> Callable[[Row], float | None]:
        return lambda row: number(scores[row["round"]]) if row["round"] in scores else None

    def share(percent: int) -> Callable[[Row], float | None]:
        return of(clients.before, lambda scores: float(np.percentile(scores.accuracy, percent)))

    after = of(clients.after, lambda scores: scores.weighted_mean)
    plot = _curves(
        "accuracy", "Accuracy", "share of examples", rows,
        [
            (CENTRAL, BLUE, _key("accuracy")), (OWN, ORANGE, _key("client_accuracy")),
            ("clients, after local training", GREEN, after),
        ],
        note="Mean over the examples. Rounds to a target are counted on the best accuracy so far.",
    )  # fmt: skip
    if not plot.series:
        return plot
    behind, note = list[Series](), plot.note
    if band := [
        Point(low.x, high.y, low.y)
        for low, high in zip(_line(rows, share(10)), _line(rows, share(90)), strict=True)
    ]:
        behind.append(Series("clients, 10 to 90 %", ORANGE, band, "band"))
        note += " The band leaves out the lowest and the highest tenth of the clients."
    if measured := _line(rows, _key(MEASURED[measured_on(rows) or "server"][0])):
        best = monotone([point.y for point in measured])
        line = [Point(point.x, y) for point, y in zip(measured, best, strict=True)]
        behind.append(Series("best so far", GREY, line))
    rules = [(f"target {target:g}", RED, target)] if target > 0 else []
    return replace(plot, note=note, series=[*behind, *plot.series], rules=rules)


def _curves(
    name: str,
    title: str,
    unit: str,
    rows: Sequence[Row],
    columns: Sequence[Column],
    say: Callable[[float], str] = short,
    axis: Callable[[float, float], str] = lambda y, highest: f"{y:.6g}",
    *,
    note: str,
    zero: bool = False,
) -> Plot:
    """Return a line by round for each column that has any number."""
    series = [Series(column, colour, _line(rows, value)) for column, colour, value in columns]
    series = [one for one in series if one.points]
    readouts = []
    for row in _some(rows) if series else []:
        found = [(column, _finite(value(row))) for column, _, value in columns]
        words = " · ".join(f"{column} {say(y)}" for column, y in found if y is not None)
        readouts.append((row["round"], f"round {row['round']}: {words or 'not measured'}"))
    note = note if series else f"{title}: nothing was measured."
    return Plot(name, title, unit, note, series, axis=axis, readouts=readouts, zero=zero)


def _seconds(rows: Sequence[Row]) -> Plot:
    rows = [row for row in rows if row.get("seconds")]
    known = dict.fromkeys(phase for row in rows for phase in row["seconds"] if phase != "total")
    phases = list(known)[:MOST_PHASES]
    group = max(1, -(-len(rows) // MOST_BARS))
    bars = [rows[i : i + group] for i in range(0, len(rows), group)]
    base = [0.0] * len(bars)
    series = []
    for colour, phase in enumerate(phases):
        top = [
            b + sum(_finite(row["seconds"].get(phase)) or 0.0 for row in bar) / len(bar)
            for b, bar in zip(base, bars, strict=True)
        ]
        points = [
            Point(bar[0]["round"], y, b, bar[-1]["round"]) for bar, y, b in zip(bars, top, base, strict=True)
        ]
        series.append(Series(phase, colour, points, "bars"))
        base = top
    readouts = []
    for row in _some(rows):
        spent = [(phase, _finite(row["seconds"].get(phase))) for phase in phases]
        words = " · ".join(f"{phase} {_time(s)}" for phase, s in spent if s is not None)
        readouts.append((row["round"], f"round {row['round']}: {words}"))
    return Plot(
        "seconds", "Time", "of a round, by phase", "" if series else "Time: nothing was measured.", series,
        x="round" if group == 1 else f"round; a bar is the mean of {group}",
        axis=lambda y, highest: f"{y * 1000:.6g} ms" if highest < 0.5 else f"{y:.6g} s",
        readouts=readouts, zero=True,
    )  # fmt: skip


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 0.995 else human_seconds(seconds)


def _clients(lines: Sequence[Row]) -> Plot:
    """Return the clients' accuracies in ascending order, else their training losses."""
    key, what, rows = "accuracy", "accuracy (own test data)", last_evaluation(lines)
    if not rows:
        key, what = "train-loss", "training loss (nats)"
        rows = last_evaluation(lines, "train", key)
    if not rows:
        return Plot("clients", "Clients", "", "No client reported numbers of its own.", [])
    rows = sorted(rows, key=lambda row: (row["metrics"][key], row["name"]))
    values = [float(row["metrics"][key]) for row in rows]
    mean = float(np.mean(values))
    rules = [(f"mean {short(mean)}", BLUE, mean)]
    if key == "accuracy":
        worst = worst_decile(values)
        rules.append((f"worst tenth, mean {short(worst)}", RED, worst))
    names = [row["name"] for row in rows]
    cut = [name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…" for name in names]
    return Plot(
        "clients", f"Clients in round {rows[0]['round']}", what,
        f"One bar per client: {what}. The mean is unweighted.",
        [Series("", SKY, [Point(i, y) for i, y in enumerate(values)], "bars")], rules,
        x=f"{len(values)} clients, lowest first",
        readouts=[(i, f"{names[i]}: {short(values[i])}") for i in _some(range(len(names)))],
        names=cut if len(values) <= NAMED_CLIENTS else (), zero=True,
    )  # fmt: skip


def _participation(took: Row) -> Plot:
    if not took["clients"]:
        return Plot("participation", "Participation", "", "No client has trained.", [])
    of, jain = f"{took['clients']} of {took['population']} clients", short(took["jain"])
    bars = [(int(times), number) for times, number in took["histogram"].items()]
    return Plot(
        "participation", "Participation", f"clients, of {took['population']}",
        f"{of} took part; Jain index {jain}.",
        [Series("", SKY, [Point(times, number) for times, number in bars], "bars")],
        x="rounds in which a client took part",
        readouts=[(times, f"{number:,} took part in {times:,} rounds") for times, number in _some(bars)],
        zero=True,
    )  # fmt: skip


def _some(items: Sequence[Any]) -> Sequence[Any]:
    """Return what the pointer can tell apart: at most `MOST_READOUTS` of many, the last among them."""
    return items[:: -max(1, -(-len(items) // MOST_READOUTS))][::-1]


def _key(key: str) -> Callable[[Row], Any]:
    return lambda row: row.get(key)


def _line(rows: Sequence[Row], value: Callable[[Row], Any]) -> list[Point]:
    found = [(row["round"], _finite(value(row))) for row in rows]
    return [Point(at, y) for at, y in found if y is not None]


def _finite(value: Any) -> float | None:
    """Return a number that can be drawn, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        return None
    return float(value)
