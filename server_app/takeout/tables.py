"""The table of a run of an analysis, as csv, LaTeX or a summary to read."""

import csv
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from server_app.results.folder import CONFIG, MODEL, RunFolder, no_run, place_of
from server_app.results.written import CSV, LATEX
from task.catalogue.algorithms import ALGORITHMS
from task.config.read import knobs
from task.datasets.header import is_number
from task.errors import ConfigError, StateError
from task.resolve.effective import reads_only
from task.text import plain

FORMS = ("csv", "latex", "summary")
WIDTH = 108  # of a summary, in characters
_GAP = 2
_NAMES = {"sums_sha256": "SHA-256 of all sums"}


def table_text(run: Path, form: str) -> str:
    """Return the table of a run: a result folder, a run's name below runs/, or the model file in a folder.

    Raises:
        ConfigError: There is no such run, it has not ended, or it has no table.
        StateError: The table's file is gone.
    """
    folder = _found(run)
    result = folder.result()
    if not result:
        state = (
            "has not finished; continue it with --resume" if (folder.path / CONFIG).exists() else "is no run"
        )
        raise ConfigError(f"{folder.path}: expected the folder of a run with a table; this one {state}")
    if not (table := result.get("table")):
        analyses = ", ".join(name for name, entry in ALGORITHMS.items() if entry.statistics)
        raise ConfigError(
            f"{folder.path}: expected a run of an analysis, which has a table ({analyses}); got one of "
            f"{result.get('algorithm')}. For its model: --format onnx, torchscript, safetensors, state-dict"
        )
    if not table.get("converged", True):
        raise ConfigError(
            f"{folder.path}: expected a table; this run has none, since its iteration has not ended in "
            "num-server-rounds. Raise that, and continue the run with --resume"
        )
    name = LATEX if form == "latex" else CSV
    if form == "latex" and (folder.path / CSV).exists() and not (folder.path / LATEX).exists():
        raise ConfigError(
            f"--format latex: {result['algorithm']} writes no LaTeX table; expected csv or summary"
        )
    try:
        text = (folder.path / name).read_text(encoding="utf-8")
    except OSError as err:
        raise StateError(f"{folder.path / name}: expected the run's table; {err.strerror}") from None
    return text if form in ("csv", "latex") else _summary(folder.config()["run"], table, text)


def _found(run: Path) -> RunFolder:
    place = place_of(run)
    if not place.exists():
        raise no_run("expected a result folder or a run's name below runs/", run)
    if place.is_dir():
        return RunFolder(place)
    if place.name != MODEL or not (place.parent / CONFIG).exists():
        raise ConfigError(f"{place}: expected the result folder of a run, whose table lies beside its model")
    return RunFolder(place.parent)


def _summary(keys: Mapping[str, Any], table: Mapping[str, Any], text: str) -> str:
    """Return a table as statistical programs print one: what was asked, figures, and the rows."""
    name = str(keys["algorithm"])
    asked = [
        (k.key.rpartition(".")[2], _number(keys[k.key]))
        for k in knobs()
        if reads_only(k.key, name) and keys.get(k.key, k.default) != k.default
    ]
    found = [(k, v) for k, v in table.items() if k not in ("converged", "sums_sha256")]
    figures = [
        (k.replace("_", " "), _number(v))
        for k, v in found
        if isinstance(v, int | float) and v is not True and v is not False
    ]
    rest = [(k.replace("_", " "), _listed(v)) for k, v in found if isinstance(v, dict) or _plain(v)]
    title = ALGORITHMS[name].title if name in ALGORITHMS else name
    asked = [("algorithm", name), *asked]
    long = [(k, v) for k, v in asked if len(k) + len(v) + 2 > WIDTH // 2 - _GAP]
    short = [pair for pair in asked if pair not in long]
    double = "=" * WIDTH
    lines = [title.center(WIDTH).rstrip(), double, *_beside(short, figures)]
    lines += [f"{k}: {v}" for k, v in long]
    head, *rows = list(csv.reader(text.splitlines()))
    lines += [double, *_blocks(head, rows), double]
    lines += [f"{k}: {v}" for k, v in rest if v]
    if digest := table.get("sums_sha256"):
        lines.append(f"{_NAMES['sums_sha256']}: {digest}")
    return "\n".join(plain(line) for line in lines) + "\n"


def _plain(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, int | float | str) for v in value)


def _listed(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_number(v)}" for k, v in value.items())
    return ", ".join(map(_number, value))


def _number(value: Any) -> str:
    """Return a value with six significant digits; a text as it is."""
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    return f"{value:.6g}"


def _beside(left: Sequence[tuple[str, str]], right: Sequence[tuple[str, str]]) -> list[str]:
    """Return names and values in two columns."""
    half = (WIDTH - _GAP) // 2

    def side(pair: tuple[str, str] | None) -> str:
        if pair is None:
            return " " * half
        name, value = pair
        return f"{name}:" + value.rjust(half - len(name) - 1)

    pairs = zip_longest(left, right)
    return [(side(a) + " " * _GAP + side(b)).rstrip() for a, b in pairs]


def _blocks(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows in as many blocks of columns as fit, each with the first column."""
    cells = [list(head), *([_cell(c) for c in row] for row in rows)]
    columns = list(zip(*cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    words = [any(c and not is_number(c) for c in column[1:]) for column in columns]
    lines, first, at = list[str](), widths[0], 1
    while at < len(head) or not lines:
        end, width = at, first
        while end < len(head) and (end == at or width + _GAP + widths[end] <= WIDTH):
            width += _GAP + widths[end]
            end += 1
        shown = range(at, end)
        for i, row in enumerate(cells):
            text = [row[j].ljust(widths[j]) if words[j] else row[j].rjust(widths[j]) for j in shown]
            lines.append((" " * _GAP).join([row[0].ljust(first), *text]).rstrip())
            if i == 0:
                lines.append("-" * WIDTH)
        if end < len(head):
            lines.append("-" * WIDTH)
        at = max(end, at + 1)
    return lines


def _cell(text: str) -> str:
    """Return a number with five significant digits; another text, such as a count kept back, as it is."""
    return f"{float(text):.5g}" if is_number(text) and not text.lstrip("-").isdigit() else text
