"""Rows for the monitor: some keys of a line or object, with checked types and bounded sizes.

A missing value, or one of another type, becomes None, "" or 0. Names and reasons come from clients; they stay
text, on the page too.
"""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path

from server_app.results import svg
from server_app.results.lines import Row, number, read_lines
from server_app.results.people import tables_of
from server_app.results.svg import Plot
from task import timing

MOST_TEXT = 1000  # characters of one text
MOST_CLIENTS = 100_000  # of one run, to keep numbers of
SHOWN_CLIENTS = 500
MOST_QUARANTINED = 200  # of one round
MOST_PHASES = 20
MOST_GROUPS = 500  # rows of one table of groups of people
NARROWEST, WIDEST = 240, 2000  # pixels of a plot

# Run-config keys that are shown. No paths, no free text.
SHOWN = (
    "algorithm", "dataset", "model", "partition", "num-clients", "num-server-rounds", "fraction-train",
    "local-epochs", "batch-size", "learning-rate", "selection", "min-replies", "enough-replies",
    "round-timeout", "target-accuracy", "seed", "node-names",
)  # fmt: skip
VERSIONS = ("bouquet", "flwr", "torch", "python")
ROUND_NUMBERS = (
    "round", "accuracy", "loss", "client_accuracy", "client_loss", "train_loss", "asked", "answered",
    "population", "bytes_down", "bytes_up", "epsilon",
)  # fmt: skip
CLIENT_NUMBERS = ("accuracy", "loss", "train_loss", "examples", "round")
CLIENT_BYTES = ("bytes_down", "bytes_up")  # added up over the lines of a client
QUARANTINED_TEXTS = ("client", "field", "expected", "got", "reason")


def text(value: object) -> str:
    """Return a text of bounded length; "" for None."""
    if value is None:
        return ""
    words = value if isinstance(value, str) else json.dumps(value, default=str)
    return words if len(words) <= MOST_TEXT else words[:MOST_TEXT] + " …"


def mapping(value: object) -> Row:
    """Return an object, {} if it is none."""
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[Row]:
    """Return the objects of a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def texts(value: object) -> list[str]:
    """Return the texts of a list."""
    return [text(item) for item in value] if isinstance(value, list) else []


def config_row(config: Mapping[str, object]) -> dict[str, str]:
    """Return what is shown of config.json."""
    keys, versions = mapping(config.get("run")), mapping(config.get("environment"))
    shown = {key: text(keys[key]) for key in SHOWN if key in keys}
    return shown | {key: text(versions[key]) for key in VERSIONS if versions.get(key)}


def round_row(row: Row) -> Row:
    """Return what is shown of a line of rounds.jsonl."""
    dropped = objects(row.get("quarantined"))
    seconds = list(mapping(row.get("seconds")).items())[:MOST_PHASES]
    return {
        **{key: number(row.get(key)) for key in ROUND_NUMBERS},
        "skipped": row.get("skipped") is True,
        "seconds": {text(phase): number(spent) for phase, spent in seconds},
        "quarantined_count": len(dropped),
        "quarantined": [
            {key: text(entry.get(key)) for key in QUARANTINED_TEXTS} for entry in dropped[:MOST_QUARANTINED]
        ],
    }


def group_tables(result: Row) -> list[Row]:
    """Return the tables of groups of people, their cells checked; none of damaged figures."""
    try:
        tables = tables_of(result)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return []
    return [
        {
            "caption": text(table["caption"]),
            "head": texts(table["head"]),
            "rows": [
                [text(cell) if isinstance(cell, str) else number(cell) for cell in row]
                for row in table["rows"][:MOST_GROUPS]
            ],
        }
        for table in tables
    ]


def app_row(row: Row) -> Row:
    """Return what is shown of the app of a node or a link."""
    return {key: text(row.get(key)) for key in ("app_version", "app_code", "flower_version")}


def node_row(node: Row, *, old: bool) -> Row:
    """Return what is shown of a node; an old status does not say whether it is online."""
    return {
        "name": text(node.get("name")),
        "online": None if old else _truth(node.get("online")),
        "last_seen": number(node.get("last_seen")),
        "clients": number(node.get("clients")),
        "examples": number(node.get("examples")),
        **app_row(node),
        "problem": text(node.get("problem")),
    }


def process_row(process: Row, *, old: bool) -> Row:
    """Return what is shown of a process of the link; an old status does not say whether it runs."""
    return {
        "name": text(process.get("name")),
        "running": None if old else _truth(process.get("running")),
        **{key: number(process.get(key)) for key in ("pid", "restarts", "uptime_s")},
    }


def plot_row(plot: Plot, width: int) -> Row:
    """Return a plot of this width, as far as widths make sense."""
    width = min(max(width, NARROWEST), WIDEST)
    drawn = svg.as_lists(svg.draw(plot, width)) if plot else None
    return {"name": plot.name, "note": plot.note, "drawing": drawn}


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def job_row(job: Row, waits: object) -> Row:
    """Return what is shown of a job, and what it `waits` for; of its run-config keys, the nodes alone."""
    return {
        **{key: text(job.get(key)) for key in ("state", "reason")},
        "attempts": number(job.get("attempts")),
        "nodes": text(mapping(job.get("keys")).get("node-names")),
        "waits": text(waits) if job.get("state") == "queued" else "",  # the status may be older
    }


class JsonlTable:
    """What is kept of a growing file of JSON lines; `read` brings it up to date."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.clear()

    def clear(self) -> None:
        """Start from the beginning of the file."""
        self._after, self._mark = 0, ""
        self.problems: dict[str, None] = {}

    def add(self, line: Row) -> None:
        """Take in a line."""
        raise NotImplementedError

    def read(self) -> bool:
        """Read what is new, for at most about `timing.MONITOR_BUSY_S`; return whether there is more."""
        until, more = time.monotonic() + timing.MONITOR_BUSY_S, True
        while more and time.monotonic() < until:
            chunk = read_lines(self._path, self._after, self._mark)
            if chunk.restarted:
                self.clear()
            self._after, self._mark, more = chunk.after, chunk.mark, chunk.more
            self.problems |= dict.fromkeys(chunk.problems)
            for row in chunk.rows:
                self.add(row)
        return more


class RoundTable(JsonlTable):
    """The rounds of a run, for its plots."""

    def clear(self) -> None:
        """Start from the beginning of the file."""
        super().clear()
        self.rows: list[Row] = []

    def add(self, line: Row) -> None:
        """Take in a line of rounds.jsonl, without the texts of its quarantined replies."""
        self.rows.append(round_row(line) | {"quarantined": ()})


class ClientTable(JsonlTable):
    """The latest numbers of each client of a run."""

    def clear(self) -> None:
        """Start from the beginning of the file."""
        super().clear()
        self._rows: dict[str, Row] = {}
        self._left_out = False

    def look(self) -> Row:
        """Read what is new and return the table."""
        more = self.read()
        rows = sorted(self._rows.values(), key=lambda row: row["name"])
        if len(rows) > SHOWN_CLIENTS:
            rows.sort(key=lambda row: math.inf if row["accuracy"] is None else row["accuracy"])
        return {
            "clients": rows[:SHOWN_CLIENTS],
            "count": len(rows),
            "left_out": self._left_out,
            "more": more,
            "problems": list(self.problems)[:SHOWN_CLIENTS],
        }

    def add(self, line: Row) -> None:
        """Take in a line of clients.jsonl."""
        name, metrics = text(line.get("name")), mapping(line.get("metrics"))
        row = self._rows.get(name)
        if row is None:
            if len(self._rows) >= MOST_CLIENTS:
                self._left_out = True
                return
            row = {"name": name, "trained": 0, **dict.fromkeys((*CLIENT_NUMBERS, *CLIENT_BYTES))}
            self._rows[name] = row
        for key in CLIENT_BYTES:
            if (size := number(line.get(key))) is not None:
                row[key] = (row[key] or 0) + size
        if line.get("phase") == "train":
            row["trained"] += 1
            row["train_loss"] = number(metrics.get("train-loss"))
            row["examples"] = number(line.get("examples"))
            accuracy, loss = number(metrics.get("test-accuracy")), None
        else:
            accuracy, loss = number(metrics.get("accuracy")), number(metrics.get("loss"))
        if accuracy is not None or loss is not None:
            row |= {"accuracy": accuracy, "loss": loss, "round": number(line.get("round"))}
