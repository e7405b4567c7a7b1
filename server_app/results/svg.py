"""Draws a plot as SVG for a page: report.html with its files in plots/, sweep.html, the monitor's page.

Drawings and pages are trees of `xml.etree.ElementTree`, which escapes every text that it writes. Colours come
from `STYLE` by class, so a page follows the reader's light or dark theme; sizes are pixels.

Figures that a user asks for, as a file or in a notebook, are matplotlib's (`server_app.results.compare`). It
cannot draw these pages: its SVG has inline styles, which the monitor's Content-Security-Policy forbids, one
theme and no readouts; it is not thread-safe, which the monitor's server needs; and a drawing takes it more
than 30 times as long, for each browser every two seconds and at the end of every run.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
END, MIDDLE = {"text-anchor": "end"}, {"text-anchor": "middle"}
Place = Callable[[float], float]

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


class Series(NamedTuple):
    """What the legend names once; a rule is a level line at the y of its one point."""

    name: str
    colour: int  # it also chooses the dashes of a line
    points: Sequence[Point]
    kind: Literal["line", "rule", "bars", "band"] = "line"


class Cells(NamedTuple):
    """Numbers of a heat map: a row of values for each name in `rows`, one for each in `columns`."""

    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float]]


@dataclass(frozen=True)
class Plot:
    """What is drawn; its numbers are finite."""

    def __bool__(self) -> bool:
        """Return whether there is anything to draw."""
        return bool(self.series or self.cells or self.picture)

    name: str  # of its file, and on a page
    title: str
    unit: str  # what y is
    note: str  # a sentence below the plot; where there is no series, why
    series: Sequence[Series]  # from the back to the front
    x: str = "round"  # what x is
    axis: Callable[[float, float], str] = lambda y, highest: f"{y:.6g}"  # words for a y
    readouts: Sequence[tuple[float, str]] = ()  # by ascending x, what to say where the pointer is
    names: Sequence[str] = ()  # of the bars at x = 0, 1, ..., instead of numbers
    zero: bool = False  # whether the axis of y begins at 0
    within: tuple[float, float] = (-math.inf, math.inf)  # what y can be: the axis has nothing else
    whole: bool = False  # whether y is a count: the axis has whole numbers only
    cells: "Cells | None" = None  # of a heat map, which has no series
    picture: str = ""  # address of an image in place of a drawing
    size: tuple[int, int] = (1, 1)  # width and height of that image


def element(tag: str, attributes: dict[str, Any] | None = None, *inside: Element | str) -> Element:
    """Return an element, a text only in front; control characters, which XML lacks, become question marks."""
    made = Element(tag, {key: plain(str(value)) for key, value in (attributes or {}).items()})
    for one in inside:
        if isinstance(one, Element):
            made.append(one)
        else:
            made.text = plain(one)
    return made


def as_lists(tree: Element) -> list[Any]:
    """Return a tree for JSON: tag, attributes, then texts and trees inside it."""
    return [tree.tag, dict(tree.attrib), *([tree.text] if tree.text else []), *map(as_lists, tree)]


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
    """Return the drawing, this many pixels wide, of a plot that is not empty."""
    if plot.picture:
        return _picture(plot, width)
    if plot.cells:
        return _heat(plot, plot.cells, width)
    points = [point for one in plot.series for point in one.points]
    first, last = min(p.x for p in points), max(p.x if p.last is None else p.last for p in points)
    values = [p.y for p in points] + [0.0] * plot.zero
    values += [p.base for one in plot.series if one.kind == "band" for p in one.points]
    marks = _marks(plot, min(values), max(values))
    words = [plot.axis(mark, marks[-1]) for mark in marks]
    left, right, floor = 14 + LETTER * max(map(cell_len, words)), width - RIGHT, TOP + AREA
    rim = 0.5 if first == last or any(one.kind == "bars" for one in plot.series) else 0.0
    x, y = _scale(first - rim, last + rim, left, right), _scale(marks[0], marks[-1], floor, TOP)

    parts = list[Element]()
    for mark, word in zip(marks, words, strict=True):
        parts += [_level(left, right, y(mark), "grid"), _text(left - 8, y(mark) + 4, word, END)]
    for one in plot.series:
        group = {"class": f"k{one.colour % COLOURS}", "data-series": one.name}
        inside = [_level(left, right, y(one.points[0].y), _dashed(one))] if one.kind == "rule" else []
        parts.append(element("g", group, *(inside or _series(one, x, y))))
    below = floor + 16.0
    for i, name in enumerate(plot.names):
        turn = {"class": "name", "transform": f"rotate(-90 {_px(x(i) + 3)} {_px(floor + 8)})"}
        parts.append(_text(x(i) + 3, floor + 8, name, END | turn))
        below = max(below, floor + 6 + 0.85 * LETTER * cell_len(name))
    for t in ticks(first, last, 4 if width < 420 else 7) if not plot.names else []:
        if t == int(t) and first <= t <= last:
            parts.append(_text(x(t), below, f"{int(t):,}", MIDDLE))
    below += LINE
    parts.append(_text((left + right) / 2, below, plot.x, MIDDLE))
    legend, below = _legend([one for one in plot.series if one.name], left, right, below)
    parts += [*legend, *_hits(plot.readouts, x, left, right)]
    label = f"{plot.title} {plot.unit}"
    if plot.x == "round" and plot.readouts:
        label += f", rounds {first:g} to {last:g}. Latest: {plot.readouts[-1][1]}"
    return _drawing(plot, width, below, label, *parts)


def _drawing(plot: Plot, width: int, below: float, label: str, *parts: Element) -> Element:
    """Return a drawing that ends a little below its last line; `label` is for readers who do not see it."""
    title = _text(0, 16, plot.title + " ", {"class": "title"})
    title.append(element("tspan", {"class": "unit"}, plot.unit))
    high = f"{below + 8:.0f}"
    size = {"viewBox": f"0 0 {width} {high}", "width": width, "height": high}
    return element("svg", {"class": "plot", "role": "img", "aria-label": label, **size}, title, *parts)


def _marks(plot: Plot, low: float, high: float) -> list[float]:
    """Return the numbers at the axis of y."""
    least, most = plot.within
    marks = [mark for mark in ticks(low, high, 5) if least <= mark <= most]
    whole = [mark for mark in marks if mark == int(mark)] if plot.whole else marks
    return whole if len(whole) > 1 else [math.floor(low), max(math.ceil(high), math.floor(low) + 1)]


def _heat(plot: Plot, cells: Cells, width: int) -> Element:
    """Return a heat map: the more, the less see-through."""
    shown, heads = ([_cut(name) for name in names] for names in (cells.rows, cells.columns))
    left, right = 14 + LETTER * max([1, *map(cell_len, shown)]), width - RIGHT
    high = max(4.0, min(18.0, 2 * AREA / len(shown)))
    wide = (right - left) / len(cells.columns)
    most = max([1.0, *(value for row in cells.values for value in row)])
    parts = list[Element]()
    for i, (name, words, row) in enumerate(zip(cells.rows, shown, cells.values, strict=True)):
        top = TOP + i * high
        if i % max(1, round(14 / high)) == 0:
            parts.append(_text(left - 8, top + high / 2 + 4, words, END))
        for j, (column, value) in enumerate(zip(cells.columns, row, strict=True)):
            box = _box(left + j * wide, top, max(wide - 1, 1.0), max(high - 1, 1.0), "fill")
            box.set("fill-opacity", f"{0.04 + 0.96 * value / most:.3f}")
            box.append(element("title", None, f"{name}, {plot.x} {column}: {value:,.10g}"))
            parts.append(element("g", {"class": f"k{BLUE}"}, box))
    below = TOP + len(shown) * high + 16
    step = max(1, math.ceil(LETTER * max(3, 1 + max(map(cell_len, heads), default=0)) / wide))
    for j, column in list(enumerate(heads))[::step]:
        parts.append(_text(left + (j + 0.5) * wide, below, column, MIDDLE))
    parts.append(_text((left + right) / 2, below + LINE, plot.x, MIDDLE))
    return _drawing(plot, width, below + LINE, f"{plot.title} {plot.unit}", *parts)


def _cut(name: str) -> str:
    return name if cell_len(name) <= 14 else name[:13] + "…"


def _picture(plot: Plot, width: int) -> Element:
    """Return an image below its title."""
    high = width * plot.size[1] / plot.size[0]
    place = {"x": 0, "y": TOP, "width": width, "height": _px(high)}
    return _drawing(plot, width, TOP + high, plot.title, element("image", {**place, "href": plot.picture}))


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


def _scale(low: float, high: float, start: float, end: float) -> Place:
    length = high - low or 1.0  # numbers may be too large for their margin
    return lambda value: start + (value - low) / length * (end - start)


def _series(one: Series, x: Place, y: Place) -> Iterator[Element]:
    if one.kind == "bars":
        for at, top, base, last in one.points:
            start, end = x(at - 0.45), x((at if last is None else last) + 0.45)
            yield _box(start, y(top), max(end - start, 0.5), max(y(base) - y(top), 0.0), "fill")
        return
    points = _thinned(one.points)
    way = [(x(p.x), y(p.y)) for p in points]
    if one.kind == "band":
        way += [(x(p.x), y(p.base)) for p in reversed(points)]
        yield element("path", {"class": "fill band", "d": _path(way) + "Z"})
    else:
        yield element("path", {"class": _dashed(one), "d": _path(way)})
        for a, b in way if len(way) <= DOTS else []:
            yield element("circle", {"class": "fill", "r": 2.6, "cx": _px(a), "cy": _px(b)})


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    """Return the lowest and the highest of neighbours where there are more points than pixels."""
    if len(points) <= MOST_POINTS:
        return points
    size = -(-2 * len(points) // MOST_POINTS)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [p for g in groups for p in sorted({min(g, key=lambda p: p.y), max(g, key=lambda p: p.y)})]


def _legend(series: Sequence[Series], left: float, right: float, below: float) -> tuple[list[Element], float]:
    """Return the legend in as many lines as it needs, and where the last one stands."""
    made, at = list[Element](), right
    for one in series:
        wide = 34 + LETTER * cell_len(one.name)
        if at + wide > right:
            at, below = left, below + LINE
        if one.kind in ("line", "rule"):
            swatch = _level(at, at + 22, below - 4, _dashed(one))
        else:
            swatch = _box(at, below - 9, 22, 10, f"fill {one.kind}")
        words = _text(at + 27, below, one.name)
        made.append(element("g", {"class": f"k{one.colour % COLOURS}"}, swatch, words))
        at += wide + 8
    return made, below


def _hits(readouts: Sequence[tuple[float, str]], x: Place, left: float, right: float) -> Iterator[Element]:
    """Yield a column for each readout; the pointer shows its words."""
    middles = [(x(a) + x(b)) / 2 for (a, _), (b, _) in pairwise(readouts)]
    for start, end, (_, words) in zip([left, *middles], [*middles, right], readouts, strict=False):
        box = _box(start, TOP, max(end - start, 0.0), AREA, "hit")
        box.append(element("title", None, words))
        yield box


def _dashed(one: Series) -> str:
    return f"line d{one.colour % 4}"


def _level(start: float, end: float, y: float, kind: str) -> Element:
    return element("path", {"class": kind, "d": _path([(start, y), (end, y)])})


def _path(way: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{_px(x)} {_px(y)}" for x, y in way)


def _box(x: float, y: float, width: float, height: float, kind: str) -> Element:
    size = {"width": _px(width), "height": _px(height)}
    return element("rect", {"class": kind, "x": _px(x), "y": _px(y), **size})


def _text(x: float, y: float, words: str, more: Mapping[str, str] | None = None) -> Element:
    return element("text", {"x": _px(x), "y": _px(y), **(more or {})}, words)


def _px(value: float) -> str:
    return f"{value:.1f}"
