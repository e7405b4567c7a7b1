"""The report of a run: report.html, the monitor's page as one file, and its plots as SVG files.

It is made from the result folder alone, at the end of a run or later, and also from a run that was stopped or
is still running. The page is that of `server_app.extras.monitor`: its style and scripts, and in place of the
monitor's answers the same data, in the file. An app bundle ships no JavaScript and no CSS, so they are taken
from ``page.json``, which `make docs` makes of the monitor's files.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from server_app.results import svg
from server_app.results.clients import gather, participation
from server_app.results.drift import lines_of
from server_app.results.folder import CLIENTS, CONFIG, ROUNDS, SAMPLES, RunFolder, to_json
from server_app.results.frame import page
from server_app.results.headline import headline
from server_app.results.lines import Row
from server_app.results.people import last_of, tables_of
from server_app.results.plots import (
    by_class,
    by_round,
    class_names,
    confusion,
    contributions,
    cross_evaluation,
    labels,
    over_clients,
    samples,
)
from server_app.results.rows import ClientTable, config_row, plot_row, round_row
from server_app.results.summary import measured_on, summarise
from server_app.results.tables import table_lines, table_plots
from task.catalogue.algorithms import ALGORITHMS
from task.config.read import defaults, read_checked
from task.config.run_name import CHANGE_NO_RESULT, changed
from task.datasets.facts_in_words import in_words
from task.errors import BouquetError, StateError
from task.resolve.effective import models_in, unmet
from task.storage.files import write_text
from task.text import plain

MOST_NAMES = 30  # of columns, classes or owners in a line about the data
WIDTHS = (280, 330, 540)  # pixels of a drawing, on a phone and on a desk
# Rows of the headline that the page has no tile of its own for.
TILES = (
    "Stopped", "Rounds to accuracy", "Train loss, final", "Client accuracy, final", "Accuracy over clients",
    "Worst 10 % of clients", "Jain index", "After local training", "Participation", "Left out",
    "Time, simulated devices", "Energy, simulated devices", "Contribution", "Privacy",
)  # fmt: skip
_DERIVED = CHANGE_NO_RESULT | {
    "min-replies",
    "node-names",
}  # may be set by a command or a link, not by the user

_BODY = """<main id="main" tabindex="-1">
<noscript>This page needs JavaScript. The same plots lie in plots/, the numbers in result.json.</noscript>
</main>
<script type="application/json" id="filed">{data}</script>
<script>
{script}
</script>"""


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
    seen = gather(clients)
    plots = by_round(rounds, keys.get("target-accuracy") or 0.0, seen, keys.get("loss") or "", keys)
    card = config.get("data") or {}
    plots += [*confusion(rounds, card), *over_clients(clients, participation(rounds, seen.times))]
    plots += [*contributions(seen.contribution), *labels(card)]
    plots += [*cross_evaluation(folder.cross_evaluation()), *samples(folder.path / SAMPLES)]
    result = folder.result()
    if result and result.get("table"):  # an analysis measures no model, so that many plots would be empty
        plots = [*table_plots(keys.get("algorithm", ""), result), *filter(None, plots)]
    written = []
    for plot in plots:
        path = folder.path / "plots" / f"{plot.name}.svg"
        if plot:
            write_text(path, svg.standalone(plot))
            written.append(path)
        else:
            path.unlink(missing_ok=True)  # of an earlier report
    so_far = result or {**summarise(rounds, seen, keys), "left_out": folder.left_out()}
    filed = {
        "run": _run(folder, config, rounds, result, so_far),
        "rounds": {"rounds": [round_row(row) for row in rounds], "after": 0, "mark": "", "restarted": True,
                   "more": False, "problems": []},
        "clients": _clients(folder.path / CLIENTS),
        "plots": [{"width": w, "plots": [plot_row(p, w) for p in plots], "more": False} for w in WIDTHS],
    }  # fmt: skip
    report = folder.path / "report.html"
    write_text(report, _page(folder.path.absolute().name, filed))
    return [report, *written]


def _page(title: str, filed: Mapping[str, Any]) -> str:
    """Return the page; in a script element only "<" could end the data, so it is written as an escape."""
    parts = page_parts()
    data = to_json(filed).decode().strip().replace("<", "\\u003c")
    return page(plain(title), parts["style"], _BODY.format(script=parts["script"], data=data))


def page_parts() -> dict[str, str]:
    """Return the "style" and the "script" of the monitor's page."""
    parts: dict[str, str] = json.loads(resources.files(__package__).joinpath("page.json").read_text("utf-8"))
    return parts


def _run(
    folder: RunFolder, config: Row, rounds: Sequence[Row], result: Row | None, summary: Row
) -> dict[str, Any]:
    """Return what the monitor's page asks of a run, and what only a report says."""
    keys = config.get("run") or {}
    state = "unfinished" if result is None else "stopped" if result.get("stopped") else "finished"
    run: Row = {
        "name": folder.path.absolute().name,
        "state": state,
        **{key: keys.get(key) for key in ("algorithm", "dataset")},
        "model": models_in(keys) or None,
        "round": rounds[-1]["round"] if rounds else None,
        "of": keys.get("num-server-rounds"),
        "accuracy": summary.get("accuracy"),
        "measured_on": measured_on(rounds) or "",
        "started": config.get("started"),
        "updated": None,
        "job": None,
        "problems": [],
    }
    known, entry = dict(headline(summary)), ALGORITHMS.get(str(keys.get("algorithm")))
    tiles = (*(["Accuracy, best"] if summary.get("best_tested") else []), *TILES)
    told = [*lines_of(summary), *table_lines(entry.work if entry else "", summary)]
    read = {key: value for key, value in keys.items() if unmet(key, {**defaults(), **keys}) is None}
    mine, versions = _changed(keys), config.get("environment") or {}
    pairs = " ".join(f"{key}={_toml(value)}" for key, value in mine.items())
    return {
        "run": run,
        "problems": [],
        "warnings": [],
        "facts": [*([label, known[label]] for label in tiles if label in known), *map(list, told)],
        "classes": by_class(rounds, config.get("data") or {}),
        "groups": tables_of(last_of(rounds) | (result or {}), partial(class_names, config.get("data") or {})),
        "data": _data(config.get("data") or {}),
        "changed": [[key, _toml(value)] for key, value in mine.items()],
        "repeat": config.get("repeat") or "bouquet run" + (f" -c {shlex.quote(pairs)}" if pairs else ""),
        "config": {key: _toml(value) for key, value in read.items()} | config_row({"environment": versions}),
    }  # fmt: skip


def _changed(keys: Row) -> dict[str, Any]:
    """Return the keys that the user set: not at their defaults, and not what a command or a link sets."""
    try:
        found = changed(read_checked(keys))
    except BouquetError:  # of another version of the app
        found = {key: value for key, value in keys.items() if value != defaults().get(key)}
    return {key: value for key, value in found.items() if key not in _DERIVED}


def _data(card: Row) -> list[list[str]] | None:
    """Return what the data are and where they come from; None if only the nodes know."""
    if not card:
        return None
    skew = [(f"skew: {key}", f"{value:.3g}") for key, value in (card.get("skew") or {}).items()]
    pairs = [*in_words(card, MOST_NAMES), ("fingerprint", card.get("fingerprint")), *skew]
    return [[name, str(value)] for name, value in pairs if value]


def _clients(path: Path) -> Row:
    table = ClientTable(path)
    while table.read():
        pass
    return table.look()


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
