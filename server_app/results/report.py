"""The report of a run: report.html, one file without outside parts, and its plots as PNG files.

It is made from the result folder alone, at the end of a run or at any time later, and also from a run
that was stopped or is still going.
"""

from __future__ import annotations

import base64
import html
import io
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from server_app.results.folder import CONFIG, ROUNDS, RunFolder, summarise
from server_app.results.summary import (
    MEASURED,
    ClientHistory,
    Row,
    Scores,
    gather,
    headline,
    last_evaluation,
    measured_on,
    participation,
    scale_bytes,
    short,
)
from task.config.effective import unmet
from task.config.read import as_run_config, read_config
from task.errors import StateError
from task.numerics.metrics import monotone, worst_decile
from task.storage.files import write_bytes, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart with every common kind of colour vision.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PINK, GREY = "#56B4E9", "#CC79A7", "#777777"

NAMED_CLIENTS = 30  # more bars than this get no names
MOST_BARS = 60  # more rounds than this are drawn as means of neighbours
MOST_ROWS = 500  # of the table of quarantined replies

Draw = Callable[["Axes"], None]
Floats = NDArray[np.float64]


def write_report(run: Path) -> list[Path]:
    """Write report.html and plots/*.png into a result folder.

    Returns:
        The files written, the report first.

    Raises:
        StateError: `run` is not a result folder, or a line of it is damaged.
    """
    folder = RunFolder(run)
    if not (folder.path / CONFIG).exists() and not (folder.path / ROUNDS).exists():
        raise StateError(f"{run}: expected a result folder with {CONFIG} and {ROUNDS}; found neither")
    config = folder.config()
    rounds, clients = folder.rounds(unfinished=True), folder.clients(unfinished=True)
    seen, finished = gather(clients), folder.result()
    result = finished or summarise(rounds, seen, config.get("run", {}))
    written: list[Path] = []
    figures: list[str] = []
    for name, title, note, draw in _plots(rounds, clients, seen, config.get("run", {})):
        path = folder.path / "plots" / f"{name}.png"
        if draw is None:
            path.unlink(missing_ok=True)  # of an earlier report
            figures.append(f"<figure><p class=none>{html.escape(note)}</p></figure>")
            continue
        data = _png(title, draw)
        write_bytes(path, data)
        written.append(path)
        source = base64.b64encode(data).decode()
        figures.append(
            f'<figure><img src="data:image/png;base64,{source}" alt="{html.escape(title)}">'
            f"<figcaption>{html.escape(note)}</figcaption></figure>"
        )
    report = folder.path / "report.html"
    write_text(
        report, _page(folder.path.absolute().name, config, rounds, result, finished is not None, figures)
    )
    return [report, *written]


def _plots(
    rounds: Sequence[Row], clients: Sequence[Row], seen: ClientHistory, run: Row
) -> Iterable[tuple[str, str, str, Draw | None]]:
    """Yield file name, title, caption and how to draw it; None instead of what has no data."""
    x = np.asarray([row["round"] for row in rounds], dtype=float)
    after = _of_clients(rounds, seen.after, lambda scores: scores.weighted_mean)
    curves = [
        ("central test set", _column(rounds, "accuracy"), BLUE, "-"),
        ("clients' own test data", _column(rounds, "client_accuracy"), ORANGE, "--"),
        ("clients, after local training", after, GREEN, ":"),
    ]
    note = "Mean over the examples. Rounds-to-target is read from the best so far."
    accuracy = _column(rounds, MEASURED[measured_on(rounds) or "server"][0])
    low = _of_clients(rounds, seen.before, lambda scores: float(np.percentile(scores.accuracy, 10)))
    high = _of_clients(rounds, seen.before, lambda scores: float(np.percentile(scores.accuracy, 90)))
    if np.isfinite(low).any():
        note += " The band holds the clients but for the lowest and the highest tenth."
    extra = _extra(x, accuracy, low, high, run.get("target-accuracy") or 0.0)
    yield _curves("accuracy", "Accuracy", "accuracy (share of examples)", x, curves, note, extra)
    curves = [
        ("central test set", _column(rounds, "loss"), BLUE, "-"),
        ("training, during local work", _column(rounds, "train_loss"), GREEN, ":"),
        ("clients' own test data", _column(rounds, "client_loss"), ORANGE, "--"),
    ]
    note = "Mean over the examples; rounds without a finite loss have no point."
    yield _curves("loss", "Loss", "loss (cross-entropy, nats)", x, curves, note)
    yield _clients(clients)
    yield _participation(participation(rounds, seen.times))
    if not rounds:
        yield "bytes", "", "No round is done, so nothing was sent.", None
        yield "seconds", "", "No round is done, so no time was spent.", None
        return
    note = "All messages as serialised, added up over the rounds."
    yield "bytes", "Traffic", note, lambda ax: _draw_bytes(ax, rounds)
    yield "seconds", "Time", "Time of each round, by phase.", lambda ax: _draw_seconds(ax, rounds)


def _png(title: str, draw: Draw) -> bytes:
    """Return a drawing as PNG, made without pyplot: no global state, no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6.4, 3.6), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontweight="bold", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    draw(axes)
    if entries := len(axes.get_legend_handles_labels()[0]):
        columns = entries if entries <= 4 else 3
        figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # A client's name may use letters that the font lacks; a box in its place is good enough.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _column(rounds: Sequence[Row], key: str) -> Floats:
    """Return a key of the rows by round, NaN where it was not measured."""
    return np.asarray([np.nan if row.get(key) is None else row[key] for row in rounds], dtype=float)


def _of_clients(
    rounds: Sequence[Row], scores: Mapping[int, Scores], number: Callable[[Scores], float]
) -> Floats:
    """Return a number of the clients' accuracies by round, NaN where they were not measured."""
    known = {t: number(of_round) for t, of_round in scores.items()}
    return np.asarray([known.get(row["round"], np.nan) for row in rounds], dtype=float)


def _curves(
    name: str,
    title: str,
    unit: str,
    x: Floats,
    curves: Sequence[tuple[str, Floats, str, str]],
    note: str,
    extra: Draw = lambda ax: None,
) -> tuple[str, str, str, Draw | None]:
    """Return a plot of the curves by round that have any point; `extra` draws what goes with them."""
    known = [curve for curve in curves if np.isfinite(curve[1]).any()]
    if not known:
        return name, title, f"{title} was not measured in this run.", None

    def draw(ax: Axes) -> None:
        for label, y, colour, dash in known:
            seen = np.isfinite(y)
            marker = "o" if seen.sum() <= 25 else ""
            ax.plot(x[seen], y[seen], dash, color=colour, label=label, marker=marker, markersize=3.5)
        extra(ax)
        ax.set_ylabel(unit)

    return name, title, note, draw


def _extra(x: Floats, accuracy: Floats, low: Floats, high: Floats, target: float) -> Draw:
    """Return what draws the best accuracy so far, the band over the clients and the target."""

    def draw(ax: Axes) -> None:
        seen = np.isfinite(accuracy)
        if seen.any():
            best = monotone(accuracy[seen].tolist())
            ax.plot(x[seen], best, "-", color="#aaaaaa", linewidth=1.5, label="best so far", zorder=1.5)
        seen = np.isfinite(low)
        if seen.any():
            shade = ax.fill_between(x[seen], low[seen], high[seen], color=ORANGE, alpha=0.15, linewidth=0)
            shade.set_label("clients, 10 to 90 %")
        if target > 0:
            ax.axhline(target, color=RED, linestyle="-.", linewidth=1.2, label=f"target {target:g}")

    return draw


def _clients(clients: Sequence[Row]) -> tuple[str, str, str, Draw | None]:
    """Return the plot of how the clients differ: their accuracy, else their training loss."""
    rows, metric, what = last_evaluation(clients), "accuracy", "accuracy (own test data)"
    if not rows:
        rows, metric, what = (
            last_evaluation(clients, "train", "train-loss"),
            "train-loss",
            "training loss (nats)",
        )
    if not rows:
        return "clients", "", "No client reported numbers of its own in this run.", None
    rows = sorted(rows, key=lambda row: (row["metrics"][metric], row["name"]))
    values = [float(row["metrics"][metric]) for row in rows]
    title = f"Clients in round {rows[0]['round']}"

    def draw(ax: Axes) -> None:
        if len(values) <= NAMED_CLIENTS:
            ax.bar(range(len(values)), values, color=SKY)
        else:
            ax.stairs(values, np.arange(len(values) + 1) - 0.5, fill=True, color=SKY)
        ax.axhline(float(np.mean(values)), color=BLUE, label=f"mean {short(float(np.mean(values)))}")
        if metric == "accuracy":
            worst = worst_decile(values)
            ax.axhline(worst, color=RED, linestyle="--", label=f"worst tenth, mean {short(worst)}")
        ax.set_ylabel(what)
        ax.set_xlabel(f"{len(values)} clients, sorted")
        if len(values) <= NAMED_CLIENTS:
            # A name is a name: "$" must not start a formula.
            names = [row["name"] if len(row["name"]) <= 24 else row["name"][:23] + "…" for row in rows]
            ax.set_xticks(range(len(names)), names, rotation=90, fontsize=7, parse_math=False)

    note = f"One bar per client: {what}; unweighted mean."
    return "clients", title, note, draw


def _participation(took: Row) -> tuple[str, str, str, Draw | None]:
    """Return the histogram of how often clients took part."""
    if not took["clients"]:
        return "participation", "", "No client has trained in this run.", None
    times = np.array([int(n) for n in took["histogram"]])
    number = np.array(list(took["histogram"].values()))

    def draw(ax: Axes) -> None:
        ax.bar(times, number, width=max(1.0, (times[-1] + 1) / 200), color=SKY, edgecolor=BLUE, linewidth=0.4)
        ax.set_xlabel("rounds in which a client took part")
        ax.set_ylabel(f"clients (of {took['population']})")

    note = f"{took['clients']} of {took['population']} clients took part; Jain index {short(took['jain'])}."
    return "participation", "Participation", note, draw


def _draw_bytes(ax: Axes, rounds: Sequence[Row]) -> None:
    x = [row["round"] for row in rounds]
    down = np.cumsum([float(row.get("bytes_down") or 0) for row in rounds])
    up = np.cumsum([float(row.get("bytes_up") or 0) for row in rounds])
    size, unit = scale_bytes(max(down[-1], up[-1]))
    ax.plot(x, down / size, "-", color=BLUE, label="to clients (down)")
    ax.plot(x, up / size, "--", color=RED, label="from clients (up)")
    ax.set_ylabel(f"total sent ({unit})")
    ax.set_ylim(bottom=0)


def _draw_seconds(ax: Axes, rounds: Sequence[Row]) -> None:
    spent = [row.get("seconds") or {} for row in rounds]
    phases = list(dict.fromkeys(key for seconds in spent for key in seconds if key != "total"))
    group = -(-len(rounds) // MOST_BARS)
    starts = np.arange(0, len(rounds), group)
    sizes = np.diff(np.append(starts, len(rounds)))
    number = np.asarray([row["round"] for row in rounds], dtype=float)
    edges = np.append(number[starts] - 0.5, number[-1] + 0.5)
    base = np.zeros(len(starts))
    for i, phase in enumerate(phases):
        values = [float(seconds.get(phase) or 0.0) for seconds in spent]
        top = base + np.add.reduceat(values, starts) / sizes
        colour = (BLUE, ORANGE, GREEN, PINK, SKY, RED, GREY)[i % 7]
        ax.stairs(top, edges, baseline=base, fill=True, color=colour, label=phase)
        base = top
    ax.set_ylabel("time (seconds)" if group == 1 else f"time (seconds), mean of {group} rounds")


STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 2rem auto;
       max-width: 72rem; padding: 0 1.5rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.sub { color: #555; margin: .2rem 0 1.5rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 1.2rem; }
figure { margin: 0; border: 1px solid #ddd; border-radius: 4px; padding: .8rem; }
figure img { width: 100%; height: auto; } figcaption, .none { color: #555; font-size: .85rem; margin: .3rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem 1.2rem .25rem 0;
         border-bottom: 1px solid #e4e4e4; overflow-wrap: anywhere; }
th { font-weight: 600; white-space: nowrap; } td.set { font-weight: 600; }
summary { cursor: pointer; font-weight: 600; }
"""


def _page(
    name: str, config: Row, rounds: Sequence[Row], result: Row, finished: bool, figures: Sequence[str]
) -> str:
    """Return the HTML text."""
    state = (
        "finished" if finished else f"unfinished, {len([r for r in rounds if r['round'] > 0])} rounds done"
    )
    started = f"started {config['started']}, " if config.get("started") else ""
    quarantined = [entry for row in rounds for entry in row.get("quarantined") or []]
    parts = [
        f"<h1>{html.escape(name)}</h1><p class=sub>{html.escape(started + state)}</p>",
        _table(headline(result), head=()),
        "<h2>Plots</h2><div class=plots>" + "\n".join(figures) + "</div>",
        "<h2>Quarantined replies</h2>",
        _quarantined(quarantined) if quarantined else "<p>None.</p>",
        "<h2>Configuration</h2>",
        _settings(config.get("run") or {}),
        "<h2>Environment</h2>",
        _table(list((config.get("environment") or {}).items()), head=()),
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(name)}</title>\n'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>\n<body>\n'
        + "\n".join(parts)
        + "\n</body></html>\n"
    ).encode("utf-8", "replace").decode()  # fmt: skip


def _quarantined(entries: Sequence[Row]) -> str:
    """Return the table of the replies that were dropped, and how many of each client."""
    keys = ("round", "client", "field", "expected", "got", "reason")
    rows = [[entry.get(key, "") for key in keys] for entry in entries[:MOST_ROWS]]
    rest = len(entries) - len(rows)
    more = f"<p>{rest} more in {ROUNDS}.</p>" if rest else ""
    return f"<p>{len(entries)} dropped before they reached the model.</p>{_table(rows, head=keys)}{more}"


def _settings(run: Row) -> str:
    """Return the run-config keys that the run reads: those that were changed, and all of them to unfold."""
    known = as_run_config(read_config({}))
    complete = {**known, **run}
    run = {key: value for key, value in run.items() if unmet(key, complete) is None}
    changed = [(key, value) for key, value in run.items() if value != known.get(key)]
    return (
        (
            _table(changed, head=("key", "value that is not the default"))
            if changed
            else "<p>All defaults.</p>"
        )
        + "<details><summary>All keys that the run reads</summary>"
        + _table(list(run.items()), head=("key", "value"))
        + "</details>"
    )


def _table(rows: Sequence[Sequence[Any]], head: Sequence[str]) -> str:
    """Return a table; without a head, the first column names the rows."""
    top = "".join(f"<th scope=col>{html.escape(cell)}</th>" for cell in head)
    lines = [f"<thead><tr>{top}</tr></thead>"] if head else []
    for row in rows:
        first, *others = (html.escape("" if cell is None else str(cell)) for cell in row)
        label = f"<td>{first}</td>" if head else f"<th scope=row>{first}</th>"
        lines.append(f"<tr>{label}{''.join(f'<td>{cell}</td>' for cell in others)}</tr>")
    return "<div class=wide><table>" + "\n".join(lines) + "</table></div>"
