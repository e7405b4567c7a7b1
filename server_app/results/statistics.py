"""The tables of statistics in a result folder: ``table.csv``, ``statistics.html``, result.json."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from server_app.results.frame import page
from server_app.results.lines import Row
from server_app.results.written import ResultTable
from task.classical.described import CLOSED, begun, described
from task.classical.noised import is_cut
from task.classical.survey import survey_of
from task.config.knobs import Config
from task.numerics.arrays import NamedArrays
from task.storage.files import write_text
from task.text import logger

CSV, PAGE = "table.csv", "statistics.html"
HOLDS = "no weights of a model: the integers of table.csv"
_SHOWN = 60  # columns in the terminal
_LEGEND = (
    f"{CLOSED}: closed, as fewer persons are in it than the owner of a site allows, or as it would give "
    "such a number away"
)
_NOISE = (
    "whose standard deviation stands behind the site's name; of means and deviations it stands behind "
    "them, and an interval holds the quantile in 95 of 100 runs"
)
_MOMENTS = ("mean", "sd")
_STYLE = """\
body { font: 1rem/1.5 system-ui, sans-serif; padding: 1rem; max-width: 72rem; margin: auto; }
table { border-collapse: collapse; margin: 0.5rem 0 1.5rem; }
th, td { padding: 0.2rem 0.7rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
.bar { display: inline-block; height: 0.8em; background: #4a7ebb; vertical-align: middle; }"""


def write_statistics(folder: Path, config: Config, arrays: NamedArrays) -> dict[str, Any]:
    """Write the tables of a run whose first round has ended; return what result.json says of it."""
    if not begun(arrays):
        for name in (CSV, PAGE):
            (folder / name).unlink(missing_ok=True)
        logger.warning("no table: the first round has not ended")
        return {"converged": False}
    survey = survey_of(config)
    found, left = described(survey, arrays), not is_cut(survey, arrays)
    table: dict[str, Any] = {"converged": True, "ended": not left, **found.as_dict()}
    if left and not config.dp.local:  # else the budget ends them
        rounds = config.server.num_server_rounds
        logger.warning("quantiles are wide: ranges were cut %d times; raise num-server-rounds", rounds - 1)
    write_text(folder / CSV, found.csv())
    write_text(folder / PAGE, page_of(folder.absolute().name, table))
    return table


def statistics_lines(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of the tables in the terminal, as (label, text)."""
    table: Row = result["table"]
    lines = [("Rows", f"{table['rows']:,}")]
    for column in table["columns"][:_SHOWN]:
        lines.append((str(column["column"]), _text(column)))
        for site in table.get("by_site", ()):
            own = next(c for c in site["columns"] if c["column"] == column["column"])
            lines.append((f"  {site['site']}", _text(own)))
    if more := len(table["columns"]) - _SHOWN:
        lines += [("...", f"{more} more in {CSV}")] if more > 0 else []
    for cross in table.get("cross", ()):
        for name, row in zip(cross["rows"], cross["cells"], strict=True):
            cells = ", ".join(f"{b} {_number(c)}" for b, c in zip(cross["heads"], row, strict=True))
            lines.append((f"{cross['columns'][0]}={name}", f"{cross['columns'][1]}: {cells}"))
    if found := table.get("correlation"):
        for i, name in enumerate(found["columns"]):
            pairs = zip(found["columns"][:i], found["matrix"][i], _errors(found, i), strict=False)
            if words := ", ".join(f"{b} {_number(r)}{_error(e)}" for b, r, e in pairs):
                lines.append((f"r {name}", words))
    if error := table.get("count_error"):
        own = [f"{site['count_error']:.4g} on those of a site" for site in table.get("by_site", ())[:1]]
        lines.append(("Noise", ", ".join([f"standard deviation {error:.4g} on each count", *own])))
    if table["closed_cells"]:
        lines.append(("Closed cells", f"{table['closed_cells']}; {_LEGEND}"))
    return [*lines, ("SHA-256 of all sums", str(table["sums_sha256"]))]


def _text(column: Row) -> str:
    words = [f"{_number(column['count'])} values, {_number(column['missing'])} missing"]
    if "levels" in column:
        words += [f"{level} {_number(count)}" for level, count in column["levels"].items()]
        return ", ".join(words)
    words.append(", ".join(f"{name} {_with_error(column, name)}" for name in _MOMENTS))
    words += [f"{100 * _share(q['q']):g} % {_range(q)}" for q in column.get("quantiles", ())]
    return ", ".join(words)


def _with_error(column: Row, name: str) -> str:
    """Return a figure, with the standard error that it has by noise."""
    return _number(column[name]) + _error(column.get(f"{name}_error"))


def _error(error: float | None) -> str:
    return "" if error is None else f" ± {error:.2g}"


def _errors(found: Row, line: int) -> Sequence[float | None]:
    """Return the standard errors of a line of correlations."""
    return found["errors"][line] if "errors" in found else [None] * len(found["columns"])


def _share(text: str) -> float:
    above, _, below = text.partition("/")
    return float(above) / float(below or 1)


def _range(quantile: Row) -> str:
    if quantile["value"] is not None:
        return _number(quantile["value"])
    return f"{_number(quantile['low'])}..{_number(quantile['high'])}"


def _number(found: Any) -> str:
    if found is None:
        return "undefined"
    return found if isinstance(found, str) else f"{found:,}" if isinstance(found, int) else f"{found:.6g}"


def page_of(title: str, table: Row) -> str:
    """Return the tables as a page of HTML that needs nothing else."""
    body = "\n".join(_sections(table))
    title = f"{title}: statistics"
    return page(title, _STYLE, f"<h1>{escape(title)}</h1>\n{body}")


def _sections(table: Row) -> Iterator[str]:
    tables = [table, *table.get("by_site", ())]
    sites = f" of {len(tables) - 1} sites" if len(tables) > 1 else ""
    legend = f"Counts have noise, {_NOISE}" if table.get("count_error") else _LEGEND
    yield f"<p>{table['rows']:,} rows{sites}. {escape(legend)}.</p>"
    for i, column in enumerate(table["columns"]):
        yield _head(str(column["column"]))
        levels = list(column.get("levels", ()))
        heads = ["site", "values", "missing", *(levels or ["mean", "standard deviation"])]
        rows = []
        for one in tables:
            own = one["columns"][i]
            rest = (
                map(_number, own["levels"].values()) if levels else map(partial(_with_error, own), _MOMENTS)
            )
            counts = map(_number, (own["count"], own["missing"]))
            rows.append([one["site"] + _error(one.get("count_error")), *counts, *rest])
        yield _grid(heads, rows)
        if quantiles := column.get("quantiles"):
            shown = [(one["site"], one["columns"][i].get("quantiles")) for one in tables]
            yield _grid(
                ["quantile", *(f"{_share(q['q']):g}" for q in quantiles)],
                [[site, *map(_range, own)] for site, own in shown if own],
            )
            yield f"<p>Quantiles are within {column['step']:g}; a..b means that it is between them.</p>"
        if bars := column.get("histogram"):
            most = max(max(b["count"] for b in bars), 1)
            yield _grid(
                ["above", "up to", "values", ""],
                [
                    [_number(b["low"]), _number(b["high"]), _number(b["count"]), b["count"] / most]
                    for b in bars
                ],
            )
    for one in tables:
        for cross in one.get("cross", ()):
            a, b = cross["columns"]
            yield _head(f"{a} and {b}, {one['site']}")
            rows = [
                [name, *map(_number, row)] for name, row in zip(cross["rows"], cross["cells"], strict=True)
            ]
            yield _grid([f"{a} \\ {b}", *cross["heads"]], rows)
        if found := one.get("correlation"):
            yield _head(f"Correlations, {one['site']}")
            yield f"<p>{escape(_number(found['rows']))} complete rows</p>"
            rows = [
                [name, *(_number(r) + _error(e) for r, e in zip(row, _errors(found, i), strict=True))]
                for i, (name, row) in enumerate(zip(found["columns"], found["matrix"], strict=True))
            ]
            yield _grid(["", *found["columns"]], rows)
    yield f"<p>SHA-256 of all sums: <code>{escape(table['sums_sha256'])}</code></p>"


def _head(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def _grid(heads: Sequence[str], rows: Sequence[Sequence[str | float]]) -> str:
    """Return a table; a number from 0 to 1 is drawn as a bar of that length."""
    lines = ["<table>", "<tr>" + "".join(f"<th>{escape(head)}</th>" for head in heads) + "</tr>"]
    for row in rows:
        cells = "".join(
            f"<td>{escape(c)}</td>"
            if isinstance(c, str)
            else f'<td style="text-align:left"><span class="bar" style="width:{12 * c:.2f}rem"></span></td>'
            for c in row
        )
        lines.append(f"<tr>{cells}</tr>")
    return "\n".join([*lines, "</table>"])


TABLES = {"description": ResultTable(HOLDS, write_statistics, statistics_lines)}
