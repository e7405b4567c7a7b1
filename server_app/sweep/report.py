"""The report of a sweep: sweep.html, one file that links the reports of the runs."""

from collections.abc import Iterable, Sequence
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np

from server_app.results import svg
from server_app.results.groups import Run, said
from server_app.results.headline import short
from server_app.results.lines import number
from server_app.results.paired import Difference
from server_app.results.report import page_parts
from server_app.results.summary import MEASURED
from server_app.results.svg import Plot, Point, Series, element
from server_app.sweep.queue import SweepQueue
from server_app.sweep.results import PERCENT, Outcome, best_words, matched, rows_of_runs
from task.numerics.metrics import mean_and_std
from task.storage.files import write_text
from task.units import human_bytes, human_seconds

PAGE = "sweep.html"
MOST_CURVES = 28  # distinct line styles
MOST_TABLES = 12  # heat maps
COLOURS = """
figcaption { color: var(--soft); font-size: .85rem; }
td.number { text-align: right; }
td.heat { text-align: right; background: color-mix(in srgb, var(--c0) var(--share), transparent); }
"""


def write_page(queue: SweepQueue, out: Outcome | None, why: str = "") -> None:
    """Write ``sweep.html`` into the sweep's folder; without an outcome, `why` says why there is none."""
    name = queue.folder.absolute().name
    states = ", ".join(f"{n} {state}" for state, n in _states(queue).items())
    inside = [
        element("h1", None, name),
        element(
            "p", {"class": "soft"}, f"sweep, started {queue.started}; {len(queue.entries)} runs: {states}"
        ),
        element("p", None, element("code", None, queue.command)),
    ]
    if out is None:
        inside.append(element("p", None, why))
    else:
        inside += _results(out)
    inside += [element("h2", None, "Runs"), _runs(queue, out)]
    write_text(queue.folder / PAGE, html(name, inside))


def html(title: str, inside: Iterable[Element]) -> str:
    """Return a page in the style of the reports."""
    head = element(
        "head", None,
        element("meta", {"charset": "utf-8"}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("title", None, title),
        element("style", None, page_parts()["style"] + COLOURS),
    )  # fmt: skip
    page = element("html", {"lang": "en"}, head, element("body", None, element("main", None, *inside)))
    return "<!DOCTYPE html>\n" + ElementTree.tostring(page, encoding="unicode", method="html")


def _states(queue: SweepQueue) -> dict[str, int]:
    found = dict[str, int]()
    for entry in queue.entries:
        found[entry.state] = found.get(entry.state, 0) + 1
    return found


def _results(out: Outcome) -> Iterable[Element]:
    for words in best_words(out):
        yield element("p", None, words)
    yield element("h2", None, "Configurations")
    yield table(out.header, out.lines)
    yield element("p", {"class": "soft"}, " ".join(out.remarks))
    plots = [*curves(out), *over_keys(out)]
    drawn = [
        element("figure", None, svg.draw(plot), element("figcaption", None, plot.note)) for plot in plots
    ]
    yield element("h2", None, "Plots")
    yield element("div", {"class": "plots"}, *drawn)
    maps = list(_heat_maps(out))
    if maps:
        yield element("h2", None, f"Mean final {out.metric}{out.unit}")
        yield from maps
    if pairs := matched(out):
        yield element("h2", None, "Algorithms under the same keys")
        yield table(
            ["pair", "keys", "difference", "95 % interval (paired t)", "pairs"],
            [[pair, keys, *_numbers(difference, out.decimals)] for pair, keys, difference in pairs],
        )


def _numbers(d: Difference, decimals: int) -> list[str]:
    mean, low, high = (f"{value:+.{decimals}f}" for value in (d.mean, d.low, d.high))
    return [mean, f"{low} to {high}", str(d.pairs)]


def curves(out: Outcome) -> list[Plot]:
    """Return accuracy and loss by round: the mean over seeds, the range of the seeds as a band."""
    accuracy, loss = MEASURED[out.on]
    chosen = list(out.curves.items())[:MOST_CURVES]
    note = "Mean over seeds at the rounds that all of them evaluated; the band is their range."
    if len(out.curves) > len(chosen):
        note += f" The first {len(chosen)} of {len(out.curves)} configurations."
    found = []
    for name, title, unit, key, scale in (
        ("accuracy", "Accuracy", "%", accuracy, PERCENT),
        ("loss", "Loss", "nats", loss, 1),
    ):
        series = [s for i, (label, runs) in enumerate(chosen) for s in _curve(i, label, runs, key, scale)]
        if series:
            found.append(Plot(name, title, unit, note, series))
    return found


def _curve(colour: int, label: str, runs: Sequence[Run], key: str, scale: float) -> Iterable[Series]:
    """Yield a band, if there are several seeds, and a line."""
    rows = [{r["round"]: v for r in run.rounds if (v := number(r.get(key))) is not None} for run in runs]
    rounds = sorted(set.intersection(*(set(values) for values in rows)))
    if not rounds:
        return
    y = scale * np.array([[values[t] for t in rounds] for values in rows], dtype=np.float64)
    if len(runs) > 1:
        band = [Point(t, high, low) for t, high, low in zip(rounds, y.max(0), y.min(0), strict=True)]
        yield Series("", colour, band, "band")
    yield Series(label, colour, [Point(t, v) for t, v in zip(rounds, y.mean(0), strict=True)])


def over_keys(out: Outcome) -> list[Plot]:
    """Return for each swept key with numbers the final score over its values, a line for all else."""
    keys = dict.fromkeys(key for name in out.scores for key in out.settings[name])
    found = []
    for key in keys:
        having = [name for name in out.scores if key in out.settings[name]]
        values = sorted({v for n in having if _is_number(v := out.settings[n][key])})
        if len(values) < 2:
            continue
        lines = dict[str, list[str]]()
        for name in having:
            lines.setdefault(_rest(out, name, key), []).append(name)
        series = list[Series]()
        for i, (rest, names) in enumerate(list(lines.items())[:MOST_CURVES]):
            at = {values.index(out.settings[n][key]): out.scores[n] for n in names}
            places = sorted(at)
            if any(len(at[x]) > 1 for x in places):
                band = [Point(x, max(at[x]), min(at[x])) for x in places]
                series.append(Series("", i, band, "band"))
            series.append(Series(rest, i, [Point(x, mean_and_std(at[x])[0]) for x in places]))
        found.append(
            Plot(
                f"over-{key}",
                f"Final {out.metric}",
                f"{out.unit.strip()} over {key}".strip(),
                "Mean over seeds of finished runs; the band is their range.",
                series,
                x=key,
                names=[f"{value:g}" for value in values],
            )
        )
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rest(out: Outcome, name: str, *without: str) -> str:
    return ", ".join(said(key, value) for key, value in out.settings[name].items() if key not in without)


def _heat_maps(out: Outcome) -> Iterable[Element]:
    """Yield a table of means for the two numeric keys with the most values, by all other keys."""
    values = dict[str, list[Any]]()
    for name in out.scores:
        for key, value in out.settings[name].items():
            if _is_number(value) and value not in values.setdefault(key, []):
                values[key].append(value)
    axes = sorted((key for key in values if len(values[key]) > 1), key=lambda key: -len(values[key]))[:2]
    if len(axes) < 2:
        return
    down, across = axes
    means = {name: mean_and_std(scores)[0] for name, scores in out.scores.items()}
    low, high = min(means.values()), max(means.values())
    worst = low if out.sign > 0 else high
    tables = dict[str, dict[tuple[Any, Any], float]]()
    for name, mean in means.items():
        keys = out.settings[name]
        if down in keys and across in keys:
            tables.setdefault(_rest(out, name, down, across), {})[keys[down], keys[across]] = mean
    for rest, cells in list(tables.items())[:MOST_TABLES]:
        columns = sorted(values[across])
        top = element(
            "tr", None, *(element("th", None, t) for t in ["", *(said(across, c) for c in columns)])
        )
        rows = [top]
        for row in sorted(values[down]):
            made = [element("th", {"scope": "row"}, said(down, row))]
            for column in columns:
                found = cells.get((row, column))
                share = 0.0 if found is None else 80 * abs(found - worst) / ((high - low) or 1)
                style = {"class": "heat", "style": f"--share: {share:.0f}%"}
                made.append(element("td", style, "" if found is None else f"{found:.{out.decimals}f}"))
            rows.append(element("tr", None, *made))
        yield element("h3", None, rest) if rest else element("p", None)
        yield element("div", {"class": "wide"}, element("table", None, *rows))


def _runs(queue: SweepQueue, out: Outcome | None) -> Element:
    heads = ["run", "state", "rounds", "final accuracy", "best", "loss", "bytes", "time", "remark"]
    rows = []
    for entry, result in rows_of_runs(queue, out):
        there = (queue.folder / entry.name / "report.html").exists()
        link = element("a", {"href": f"{entry.name}/report.html"}, entry.name) if there else entry.name
        moved = result.get("bytes_up", 0) + result.get("bytes_down", 0)
        numbers = [
            str(result.get("rounds", "")),
            *(short(result.get(k)) for k in ("accuracy", "best_accuracy", "loss")),
        ]
        numbers += [human_bytes(moved) if result else "", human_seconds(entry.seconds)]
        rows.append([link, entry.state, *numbers, entry.error])
    return table(heads, rows)


def table(heads: Sequence[str], rows: Iterable[Sequence[Element | str]]) -> Element:
    """Return a table; cells that begin with a digit or a sign stand at the right."""
    lines = []
    for row in rows:
        cells = []
        for cell in row:
            is_number = isinstance(cell, str) and cell[:1] in {*"+-0123456789"}
            cells.append(element("td", {"class": "number"} if is_number else None, cell))
        lines.append(element("tr", None, *cells))
    top = element("tr", None, *(element("th", {"scope": "col"}, head) for head in heads))
    body = element("table", None, element("thead", None, top), element("tbody", None, *lines))
    return element("div", {"class": "wide"}, body)
