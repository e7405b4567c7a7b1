"""Draws a plot as SVG: for report.html, for the files in plots/ and for the monitor's page.

Drawings and pages are trees of `xml.etree.ElementTree`, which escapes every text that it writes. Colours come
from `STYLE` by class, so a page follows the reader's light or dark theme; sizes are pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from rich.cells import cell_len

from task.text import plain

WIDTH = 440  # of a drawing whose place is not known
TOP, AREA, RIGHT, LINE = 30, 176, 22, 18  # title, height of the plot itself, margin, line of text
LETTER = 6.6  # width of a letter of 12 pixels, about
DOTS = 60  # a line of more points has no dots
MOST_POINTS = 800  # of a line

# Okabe and Ito's colours, a little darker or lighter than theirs: distinct with every common kind of colour
# vision. No meaning hangs on them alone: lines have dashes, states have words.
LIGHT = {
    "paper": "#fff", "panel": "#f7f7f5", "ink": "#1d1d1f", "soft": "#5b5b62", "rule": "#dcdcd8",
    "link": "#0b5cad", "warn-ink": "#7a3b00", "warn-paper": "#fff3e0",
    "c0": "#0072b2", "c1": "#b86e00", "c2": "#00795a", "c3": "#b34a00", "c4": "#6a6a6a", "c5": "#a8537f",
    "c6": "#2f8fcb",
}  # fmt: skip
DARK = {
    "paper": "#16171a", "panel": "#1f2125", "ink": "#ececee", "soft": "#a9abb3", "rule": "#373a41",
    "link": "#7fbcf5", "warn-ink": "#ffc98a", "warn-paper": "#3a2a17",
    "c0": "#5aaee8", "c1": "#f0b13c", "c2": "#3ecfa4", "c3": "#ff8a4c", "c4": "#a5a5a5", "c5": "#e39cc4",
    "c6": "#9bd3f7",
}  # fmt: skip
BLUE, ORANGE, GREEN, RED, GREY, PINK, SKY = range(7)
COLOURS = 7

_PLOT_STYLE = """
.plot text { font: 12px system-ui, sans-serif; fill: var(--soft); }
.plot .title { font-size: 14px; font-weight: 600; fill: var(--ink); }
.plot .unit { font-size: 12px; font-weight: 400; fill: var(--soft); }
.plot .name { font-size: 10px; }
.plot .grid { stroke: var(--rule); stroke-width: 1; }
.plot .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.plot .band { fill-opacity: .18; }
.plot .d1 { stroke-dasharray: 7 4; }
.plot .d2 { stroke-dasharray: 2 4; stroke-linecap: round; }
.plot .d3 { stroke-dasharray: 9 4 2 4; }
.plot .hit { fill: var(--soft); fill-opacity: 0; }
.plot .hit:hover { fill-opacity: .18; }
""" + "".join(
    f".k{k} .line {{ stroke: var(--c{k}); }} .k{k} .fill {{ fill: var(--c{k}); }}\n" for k in range(COLOURS)
)


def _variables(theme: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in theme.items())


STYLE = (
    f":root {{ color-scheme: light dark; {_variables(LIGHT)} }}\n"
    f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}\n" + _PLOT_STYLE
)


class Point(NamedTuple):
    """A point of a line, or a bar or a slice of a band from `base` up to `y`; a bar may end at another x."""

    x: float
    y: float
    base: float = 0.0
    last: float | None = None


@dataclass(frozen=True)
class Series:
    """What the legend names once; `colour` also chooses the dashes of a line."""

    name: str
    colour: int
    points: Sequence[Point]
    kind: Literal["line", "bars", "band"] = "line"


@dataclass(frozen=True)
class Plot:
    """What is drawn.

    Attributes:
        name: Of its file, and its id on a page.
        title: In bold.
        unit: What y is.
        note: A sentence below the plot; where there is no series, why.
        series: What is drawn, from the back to the front.
        rules: Level lines: name, colour and y.
        x: What x is.
        axis: Writes a y below the axis' highest.
        readouts: What to say where the pointer is, by ascending x.
        names: Of the bars at x = 0, 1, ..., instead of numbers.
        zero: Whether the axis begins at 0.
    """

    name: str
    title: str
    unit: str
    note: str
    series: Sequence[Series]
    rules: Sequence[tuple[str, int, float]] = ()
    x: str = "round"
    axis: Callable[[float, float], str] = lambda y, highest: f"{y:.6g}"
    readouts: Sequence[tuple[float, str]] = ()
    names: Sequence[str] = ()
    zero: bool = False


def element(tag: str, attributes: dict[str, Any] | None = None, *inside: Element | str) -> Element:
    """Return an element; control characters become question marks, which XML could not hold."""
    made = Element(tag, {key: plain(str(value)) for key, value in (attributes or {}).items()})
    for one in inside:
        if isinstance(one, Element):
            made.append(one)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + plain(one)
        else:
            made.text = (made.text or "") + plain(one)
    return made


def as_lists(tree: Element) -> list[Any]:
    """Return a tree as JSON holds it: tag, attributes, and what is inside; texts stay texts."""
    inside = [part for one in tree for part in (as_lists(one), one.tail) if part]
    return [tree.tag, dict(tree.attrib), *([tree.text] if tree.text else []), *inside]


def standalone(plot: Plot) -> str:
    """Return an SVG file in the light theme; its colours are written out, for programs without variables."""
    style = _PLOT_STYLE
    for name, colour in LIGHT.items():
        style = style.replace(f"var(--{name})", colour)
    tree = draw(plot)
    tree.set("xmlns", "http://www.w3.org/2000/svg")
    paper = element("rect", {"width": "100%", "height": "100%", "fill": LIGHT["paper"]})
    tree[:0] = [element("style", None, style), paper]
    return ElementTree.tostring(tree, encoding="unicode") + "\n"


def draw(plot: Plot, width: int = WIDTH) -> Element:
    """Return the drawing of a plot that has series.

    Args:
        plot: What to draw; its numbers are finite.
        width: Pixels.
    """
    points = [point for one in plot.series for point in one.points]
    first, last = min(p.x for p in points), max(p.x if p.last is None else p.last for p in points)
    values = [p.y for p in points] + [y for *_, y in plot.rules] + [0.0] * plot.zero
    values += [p.base for one in plot.series if one.kind == "band" for p in one.points]
    marks = ticks(min(values), max(values), 5)
    words = [plot.axis(mark, marks[-1]) for mark in marks]
    left = 14 + LETTER * max(map(cell_len, words))
    floor, right = TOP + AREA, width - RIGHT
    rim = 0.5 if first == last or any(one.kind == "bars" for one in plot.series) else 0.0

    def x(at: float) -> float:
        return left + (at - first + rim) / (last - first + 2 * rim) * (right - left)

    def y(value: float) -> float:
        return floor - (value - marks[0]) / (marks[-1] - marks[0]) * AREA

    title = _text(0, 16, "", plot.title + " ", "title")
    title.append(element("tspan", {"class": "unit"}, plot.unit))
    parts = [title]
    for mark, word in zip(marks, words, strict=True):
        parts += [_level(left, right, y(mark), "grid"), _text(left - 8, y(mark) + 4, "end", word)]
    for one in plot.series:
        group = {"class": f"k{one.colour % COLOURS}", "data-series": one.name}
        parts.append(element("g", group, *_series(one, x, y)))
    for _, colour, value in plot.rules:
        look = {"class": f"k{colour % COLOURS}"}
        parts.append(element("g", look, _level(left, right, y(value), f"line d{colour % 4}")))
    below = floor + 4.0
    if plot.names:
        parts += [_turned(x(i) + 3, below + 4, name) for i, name in enumerate(plot.names)]
        below += round(0.85 * LETTER * max(map(cell_len, plot.names)))
    else:
        whole = [t for t in ticks(first, last, 4 if width < 420 else 7) if t == int(t) and first <= t <= last]
        parts += [_text(x(t), below + 12, "middle", f"{int(t):,}") for t in whole]
        below += 12
    below += LINE
    parts.append(_text((left + right) / 2, below, "middle", plot.x))
    legend = [(one.name, one.colour, one.kind) for one in plot.series if one.name]
    made, below = _legend([*legend, *((name, k, "line") for name, k, _ in plot.rules)], left, right, below)
    parts += [*made, *_hits(plot.readouts, x, left, right)]
    label = f"{plot.title} {plot.unit}"
    if plot.x == "round" and plot.readouts:
        label += f", rounds {first:g} to {last:g}. Latest: {plot.readouts[-1][1]}"
    size = {"viewBox": f"0 0 {width} {below + 8:.0f}", "width": width, "height": f"{below + 8:.0f}"}
    return element("svg", {"class": "plot", "role": "img", "aria-label": label, **size}, *parts)


def ticks(low: float, high: float, most: int) -> list[float]:
    """Return about `most` round numbers, from at most the lowest to at least the highest value."""
    size = max(abs(low), abs(high))
    if high - low <= 1e-9 * size or size < 1e-290:
        room = size / 10 if size >= 1e-290 else 1.0
        low, high = low and low - room, high + room
    ten = 10.0 ** math.floor(math.log10(high / most - low / most))
    step = next((m * ten for m in (1, 2, 5) if m * ten >= (high / most - low / most) * 0.999), 10 * ten)
    numbers = range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)
    return [float(f"{i * step:.12g}") for i in numbers]


Place = Callable[[float], float]


def _series(one: Series, x: Place, y: Place) -> Iterable[Element]:
    if one.kind == "bars":
        for at, top, base, last in one.points:
            left, right = x(at - 0.45), x((at if last is None else last) + 0.45)
            yield element("rect", {
                "class": "fill", "x": _px(left), "width": _px(max(right - left, 0.5)), "y": _px(y(top)),
                "height": _px(max(y(base) - y(top), 0.0)),
            })  # fmt: skip
        return
    points = _thinned(one.points)
    way = [(x(p.x), y(p.y)) for p in points]
    if one.kind == "band":
        way += [(x(p.x), y(p.base)) for p in reversed(points)]
    path = "M" + "L".join(f"{_px(a)} {_px(b)}" for a, b in way)
    if one.kind == "band":
        yield element("path", {"class": "fill band", "d": path + "Z"})
        return
    yield element("path", {"class": f"line d{one.colour % 4}", "d": path})
    for a, b in way if len(way) <= DOTS else []:
        yield element("circle", {"class": "fill", "r": 2.6, "cx": _px(a), "cy": _px(b)})


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    """Return the lowest and the highest of neighbours where there are more points than pixels."""
    group = -(-2 * len(points) // MOST_POINTS)
    if len(points) <= MOST_POINTS:
        return points
    groups = [points[i : i + group] for i in range(0, len(points), group)]
    return [p for g in groups for p in sorted({min(g, key=lambda p: p.y), max(g, key=lambda p: p.y)})]


def _legend(
    entries: Sequence[tuple[str, int, str]], left: float, right: float, below: float
) -> tuple[list[Element], float]:
    """Return the legend in as many lines as it needs, and where the last one stands."""
    made, at = list[Element](), right
    for name, colour, kind in entries:
        wide = 34 + LETTER * cell_len(name)
        if at + wide > right:
            at, below = left, below + LINE
        swatch = (
            _level(at, at + 22, below - 4, f"line d{colour % 4}")
            if kind == "line"
            else element("rect", {
                "class": f"fill {kind}", "x": _px(at), "y": _px(below - 9), "width": 22, "height": 10,
            })
        )  # fmt: skip
        made.append(element("g", {"class": f"k{colour % COLOURS}"}, swatch, _text(at + 27, below, "", name)))
        at += wide + 8
    return made, below


def _hits(readouts: Sequence[tuple[float, str]], x: Place, left: float, right: float) -> Iterable[Element]:
    """Yield a column for each readout; the pointer shows its words."""
    middles = [(x(a) + x(b)) / 2 for (a, _), (b, _) in pairwise(readouts)]
    for start, end, (_, words) in zip([left, *middles], [*middles, right], readouts, strict=False):
        place = {"x": _px(start), "width": _px(max(end - start, 0.0)), "y": TOP, "height": AREA}
        yield element("rect", {"class": "hit", **place}, element("title", None, words))


def _level(start: float, end: float, y: float, kind: str) -> Element:
    return element("path", {"class": kind, "d": f"M{_px(start)} {_px(y)}L{_px(end)} {_px(y)}"})


def _text(x: float, y: float, anchor: str, words: str, kind: str = "") -> Element:
    more = {key: value for key, value in (("text-anchor", anchor), ("class", kind)) if value}
    return element("text", {"x": _px(x), "y": _px(y), **more}, words)


def _turned(x: float, y: float, words: str) -> Element:
    made = _text(x, y, "end", words, "name")
    made.set("transform", f"rotate(-90 {_px(x)} {_px(y)})")
    return made


def _px(value: float) -> str:
    return f"{value:.1f}"
