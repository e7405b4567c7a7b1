"""The report of a run: report.html, one file without outside parts, and its plots as SVG files.

It is made from the result folder alone, at the end of a run or at any later time, and also from a run that
was stopped or is still going. An app bundle ships no HTML or CSS file, so all of the report is in Python.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from server_app.results import svg
from server_app.results.folder import CONFIG, ROUNDS, RunFolder
from server_app.results.lines import Row
from server_app.results.plots import by_round, over_clients
from server_app.results.summary import gather, headline, participation, summarise
from server_app.results.svg import Plot, element
from task.config.effective import unmet
from task.config.read import as_run_config, read_config
from task.errors import StateError
from task.storage.files import write_text

MOST_ROWS = 500  # of the table of quarantined replies

STYLE = (
    svg.STYLE
    + """
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
       max-width: 72rem; padding: 0 1.25rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.soft { color: var(--soft); margin: .2rem 0 1.5rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 1rem; }
figure { margin: 0; background: var(--panel); border-radius: 8px; padding: .8rem 1rem; min-width: 0; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: .85rem; margin-top: .4rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem 1.2rem .3rem 0;
         border-bottom: 1px solid var(--rule); overflow-wrap: break-word; }
td:last-child { overflow-wrap: anywhere; min-width: 9rem; }
th { font-weight: 600; white-space: nowrap; }
thead th { color: var(--soft); font-size: .85rem; }
summary { cursor: pointer; font-weight: 600; margin-top: 1rem; }
"""
)


def write_report(run: Path) -> list[Path]:
    """Write report.html and plots/*.svg into a result folder.

    Returns:
        The files written, the report first.

    Raises:
        StateError: `run` is not a result folder, or a line of it is damaged.
    """
    folder = RunFolder(run)
    if not (folder.path / CONFIG).exists() and not (folder.path / ROUNDS).exists():
        raise StateError(f"{run}: expected a result folder with {CONFIG} and {ROUNDS}; found neither")
    config = folder.config()
    keys = config.get("run") or {}
    rounds, clients = folder.rounds(unfinished=True), folder.clients(unfinished=True)
    seen, finished = gather(clients), folder.result()
    plots = by_round(rounds, keys.get("target-accuracy") or 0.0, seen)
    plots += over_clients(clients, participation(rounds, seen.times))
    written = []
    for plot in plots:
        path = folder.path / "plots" / f"{plot.name}.svg"
        if plot.series:
            write_text(path, svg.standalone(plot))
            written.append(path)
        else:
            path.unlink(missing_ok=True)  # of an earlier report
    result = finished or summarise(rounds, seen, keys)
    page = _page(folder.path.absolute().name, config, rounds, result, finished is not None, plots)
    report = folder.path / "report.html"
    write_text(report, "<!DOCTYPE html>\n" + ElementTree.tostring(page, encoding="unicode", method="html"))
    return [report, *written]


def _page(
    name: str, config: Row, rounds: Sequence[Row], result: Row, finished: bool, plots: Sequence[Plot]
) -> Element:
    done = len([row for row in rounds if row["round"] > 0])
    state = "finished" if finished else f"unfinished, {done} round{'s' * (done != 1)} done"
    started = f"started {config['started']}, " if config.get("started") else ""
    drawn = [([svg.draw(plot)] if plot.series else [], plot.note) for plot in plots]
    figures = [
        element("figure", None, *picture, element("figcaption", None, note)) for picture, note in drawn
    ]
    quarantined = [entry for row in rounds for entry in row.get("quarantined") or []]
    head = element(
        "head", None,
        element("meta", {"charset": "utf-8"}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("meta", {"name": "color-scheme", "content": "light dark"}),
        element("title", None, name),
        element("style", None, STYLE),
    )  # fmt: skip
    body = element(
        "body", None,
        element("h1", None, name),
        element("p", {"class": "soft"}, started + state),
        _table(headline(result)),
        element("h2", None, "Plots"),
        element("div", {"class": "plots"}, *figures),
        element("h2", None, "Quarantined replies"),
        *_quarantined(quarantined),
        element("h2", None, "Configuration"),
        *_settings(config.get("run") or {}),
        element("h2", None, "Environment"),
        _table((config.get("environment") or {}).items()),
    )  # fmt: skip
    return element("html", {"lang": "en"}, head, body)


def _quarantined(entries: Sequence[Row]) -> Iterable[Element]:
    """Yield how many replies were dropped, and the table of them."""
    if not entries:
        yield element("p", None, "None.")
        return
    keys = ("round", "client", "field", "expected", "got", "reason")
    yield element("p", None, f"{len(entries)} dropped before they reached the model.")
    yield _table(([entry.get(key, "") for key in keys] for entry in entries[:MOST_ROWS]), keys)
    if rest := len(entries[MOST_ROWS:]):
        yield element("p", None, f"{rest} more in {ROUNDS}.")


def _settings(run: Row) -> Iterable[Element]:
    """Yield the run-config keys that the run reads: those that were changed, and all of them to unfold."""
    known = as_run_config(read_config({}))
    run = {key: value for key, value in run.items() if unmet(key, {**known, **run}) is None}
    changed = {key: value for key, value in run.items() if value != known.get(key)}
    if changed:
        yield _table(changed.items(), ("key", "value that is not the default"))
    else:
        yield element("p", None, "All defaults.")
    summary = element("summary", None, "All keys that the run reads")
    yield element("details", None, summary, _table(run.items(), ("key", "value")))


def _table(rows: Iterable[Sequence[Any]], head: Sequence[str] = ()) -> Element:
    """Return a table; without a head, the first column names the rows."""
    first = ("td", None) if head else ("th", {"scope": "row"})
    lines = []
    for row in rows:
        name, *others = ("" if cell is None else str(cell) for cell in row)
        lines.append(element("tr", None, element(*first, name), *(element("td", None, c) for c in others)))
    heads = [element("th", {"scope": "col"}, cell) for cell in head]
    top = [element("thead", None, element("tr", None, *heads))] if head else []
    return element("div", {"class": "wide"}, element("table", None, *top, element("tbody", None, *lines)))
