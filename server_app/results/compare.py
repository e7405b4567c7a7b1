"""Several runs side by side: a table and one plot, for `bouquet compare`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from server_app.results import people
from server_app.results.groups import Groups, Run, groups
from server_app.results.lines import Row
from server_app.results.summary import (
    MEASURED,
    gradient_variance,
    has_accuracy,
    has_measure,
    measured_on,
    scalars_of,
    seconds_of,
    summarise,
)
from task.catalogue.algorithms import ALGORITHMS
from task.errors import ConfigError
from task.numerics.metrics import mean_and_std
from task.population import some
from task.storage.files import make_folder
from task.units import scale_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Value = Callable[[Row], float | None]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# The x axes of plots: label, and a round's contribution.
XS: dict[str, tuple[str, Callable[[Row], float]]] = {
    "rounds": ("round", lambda row: 0.0),  # by its number
    "bytes": ("sent to and from clients", lambda row: row.get("bytes_down", 0) + row.get("bytes_up", 0)),
    "bytes-up": ("sent by clients", lambda row: row.get("bytes_up", 0)),
    "seconds": ("seconds", seconds_of),
    "simulated-seconds": ("simulated seconds", lambda row: row.get("simulated_seconds") or 0.0),
}
ASYNCHRONOUS = frozenset(name for name, entry in ALGORITHMS.items() if entry.asynchronous)
DECADE = 10.0  # curves whose ends are further apart than this have a logarithmic axis
DASHES = ("-", "--", ":")  # further groups have the same colours again
LINE, LETTER = 0.6, 0.085  # inches of a legend: a line with its margins, and about a letter

WHERE = {
    "server": "on the server's test set",
    "clients": "on the clients' own test data before local training, mean over the examples",
}


def choose(curves: Groups, on: str | None = None) -> tuple[str, list[str]]:
    """Return whose evaluations are compared, "server" or "clients", and remarks on it.

    Unless `on` says it, these are the headline of all runs, or the clients' where the headlines differ.

    Raises:
        ConfigError: A run lacks that evaluation.
    """
    runs = [run for group in curves.values() for run in group]
    headlines = {str(run.path): measured_on(run.rounds) for run in runs}
    by_place = {headline: path for path, headline in reversed(headlines.items())}
    if None in by_place:
        raise ConfigError(
            f"compare: {by_place[None]}: expected rounds with an accuracy; got {MEASURED['server'][0]} and "
            f"{MEASURED['clients'][0]} null in all of rounds.jsonl: leave this run out, or run it again "
            f"with evaluate-every or fraction-evaluate > 0"
        )
    wanted = on or ("server" if list(by_place) == ["server"] else "clients")
    lacking = next((run.path for run in runs if not has_measure(run.rounds, wanted)), None)
    if lacking and on:
        other = "clients" if on == "server" else "server"
        raise ConfigError(
            f"compare --on {on}: {lacking}: expected rounds with {MEASURED[on][0]}; got only "
            f"{MEASURED[other][0]}: choose --on {other}, or leave this run out"
        )
    if lacking:
        raise ConfigError(
            f"compare: expected accuracies measured at one place; {by_place['clients']} has only the "
            f"clients' and {lacking} only the server's: run the latter with fraction-evaluate > 0, or leave "
            "one out"
        )
    mixed = len(by_place) > 1 and not on
    remark = "Some runs have no accuracy on the server's test set: the clients' are compared."
    return wanted, [remark] * mixed


class Column(NamedTuple):
    """A column of numbers: its header, where in a run's summary they are, and how they are written."""

    header: str
    value: Callable[[Row], float | None]
    scale: float = 1.0
    decimals: int = 3


def table(curves: Groups, on: str, target: float) -> tuple[list[str], list[list[str]], list[str]]:
    """Return header, a line per group, and remarks; a column that is empty for all is left out.

    Rounds, bytes and seconds are counted to the accuracy `target`; `on` is as from `choose`.
    """
    found = {
        name: [summarise(run.rounds, run.clients, run.config, [target], on) for run in runs]
        for name, runs in curves.items()
    }
    every = [result for results in found.values() for result in results]
    percent, nats = f"{100 * target:g} %", any(result["accuracy"] is not None for result in every)
    columns = [*_measured(every, on, nats), *_to_target(every, str(float(target)), percent)]
    columns = [column for column in columns if any(column.value(result) is not None for result in every)]
    lines = [
        [name, str(len(results)), _rounds(results), *(_cell(column, results) for column in columns)]
        for name, results in found.items()
    ]
    remarks = [f"{'Accuracy and loss' if nats else 'Loss'}: {WHERE[on]}."]
    if len(every) > len(found):
        remarks.append("± is the sample standard deviation over seeds.")
    if nats and not any(result["bytes_to_target"][str(float(target))] is not None for result in every):
        remarks.append(f"No run reached {percent}; --target sets another accuracy.")
    return ["run", "seeds", "rounds", *(c.header for c in columns)], lines, remarks + _unlike(curves, on)


def _measured(every: Sequence[Row], on: str, nats: bool) -> list[Column]:
    """Return the columns of what was measured of the models."""
    names = dict.fromkeys(name for r in every for name in scalars_of(r[_measures(on)]))
    return [
        Column("final accuracy (%)", lambda r: r["accuracy"], 100, 2),
        Column("best accuracy (%)", lambda r: r["best_accuracy"], 100, 2),
        Column("final loss (nats)" if nats else "final loss", lambda r: r["loss"]),
        *([] if nats else [Column("lowest loss", lambda r: r["best_loss"])]),
        *(Column(name, _measure(name, on)) for name in names),
        *(
            Column(header, partial(people.figure_of, where=where, by=by, name=name), *scale)
            for header, where, by, name in people.columns_of(every)
            for scale in [(100, 2) if name == "worst_accuracy" else (1, 3)]
        ),
        Column("unweighted mean over clients (%)", lambda r: r["clients"]["mean"], 100, 2),
        Column("mean of the worst 10 % of clients (%)", lambda r: r["clients"]["worst_decile"], 100, 2),
        Column("Jain index", lambda r: r["clients"]["jain"]),
        Column("after local training, weighted (%)", lambda r: r["clients_after"]["weighted_mean"], 100, 2),
    ]


def _to_target(every: Sequence[Row], goal: str, percent: str) -> list[Column]:
    """Return the columns of what the runs have cost up to an accuracy, and of the simulated time."""
    policies = {result["selection"] for result in every} - {None, "uniform"}  # who trains is what differs
    waits_not = {result["algorithm"] for result in every} & ASYNCHRONOUS
    reached = [m for result in every if (m := result["bytes_to_target"][goal])]
    size, unit = scale_bytes(max(reached, default=1.0))
    least = min(reached, default=size) / size
    decimals = max(1, math.ceil(1 - math.log10(least)))  # two digits of the smallest
    return [
        Column(f"rounds to {percent}", lambda r: r["rounds_to_target"][goal], 1, 1),
        Column(f"{unit} to {percent}", lambda r: r["bytes_to_target"][goal], 1 / size, decimals),
        Column(f"{unit} down to {percent}", lambda r: r["bytes_down_to_target"][goal], 1 / size, decimals),
        Column(f"{unit} up to {percent}", lambda r: r["bytes_up_to_target"][goal], 1 / size, decimals),
        Column(f"seconds to {percent}", lambda r: r["seconds_to_target"][goal], 1, 1),
        Column(
            f"simulated seconds to {percent}",
            lambda r: r["simulated_seconds_to_target"][goal] if waits_not else None,
            1,
            0,
        ),
        Column(
            "simulated seconds", lambda r: r["simulated_seconds"] if policies or waits_not else None, 1, 0
        ),
    ]


def _measures(on: str) -> str:
    return "measures" if on == "server" else "client_measures"


def _measure(name: str, on: str) -> Callable[[Row], float | None]:
    """Return what gives a further metric of a run's summary."""
    return lambda result: scalars_of(result[_measures(on)]).get(name)


def _rounds(results: Sequence[Row]) -> str:
    numbers = sorted({result["rounds"] for result in results})
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _cell(column: Column, results: Sequence[Row]) -> str:
    """Return mean and deviation; if only some seeds have a number, how many: their mean would flatter."""
    values = [value * column.scale for r in results if (value := column.value(r)) is not None]
    if not values:
        return "-"
    if len(values) < len(results):
        return f"{len(values)} of {len(results)} seeds"
    mean, std = mean_and_std(values)
    text = f"{mean:.{column.decimals}f}"
    return text if std is None else f"{text} ± {std:.{column.decimals}f}"


def _unlike(curves: Groups, on: str) -> list[str]:
    """Return remarks on groups that are not fair to compare."""
    found = []
    for name, runs in curves.items():
        seeds = [run.seed for run in runs]
        if len(set(seeds)) < len(seeds):
            found.append(f"Beware: two runs of {name} have the same seed.")
    machines = {run.machine for runs in curves.values() for run in runs} - {""}
    if len(machines) > 1:
        found.append(
            f"Computed by {' and '.join(sorted(machines))}: runs differ by that too, even with one seed; "
            "portable = true gives the same bits on all."
        )
    elif any(run.config.get("portable") for runs in curves.values() for run in runs):
        found.append(f"Computed by {machines.pop()}.")
    last = sorted({run.rounds[-1]["round"] for runs in curves.values() for run in runs})
    if len(last) > 1:
        found.append(
            f"Beware: the runs have {last[0]} to {last[-1]} rounds, and final is the last of each; "
            f"--last-round {last[0]} compares all at the same round."
        )
    every = [run for runs in curves.values() for run in runs]
    found += [f"Beware: {run.path.name} left out {some(run.left_out)}." for run in every if run.left_out]
    return found + _tested_apart(every if on == "clients" else [])


def _tested_apart(runs: Sequence[Run]) -> list[str]:
    """Return a remark on runs whose last models were tested on more clients in one than in another."""
    by_count: dict[int, list[str]] = {}
    for run in runs:
        if run.clients.tested:
            by_count.setdefault(run.clients.tested[max(run.clients.tested)], []).append(run.path.name)
    said = ", ".join(f"{n} in {some(names)}" for n, names in sorted(by_count.items()))
    return [f"Beware: the last evaluations were on different numbers of clients: {said}."] * (
        len(by_count) > 1
    )


def terminal_tables(header: Sequence[str], lines: Sequence[Sequence[str]], width: int) -> list[Table]:
    """Return the table, in as many parts below each other as a terminal of this width needs."""
    columns = list(zip(header, *lines, strict=True))
    # A header is broken between words, a number never; a long name of a run is.
    widths = [max(*map(len, head.split()), *map(len, cells)) for head, *cells in columns]
    widths[0] = min(widths[0], 30)
    parts, room = list[list[int]](), 0
    for i, wide in enumerate(widths[1:], start=1):
        if wide + 2 > room:
            parts.append([0])
            room = width - widths[0] - 2
        parts[-1].append(i)
        room -= wide + 2
    tables = []
    for part in parts:
        out = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        for i in part:
            out.add_column(
                Text(header[i]), justify="right" if i else "left", width=widths[i], overflow="fold"
            )
        for line in lines:
            out.add_row(*(Text(line[i]) for i in part))
        tables.append(out)
    return tables


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]], remarks: Sequence[str]) -> str:
    """Return the table as Markdown, the remarks below it."""
    rows = [header, ["---", *["---:"] * (len(header) - 1)], *lines]
    text = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([*text, "", " ".join(remarks)])


def plot(curves: Groups, on: str, path: Path, x: str = "rounds") -> None:
    """Draw `figure` into a file; the ending of its name is the format."""
    make_folder(path.parent)
    try:
        figure(curves, on, x).savefig(path, dpi=110)
    except ValueError as err:  # matplotlib's error for an unknown suffix
        raise ConfigError(f"compare --plot {path}: expected a name such as both.png; {err}") from None


def figure(curves: Groups, on: str, x: str = "rounds") -> Figure:
    """Return what was measured over `x`, and the sorted accuracies of single clients.

    That is the accuracy, if there is one, the loss, and how unlike the clients' gradients were, if that was.

    A curve is the mean over seeds at the rounds that all of them measured, the range as a band; a seed with
    more rounds goes on as a thin line. `x` is a key of `XS`, summed up over the rounds; where curves end more
    than a `DECADE` apart, its axis is logarithmic and begins after round 0, which costs nothing. Clients:
    those of the last evaluation, of all seeds together.
    """
    from matplotlib.figure import Figure

    accuracy, loss = MEASURED[on]
    every = [run for runs in curves.values() for run in runs]
    rated = any(has_accuracy(run.rounds, on) for run in every)
    single = rated and any(run.clients.before for run in every)
    where = "server's test set" if on == "server" else "clients' own test data"
    heads: list[tuple[str, Value]] = []
    if rated:
        heads.append((f"accuracy (%), {where}", lambda row: _times(row.get(accuracy), 100)))
    heads.append((f"loss{' (nats)' if rated else ''}, {where}", lambda row: row.get(loss)))
    if any(gradient_variance(row) is not None for run in every for row in run.rounds):
        heads.append(("variance of the clients' gradients", gradient_variance))
    count = len(heads) + single
    labels = {name: f"{name} ({len(runs)} seeds)" if len(runs) > 1 else name for name, runs in curves.items()}
    width = 5 * max(count, 2)
    columns = max(1, min(len(labels), 5, int(width / (LINE + LETTER * max(map(len, labels.values()))))))
    out = Figure(figsize=(width, 4.2 + 0.2 * -(-len(labels) // columns)), layout="constrained")
    panels = [*out.subplots(1, count, squeeze=False)[0]]
    styles = [(colour, dash) for dash in DASHES for colour in COLOURS]
    ends = [max(_spent(run, x).values()) for run in every]
    log = x != "rounds" and min(ends) > 0 and max(ends) / min(ends) > DECADE
    for i, (name, runs) in enumerate(curves.items()):
        colour, dash = styles[i % len(styles)]
        style = {"color": colour, "linestyle": dash}
        for axes, (_, value) in zip(panels, heads, strict=False):
            _curve(axes, runs, value, style | ({"label": labels[name]} if axes is panels[0] else {}), x, log)
        if single and (seen := [run.clients.before for run in runs if run.clients.before]):
            values = 100 * np.sort(np.concatenate([rounds[max(rounds)].accuracy for rounds in seen]))
            share = 100 * (np.arange(len(values)) + 0.5) / len(values)
            panels[-1].plot(share, values, **style)
    for axes, (up, _) in zip(panels, heads, strict=False):
        axes.set(xlabel=XS[x][0], ylabel=up)
        if x != "rounds":
            _scale(axes, x, log)
    if single:
        up = "accuracy (%) of single clients, own test data"
        panels[-1].set(xlabel="clients, sorted (% of them)", ylabel=up)
    for axes in panels:
        axes.grid(alpha=0.3)
    out.legend(loc="outside lower center", ncols=columns, frameon=False)
    return out


def _times(value: float | None, scale: float) -> float | None:
    return None if value is None else scale * value


def figure_of_run(path: Path) -> Figure:
    """Return the figure of one result folder."""
    curves = groups([path])
    return figure(curves, choose(curves)[0])


def _spent(run: Run, x: str) -> dict[int, float]:
    """Return by round where it is on the x axis."""
    at = [row["round"] for row in run.rounds]
    return dict(zip(at, at if x == "rounds" else accumulate(map(XS[x][1], run.rounds)), strict=True))


def _scale(axes: Axes, x: str, log: bool) -> None:
    """Give an axis of bytes or seconds its units."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter, StrMethodFormatter

    if log:
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        wide = high > DECADE**2 * low
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(
        StrMethodFormatter("{x:g}") if x.endswith("seconds") else EngFormatter("B")
    )


def _curve(axes: Axes, runs: Sequence[Run], value: Value, style: dict[str, Any], x: str, log: bool) -> None:
    spent = [_spent(run, x) for run in runs]
    series = [
        {r["round"]: v for r in run.rounds if (v := value(r)) is not None and (where[r["round"]] or not log)}
        for run, where in zip(runs, spent, strict=True)
    ]
    rounds = sorted(set.intersection(*(set(s) for s in series)))
    at = np.array([[s[i] for i in rounds] for s in spent], dtype=np.float64).mean(0)
    y = np.array([[s[i] for i in rounds] for s in series], dtype=np.float64)
    marker = "o" if len(rounds) <= 25 else ""  # a single point is no line
    axes.plot(at, y.mean(0), marker=marker, markersize=3.5, **style)
    for values, where in zip(series, spent, strict=True):
        rest = [i for i in sorted(values) if not rounds or i >= rounds[-1]]
        if len(rest) > 1 and len(series) > 1:
            thin = {k: v for k, v in style.items() if k != "label"} | {"linewidth": 0.8, "alpha": 0.6}
            axes.plot([where[i] for i in rest], [values[i] for i in rest], **thin)
    axes.fill_between(at, y.min(0), y.max(0), color=style["color"], alpha=0.15, linewidth=0)
