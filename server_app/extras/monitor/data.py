"""The monitor's data: runs, jobs and status of a folder, as plain objects.

Nothing is written, locked or kept open. A missing, damaged or deleted file is no error: "problems" says what
is wrong.
"""

import os
import threading
import time
import tomllib
from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TypeVar

from server_app.deploy.link.status import RED
from server_app.results import svg
from server_app.results.folder import CLIENTS, CONFIG, RESULT, ROUNDS
from server_app.results.lines import Row, last_rows, number, problem, read_lines, read_object
from server_app.results.people import last_of
from server_app.results.plots import by_round
from server_app.results.rows import (
    ClientTable,
    RoundTable,
    app_row,
    config_row,
    group_tables,
    job_row,
    mapping,
    node_row,
    objects,
    plot_row,
    process_row,
    round_row,
    text,
    texts,
)
from task import timing
from task.errors import ConfigError
from task.resolve.effective import models_in

MOST_RUNS = 200  # in the list, the latest
KEPT_TABLES = 16  # two of a run
LOOK_BACK = 50  # rounds, for the last accuracy
LONGEST_NAME = 250  # bytes, with room for ".json"
T = TypeVar("T", ClientTable, RoundTable)
OPEN_STATES = ("queued", "running", "failed", "stopped")


class GoneError(Exception):
    """There is no such run, or it was deleted."""


class Watched:
    """The folder that the monitor shows: a link's kit, or a folder of result folders.

    Each request decides which of the two it is, so the folder may go and come back.

    Raises:
        ConfigError: It does not exist, is a file, one run's result folder, or the kit of a node.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        self._tables: OrderedDict[Path, ClientTable | RoundTable] = OrderedDict()
        self._lock = threading.Lock()
        hint = "give the kit of a link, or the folder that holds result folders"
        if not self.path.exists():
            raise ConfigError(f"monitor: expected a folder; {path} does not exist: {hint}")
        if not self.path.is_dir():
            raise ConfigError(f"monitor: expected a folder; got the file {path}: {hint}")
        if (self.path / CONFIG).exists():
            raise ConfigError(
                f"monitor: {path} is the result folder of one run: {hint}, here {self.path.parent}"
            )
        if self._kind() == "node":
            raise ConfigError(f"monitor: {path} is the kit of a node, which holds no runs: {hint}")

    def _kind(self) -> str:
        """Return "link" or "node" for a kit, "" for a folder of result folders."""
        try:
            return str(tomllib.loads((self.path / "kit.toml").read_text("utf-8")).get("kind", "link"))
        except FileNotFoundError:
            # In a container the certificates and keys of a kit need not be there.
            return "link" if any(os.path.isdir(self.path / name) for name in ("state", "jobs")) else ""
        except (OSError, ValueError):
            return "link"

    def _place(self) -> Row:
        missing = [] if os.path.isdir(self.path) else [f"The folder {self.path} does not exist."]
        return {"folder": str(self.path), "kit": bool(self._kind()), "now": time.time(), "problems": missing}

    def _runs_dir(self) -> Path:
        return self.path / "runs" if self._kind() else self.path

    def _job_path(self, name: str) -> Path:
        return self.path / "jobs" / f"{name}.json"

    def has(self, name: str) -> bool:
        """Return whether there is a run of this name, which may be any text from a browser."""
        if not _is_name(name):
            return False
        job = bool(self._kind()) and os.path.isfile(self._job_path(name))
        return job or _is_run(self._runs_dir() / name)

    def _run_path(self, name: str) -> Path:
        if not self.has(name):
            raise GoneError(name)
        return self._runs_dir() / name

    def _names(self, problems: list[str]) -> list[str]:
        """Return the names of runs: of result folders, and of jobs without one."""
        names = {name for name in _listing(self._runs_dir(), problems) if _is_run(self._runs_dir() / name)}
        if self._kind():
            jobs = _listing(self.path / "jobs", problems)
            names |= {name.removesuffix(".json") for name in jobs if name.endswith(".json")}
        wrong = [name for name in names if not _is_name(name) and not name.startswith(".")]
        problems += [f"Not shown, because the name cannot be printed: {name!a}" for name in sorted(wrong)]
        return [name for name in names if _is_name(name)]

    def runs(self) -> Row:
        """Return the list of runs, the latest first."""
        answer = self._place()
        waits = self._waits()
        runs = [self._summary(name, waits) for name in self._names(answer["problems"])]
        runs.sort(key=lambda run: (run["updated"] or 0.0, run["name"]), reverse=True)
        return answer | self._health() | {"count": len(runs), "runs": runs[:MOST_RUNS]}

    def run(self, name: str) -> Row:
        """Return one run.

        Raises:
            GoneError: There is no such run.
        """
        path = self._run_path(name)
        config = config_row(read_object(path / CONFIG, []) or {})
        result = read_object(path / RESULT, []) or {}
        rows = list(islice(last_rows(path / ROUNDS), LOOK_BACK))[::-1]
        return (
            self._place()
            | self._health()
            | {
                "run": self._summary(name, self._waits()),
                "groups": group_tables(last_of(rows) | result),
                "config": config,
            }
        )

    def _waits(self) -> Row:
        """Return by run what its job waits for."""
        status = read_object(self._status_path, []) or {}
        return {text(run.get("name")): run.get("waits") for run in objects(status.get("runs"))}

    def _summary(self, name: str, waits: Row) -> Row:
        path, problems = self._runs_dir() / name, list[str]()
        config = read_object(path / CONFIG, problems) or {}
        result = read_object(path / RESULT, problems)
        end = "unfinished" if result is None else "stopped" if result.get("stopped") else "finished"
        written = read_object(self._job_path(name), problems) if self._kind() else None
        job = None if written is None else job_row(written, waits.get(name))
        keys = mapping((written or {}).get("keys")) | mapping(config.get("run"))
        rows = list(islice(last_rows(path / ROUNDS), LOOK_BACK))
        accuracy, on = _accuracy(rows)
        # A job may be queued for a run that has finished before.
        state = job["state"] if job and job["state"] in OPEN_STATES else ""
        files = (path / ROUNDS, path / CONFIG, path / RESULT, self._job_path(name))
        return {
            "name": name,
            "state": state or end,
            **{key: text(keys.get(key)) for key in ("algorithm", "dataset")},
            "model": models_in(keys) or None,
            "round": number(rows[0].get("round")) if rows else None,
            "of": number(keys.get("num-server-rounds")),
            "accuracy": accuracy,
            "measured_on": on,
            "started": text(config.get("started")),
            "updated": _modified(*files),
            "job": job,
            "problems": problems,
        }

    def rounds(self, name: str, after: int, mark: str) -> Row:
        """Return the rounds since the last answer.

        `after` and `mark` are as in the last answer; at first 0 and "".

        Raises:
            GoneError: There is no such run.
        """
        chunk = read_lines(self._run_path(name) / ROUNDS, after, mark)
        return {
            "rounds": [round_row(row) for row in chunk.rows],
            **{key: getattr(chunk, key) for key in ("after", "mark", "restarted", "more", "problems")},
        }

    def clients(self, name: str) -> Row:
        """Return the latest numbers of a run's clients, or of those with the lowest accuracies if many.

        Raises:
            GoneError: There is no such run.
        """
        path = self._run_path(name) / CLIENTS
        with self._lock:
            return self._table(path, ClientTable).look()

    def plots(self, name: str, widths: Mapping[str, int]) -> Row:
        """Return the plots of a run by round, as trees of elements; null for what has no data.

        `widths` are pixels by plot.

        Raises:
            GoneError: There is no such run.
        """
        path = self._run_path(name)
        more, rows = self._all_rounds(path)
        keys = mapping((read_object(path / CONFIG, []) or {}).get("run"))
        target, loss = number(keys.get("target-accuracy")) or 0.0, str(keys.get("loss") or "")
        plots = by_round(rows, target, named_loss=loss, keys=keys)
        return {"plots": [plot_row(plot, widths.get(plot.name, svg.WIDTH)) for plot in plots], "more": more}

    def all_rounds(self, name: str) -> list[Row]:
        """Return all rounds of a run that could be read so far.

        Raises:
            GoneError: There is no such run.
        """
        return self._all_rounds(self._run_path(name))[1]

    def _all_rounds(self, path: Path) -> tuple[bool, list[Row]]:
        """Return whether there are more than could be read in time, and the rounds."""
        with self._lock:
            table = self._table(path / ROUNDS, RoundTable)
            return table.read(), list(table.rows)

    def _table(self, path: Path, kind: type[T]) -> T:
        """Return the table of a file; the caller holds the lock."""
        table = self._tables.pop(path, None)
        if not isinstance(table, kind):
            table = kind(path)
        self._tables[path] = table
        while len(self._tables) > KEPT_TABLES:
            self._tables.popitem(last=False)
        return table

    def nodes(self) -> Row:
        """Return the link's latest status of its nodes and processes."""
        answer = self._place()
        status = read_object(self._status_path, answer["problems"])
        found = status or {}
        written, old = self._age(found)
        return answer | {
            "there": status is not None,
            "written": written,
            "old": old,
            **self._health(),
            "address": text(found.get("address")),
            **app_row(found),
            "nodes": [node_row(node, old=old) for node in objects(found.get("nodes"))],
            "processes": [process_row(process, old=old) for process in objects(found.get("processes"))],
        }

    @property
    def _status_path(self) -> Path:
        return self.path / "state" / "status.json"

    def _age(self, status: Row) -> tuple[float | int | None, bool]:
        """Return when a status was written, and whether that is too long ago."""
        written = number(status.get("written")) or _modified(self._status_path)
        return written, written is not None and time.time() - written > timing.STATUS_OLD_S

    def _health(self) -> Row:
        """Return the state of the link, "" for a folder without one, and its warnings."""
        status = read_object(self._status_path, []) or {}
        _, old = self._age(status)
        late = ["The link is not running or does not respond. This is its last status."] if old else []
        state = RED if old else text(status.get("state"))
        return {"state": state, "warnings": late + texts(status.get("warnings"))}


def _modified(*paths: Path) -> float | None:
    """Return when the latest of these files was written, in seconds since 1970; None if none is there."""
    times = []
    for path in paths:
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(times, default=None)


def _listing(folder: Path, problems: list[str]) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as err:
        problems.append(problem(folder, err))
        return []


def _is_name(name: str) -> bool:
    """Return whether this can be the name of something right below a folder."""
    fits = len(name) > 0 and name.isprintable() and len(name.encode()) <= LONGEST_NAME
    return fits and not name.startswith(".") and not {"/", "\\"} & {*name}


def _is_run(path: Path) -> bool:
    return any(os.path.isfile(path / name) for name in (CONFIG, ROUNDS, RESULT))


def _accuracy(rows: list[Row]) -> tuple[float | int | None, str]:
    """Return the last accuracy, the server's if it has any, and where it was measured."""
    for key, on in (("accuracy", "server"), ("client_accuracy", "clients")):
        for row in rows:
            if (value := number(row.get(key))) is not None:
                return value, on
    return None, ""
