"""The plots of a run, for its report and for the monitor's page; `server_app.results.svg` draws them.

Rows are those of rounds.jsonl and clients.jsonl. Numbers that were not measured have no point.
"""

import base64
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from server_app.results.clients import ClientHistory, Scores, last_evaluation
from server_app.results.drift import turns
from server_app.results.headline import measured_in, short
from server_app.results.lines import Row, number
from server_app.results.summary import (
    MEASURED,
    gradient_variance,
    has_accuracy,
    measured_on,
    measures_of,
    scalars_of,
)
from server_app.results.svg import BLUE, GREEN, GREY, ORANGE, RED, SKY, Cells, Plot, Point, Series
from task.numerics.metrics import monotone, worst_decile
from task.units import human_bytes, human_seconds

NAMED_CLIENTS = 30  # more bars than this get no names
LONGEST_NAME = 24
MOST_CLIENTS = 400  # of more, each bar is the lowest of neighbours
MOST_BARS = 60  # more rounds than this are drawn as means of neighbours
MOST_PHASES = 14
MOST_READOUTS = 120
MOST_MEASURES = 8  # lines in the plot of further metrics
MOST_CLASSES = 40  # of a confusion table that is drawn

CENTRAL, OWN = "central test set", "clients' own test data"

Column = tuple[str, int, str | Callable[[Row], Any]]  # name, colour, key or value of a row


def by_round(
    rounds: Sequence[Row],
    target: float = 0.0,
    clients: ClientHistory | None = None,
    named_loss: str = "",
    keys: Mapping[str, Any] = MappingProxyType({}),
) -> list[Plot]:
    """Return accuracy, loss, time, traffic and replies by round.

    Accuracy has a line at `target`, unless it is 0, and what is in `clients`: a band over the clients, and
    the accuracy of their models after local training. `named_loss` is the run-config key ``loss``. With the
    run's `keys` accuracy and loss have a band behind the rounds in which a drift's new concept holds.
    """
    rows = sorted((row for row in rounds if number(row.get("round")) is not None), key=lambda r: r["round"])
    trained = [row for row in rows if row.get("asked") != 0]
    rated = any(has_accuracy(rows, on) for on in MEASURED)
    unit = named_loss or ("cross-entropy, nats" if rated else "of an example")
    loss = _curves(
        "loss", "Loss", unit, rows,
        [(CENTRAL, BLUE, "loss"), ("training", GREEN, "train_loss"), (OWN, ORANGE, "client_loss")],
        note="Mean over the examples. A round without a finite loss has no point.",
    )  # fmt: skip
    sent = [list(accumulate(_value(row, k) or 0.0 for row in trained)) for k in ("bytes_down", "bytes_up")]
    totals = [{"round": row["round"], "down": d, "up": u} for row, d, u in zip(trained, *sent, strict=True)]
    traffic = _curves(
        "bytes", "Traffic", "total so far", totals,
        [("to clients", BLUE, "down"), ("from clients", ORANGE, "up")], human_bytes,
        axis=lambda y, highest: human_bytes(y).replace(".0 ", " "), zero=True,
        note="All messages as serialised, added up over the rounds.",
    )  # fmt: skip
    replies = _curves(
        "replies", "Replies", "clients in a round", trained,
        [
            ("asked", BLUE, "asked"), ("answered", ORANGE, "answered"),
            ("quarantined", RED, lambda r: r.get("quarantined_count", len(r.get("quarantined") or []))),
        ],
        lambda y: f"{y:,.0f}", zero=True, whole=True,
        note="A quarantined reply is dropped before it reaches the model.",
    )  # fmt: skip
    seconds = _seconds([row for row in rows if row.get("seconds")])
    plots = [_accuracy(rows, target, clients or ClientHistory()), loss, seconds, traffic, replies]
    measures, drifted = _further(rows), turns(keys, int(rows[-1]["round"]) if rows else 0)
    plots[:2] = [_with_drift(plot, drifted) for plot in plots[:2]]
    further = [plot for plot in (measures, _gradients(rows)) if plot.series]
    return plots[:2] + further + plots[2:]


def _with_drift(plot: Plot, drifted: Sequence[tuple[int, int]]) -> Plot:
    """Return a plot with a band behind the rounds in which the new concept holds."""
    values = [point.y for one in plot.series for point in one.points]
    if not drifted or not values:
        return plot
    high, low = max(values), min(values)
    bands = [
        Series("" if i else "new concept", GREY, [Point(a - 0.5, high, low), Point(b, high, low)], "band")
        for i, (a, b) in enumerate(drifted)
    ]
    return replace(plot, series=[*bands, *plot.series])


def over_clients(lines: Sequence[Row], participation: Row) -> list[Plot]:
    """Return how the clients differ in the last round that measured them, and how often each took part."""
    return [_clients(lines), _participation(participation), *ala_weights(lines)]


def ala_weights(lines: Sequence[Row]) -> list[Plot]:
    """Return how much of the global model each client took in its last round; nothing if it was not sent."""
    told = (row for row in lines if number((row.get("metrics") or {}).get("ala-weight")) is not None)
    last = {row["name"]: row for row in told}
    rows = sorted(last.values(), key=lambda row: (row["metrics"]["ala-weight"], row["name"]))
    if not rows:
        return []
    values = [float(row["metrics"]["ala-weight"]) for row in rows]
    mean = float(np.mean(values))
    rule = Series(f"mean {short(mean)}", GREEN, [Point(0, mean)], "rule")
    return [
        Plot(
            "ala", "Weights of ALA", "mean of W",
            "1: a client began from the global model's last layers; 0: from its own.",
            [Series("", SKY, _bars(values), "bars"), rule],
            x=f"{len(values)} clients, lowest first",
            **_named([row["name"] for row in rows], values), zero=True, within=(0.0, 1.0),
        )
    ]  # fmt: skip


def contributions(of: Mapping[str, float]) -> list[Plot]:
    """Return what each client contributed, highest first; nothing if that was not measured."""
    if not of:
        return []
    names = sorted(of, key=lambda name: (-of[name], name))
    return [
        Plot(
            "contribution", "Contribution of clients", "accuracy, summed over rounds",
            "What each client added to the models of its rounds, on the server's test set.",
            [Series("", SKY, [Point(i, of[name], 0.0, i) for i, name in enumerate(names)], "bars")],
            x=f"{len(names)} clients, highest first",
            **_named(names, [of[name] for name in names]), zero=True,
        )
    ]  # fmt: skip


def class_names(card: Mapping[str, Any], count: int) -> list[str]:
    """Return the names of the classes by the data card of config.json; their numbers where it has none."""
    known = list(card.get("names") or (card.get("classes") or {}).get("listed") or ())
    return known if len(known) == count else [str(c) for c in range(count)]


def confusion(rounds: Sequence[Row], card: Mapping[str, Any] = MappingProxyType({})) -> list[Plot]:
    """Return the run's last confusion table, on the server's data or else on the clients', if it has one."""
    prefix, where = _headline(rounds)
    table = measures_of(rounds, prefix).get("confusion")
    if not table:
        return []
    title, unit = "Confusion", "test examples"
    if len(table) > MOST_CLASSES:
        return [Plot("confusion", title, unit, f"The table of {len(table)} classes is in result.json.", [])]
    names = class_names(card, len(table))
    note = (
        f"A row is a class, a column what was predicted. On the {where}, in the last round that was measured."
    )
    return [Plot("confusion", title, unit, note, [], x="predicted class", cells=Cells(names, names, table))]


def cross_evaluation(found: Mapping[str, Any]) -> list[Plot]:
    """Return the map of the clients' own models, each tested at every client that could, if there is one."""
    figure = measured_in(found)
    rows = list(zip(found.get("models", ()), found.get(figure, ()), strict=True))
    measured = [
        j for j, _ in enumerate(found.get("clients", ())) if all(row[j] is not None for _, row in rows)
    ]
    if not measured:
        return []
    note = "A row is a client's own model, a column the client that tested it on its own data."
    names = [found["clients"][j] for j in measured]
    values = [[round(row[j], 4) for j in measured] for _, row in rows]
    cells = Cells([model for model, _ in rows], names, values)
    return [Plot("cross-evaluation", "Cross-evaluation", figure, note, [], x="tested at", cells=cells)]


def by_class(rounds: Sequence[Row], card: Mapping[str, Any] = MappingProxyType({})) -> Row | None:
    """Return the per-class metrics of where the headline was measured, as a table of the page; None without.

    A row has the name or number of the class, its examples if there is a confusion table, and a value of each
    metric.
    """
    prefix, where = _headline(rounds)
    found = measures_of(rounds, prefix)
    metrics = {name.removesuffix("-per-class"): v for name, v in found.items() if name.endswith("-per-class")}
    if not metrics:
        return None
    examples = {"examples": [sum(row) for row in found["confusion"]]} if "confusion" in found else {}
    columns = examples | metrics
    values = list(zip(*columns.values(), strict=True))
    rows = [[name, *row] for name, row in zip(class_names(card, len(values)), values, strict=True)]
    return {
        "caption": f"On the {where}, in the last round that was measured",
        "head": ["class", *columns],
        "rows": rows,
    }


def _headline(rounds: Sequence[Row]) -> tuple[str, str]:
    """Return the prefix of the metrics' keys where the headline was measured, and where that is."""
    return ("", CENTRAL) if (measured_on(rounds) or "server") == "server" else ("client_", OWN)


def _further(rows: Sequence[Row]) -> Plot:
    """Return the run's further metrics that are numbers, on the server's data or else on the clients'."""
    prefix, where = _headline(rows)
    names = dict.fromkeys(name for row in rows for name in scalars_of(measures_of([row], prefix)))
    columns: list[Column] = [(n, k, f"{prefix}{n}") for k, n in enumerate(list(names)[:MOST_MEASURES])]
    return _curves("metrics", "Further metrics", where, rows, columns, note=f"On the {where}.")


def _gradients(rows: Sequence[Row]) -> Plot:
    """Return how unlike the clients' gradients were, where the run measured it."""
    return _curves(
        "gradients", "Gradient variance", "mean square distance from their mean", rows,
        [("all clients", BLUE, gradient_variance)],
        note="How unlike the clients' gradients of the model are: FedProx's measure; 0 = all are alike.",
    )  # fmt: skip


def labels(card: Row) -> list[Plot]:
    """Return how many training examples of each class clients have, from the data card of config.json."""
    found = card.get("labels")
    if not found:
        return []
    clients, counts = found["clients"], found["counts"]
    rest = (
        f" The first {len(clients)} of {card['clients']:,} clients." if len(clients) < card["clients"] else ""
    )
    return [
        Plot(
            "labels", "Labels", "training examples by client and class",
            f"The stronger the colour, the more examples.{rest}", [],
            x="class", cells=Cells(clients, class_names(card, len(counts[0])), counts),
        )
    ]  # fmt: skip


def _accuracy(rows: Sequence[Row], target: float, clients: ClientHistory) -> Plot:
    def of(scores: Mapping[int, Scores], value: Callable[[Scores], float]) -> Callable[[Row], float | None]:
        return lambda row: value(scores[row["round"]]) if row["round"] in scores else None

    def tenth(percent: int) -> Callable[[Row], float | None]:
        return of(clients.before, lambda scores: float(np.percentile(scores.accuracy, percent)))

    after = of(clients.after, lambda scores: scores.weighted_mean)
    plot = _curves(
        "accuracy", "Accuracy", "share of examples", rows,
        [
            (CENTRAL, BLUE, "accuracy"), (OWN, ORANGE, "client_accuracy"),
            ("clients, after local training", GREEN, after),
        ],
        within=(0.0, 1.0),
        note="Mean over the examples. Rounds to a target are counted on the best accuracy so far.",
    )  # fmt: skip
    if not plot.series:
        return plot
    behind, note = list[Series](), plot.note
    low, high = _line(rows, tenth(10)), _line(rows, tenth(90))
    if low:
        band = [Point(a.x, b.y, a.y) for a, b in zip(low, high, strict=True)]
        behind.append(Series("clients, 10 to 90 %", ORANGE, band, "band"))
        note += " The band leaves out the lowest and the highest tenth of the clients."
    if measured := _line(rows, MEASURED[measured_on(rows) or "server"][0]):
        best = monotone([point.y for point in measured])
        line = [Point(point.x, y) for point, y in zip(measured, best, strict=True)]
        behind.append(Series("best so far", GREY, line))
    if target > 0:
        behind.append(Series(f"target {target:g}", RED, [Point(rows[0]["round"], target)], "rule"))
    return replace(plot, note=note, series=[*behind, *plot.series])


def _curves(
    name: str,
    title: str,
    unit: str,
    rows: Sequence[Row],
    columns: Sequence[Column],
    say: Callable[[float], str] = short,
    *,
    note: str,
    **more: Any,
) -> Plot:
    """Return a line by round for each column that has any number."""
    series = [Series(column, colour, _line(rows, value)) for column, colour, value in columns]
    series = [one for one in series if one.points]
    if not series:
        return Plot(name, title, unit, f"{title}: nothing was measured.", [])
    return Plot(name, title, unit, note, series, readouts=_readouts(rows, columns, say), **more)


def _phases(seconds: Row) -> Row:
    """Return a round's seconds by phase in words; before version 1.0 names had hyphens."""
    return {name.replace("_", " ").replace("-", " "): value for name, value in seconds.items()}


def _seconds(rows: Sequence[Row]) -> Plot:
    rows = [{**_phases(row["seconds"]), "round": row["round"]} for row in rows]
    known = dict.fromkeys(phase for row in rows for phase in row if phase not in ("round", "total"))
    columns: list[Column] = [(phase, k, phase) for k, phase in enumerate(list(known)[:MOST_PHASES])]
    if not columns:
        return Plot("seconds", "Time", "", "Time: nothing was measured.", [])
    group = -(-len(rows) // MOST_BARS)
    bars = [rows[i : i + group] for i in range(0, len(rows), group)]
    base, series = [0.0] * len(bars), []
    for phase, colour, value in columns:
        means = [sum(_value(row, value) or 0.0 for row in bar) / len(bar) for bar in bars]
        points = [
            Point(bar[0]["round"], low + mean, low, bar[-1]["round"])
            for bar, mean, low in zip(bars, means, base, strict=True)
        ]
        series.append(Series(phase, colour, points, "bars"))
        base = [point.y for point in points]
    return Plot(
        "seconds", "Time", "of a round, by phase", "The server's clock, phase by phase.", series,
        x="round" if group == 1 else f"round; a bar is the mean of {group}",
        axis=lambda y, highest: f"{y * 1000:.6g} ms" if highest < 0.5 else f"{y:.6g} s",
        readouts=_readouts(rows, columns, human_seconds), zero=True,
    )  # fmt: skip


def _readouts(
    rows: Sequence[Row], columns: Sequence[Column], say: Callable[[float], str]
) -> list[tuple[float, str]]:
    """Return each row in words, of many rows some."""
    found = []
    for row in _some(rows):
        values = [(name, _value(row, value)) for name, _, value in columns]
        words = " · ".join(f"{name} {say(y)}" for name, y in values if y is not None)
        found.append((row["round"], f"round {row['round']}: {words or 'not measured'}"))
    return found


def _clients(lines: Sequence[Row]) -> Plot:
    """Return the clients' accuracies in ascending order, else their training losses."""
    key, what, rows = "accuracy", "own test accuracy", last_evaluation(lines)
    if not rows:
        key, what = "train-loss", "training loss (nats)"
        rows = last_evaluation(lines, "train", key)
    if not rows:
        return Plot("clients", "Clients", "", "No client reported numbers of its own.", [])
    rows = sorted(rows, key=lambda row: (row["metrics"][key], row["name"]))
    values = [float(row["metrics"][key]) for row in rows]
    mean = float(np.mean(values))
    rules = [Series(f"unweighted mean {short(mean)}", GREEN, [Point(0, mean)], "rule")]
    if key == "accuracy":
        worst = worst_decile(values)
        rules.append(Series(f"mean of the worst 10 % {short(worst)}", RED, [Point(0, worst)], "rule"))
    return Plot(
        "clients", f"Clients in round {rows[0]['round']}", what,
        f"One bar per client: {what}.",
        [Series("", SKY, _bars(values), "bars"), *rules],
        x=f"{len(values)} clients, lowest first",
        **_named([row["name"] for row in rows], values), zero=True,
        within=(0.0, 1.0) if key == "accuracy" else (0.0, math.inf),
    )  # fmt: skip


def _bars(values: Sequence[float]) -> list[Point]:
    """Return a bar for each client, or of many for each few that stand side by side."""
    step = -(-len(values) // MOST_CLIENTS)
    return [Point(i, values[i], 0.0, min(i + step, len(values)) - 1) for i in range(0, len(values), step)]


def _named(names: Sequence[str], values: Sequence[float]) -> dict[str, Any]:
    """Return what a plot with a bar for each client says of them: in readouts, and if they are few below."""
    cut = [name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…" for name in names]
    readouts = [(i, f"{names[i]}: {short(values[i])}") for i in _some(range(len(names)))]
    return {"readouts": readouts, "names": cut if len(names) <= NAMED_CLIENTS else ()}


def _participation(took: Row) -> Plot:
    if not took["clients"]:
        return Plot("participation", "Participation", "", "No client has trained.", [])
    of, jain = f"{took['clients']} of {took['population']} clients", short(took["jain"])
    bars = [(int(times), clients) for times, clients in took["histogram"].items()]
    return Plot(
        "participation", "Participation", f"clients, of {took['population']}",
        f"{of} took part; Jain index {jain}.",
        [Series("", SKY, [Point(times, clients) for times, clients in bars], "bars")],
        x="rounds in which a client took part",
        readouts=[(times, f"{clients:,} took part in {times:,} rounds") for times, clients in _some(bars)],
        zero=True, whole=True,
    )  # fmt: skip


def _some(items: Sequence[Any]) -> Sequence[Any]:
    """Return what the pointer can tell apart: at most `MOST_READOUTS` of many, the last among them."""
    return items[:: -max(1, -(-len(items) // MOST_READOUTS))][::-1]


def _line(rows: Sequence[Row], value: str | Callable[[Row], Any]) -> list[Point]:
    found = [(row["round"], _value(row, value)) for row in rows]
    return [Point(at, y) for at, y in found if y is not None]


def _value(row: Row, value: str | Callable[[Row], Any]) -> float | None:
    return number(row.get(value) if isinstance(value, str) else value(row))


def samples(picture: Path) -> list[Plot]:
    """Return the picture that `server_app.results.samples` has written, if it has."""
    if not picture.exists():
        return []
    data = picture.read_bytes()
    width, height = struct.unpack(">II", data[16:24])  # of a PNG's first chunk
    note = (
        "Test images, their reconstructions and new ones from the prior, for each condition a row; "
        "without a test set, new ones only."
    )
    return [
        Plot(
            "samples", "Samples", "of the final global model", note, (),
            picture="data:image/png;base64," + base64.b64encode(data).decode(), size=(width, height),
        )
    ]  # fmt: skip
