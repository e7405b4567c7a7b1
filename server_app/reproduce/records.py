"""The measured runs of the tables: ``results.jsonl`` next to a table file, one line a run.

Only `bouquet reproduce` writes it. It stands apart from the table file, which people edit, so that a change
of a setting never carries a result along: a run belongs to a cell because all its keys say so (`run_id`).
"""

import datetime
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from server_app.reproduce.measures import values_of
from server_app.results.folder import RunFolder, to_json
from server_app.results.lines import parse, split
from task.config.knobs import CHANGE_NO_RESULT
from task.config.read import defaults, read_config
from task.config.run_name import changed, default_name
from task.config.sections import Value
from task.errors import StateError
from task.storage.locks import locked

RESULTS = "results.jsonl"
LOCK_WAIT_S = 60.0
SECONDS_AN_HOUR = 3600


@dataclass(frozen=True)
class RunRecord:
    """What is kept of one finished run."""

    run: str  # `run_id`
    table: str  # the table and cell that asked for it first; further cells with the same keys share it
    cell: str
    learning_rate: float
    seed: int
    rounds: int  # those it did
    ended_by: str | None
    values: Mapping[str, float]  # by measure, of those that it has
    model_sha256: str
    hours: float
    machine: str  # processor, the vector instructions that torch used, and the GPU
    date: str
    version: str
    commit: str  # with "+" if the code had changes that were not committed
    data_seed: int = -1  # of the data; -1 = the seed

    @property
    def round_seconds(self) -> float:
        """Seconds of a round."""
        return self.hours * SECONDS_AN_HOUR / max(self.rounds, 1)


def results_of(table: Path) -> Path:
    """Return the results file of a table's file: that of its folder, which tables share."""
    return table.parent / RESULTS


def run_id(keys: Mapping[str, Value]) -> str:
    """Return a fingerprint of all keys that decide a run's numbers.

    With a target the number of rounds is only a limit, under which two runs are the same one.
    """
    own = {key: keys[key] for key in ("learning-rate", "seed")}
    shared = _terms(tuple(sorted((key, value) for key, value in keys.items() if key not in own)))
    shared = shared | {key: value for key, value in own.items() if value != defaults()[key]}
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:12]


@cache  # a cell's runs differ in rate and seed only
def _terms(pairs: tuple[tuple[str, Value], ...]) -> dict[str, Value]:
    config = read_config(dict(pairs))
    # The rates of a cosine follow from the last round.
    limit = config.server.target_accuracy > 0 and config.train.lr_schedule != "cosine"
    left = CHANGE_NO_RESULT | {"nodes"} | ({"num-server-rounds"} if limit else set())
    return {key: value for key, value in changed(config).items() if key not in left}


def folder_name(keys: Mapping[str, Value]) -> str:
    """Return the name of a run's folder: the run's own name, and its fingerprint."""
    return f"{default_name(read_config(keys))}-{run_id(keys)}"


def record_of(folder: RunFolder, keys: Mapping[str, Value], table: str, cell: str) -> RunRecord:
    """Return what is kept of a finished run."""
    result, config = folder.result() or {}, folder.config()
    made: Mapping[str, Any] = config.get("environment") or {}
    target = read_config(keys).server.target_accuracy
    commit = (made.get("git_commit") or "")[:12]
    ended = datetime.datetime.fromtimestamp((folder.path / "result.json").stat().st_mtime, datetime.UTC)
    return RunRecord(
        run_id(keys), table, cell, float(keys["learning-rate"]), int(keys["seed"]), int(result["rounds"]),
        result.get("ended_by"), values_of(result, target, folder.rounds()), str(result.get("model_sha256")),
        round(float(result["seconds"]) / SECONDS_AN_HOUR, 5), str(made.get("machine") or "unknown"),
        ended.date().isoformat(), str(made.get("bouquet") or ""), commit + "+" * bool(made.get("git_dirty")),
        int(keys.get("data-seed", -1)),
    )  # fmt: skip


class RunRecords:
    """The lines of a results file; `add` is safe among several processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.by_run: dict[str, RunRecord] = {}
        self.read()

    def read(self) -> None:
        """Read the file again; of two lines of one run the later holds.

        Raises:
            StateError: A line is damaged; names it.
        """
        try:
            lines, rest = split(self.path.read_bytes())
        except FileNotFoundError:
            lines, rest = [], b""
        found = dict[str, RunRecord]()
        for i, line in enumerate([*lines, rest] if rest else lines, start=1):
            try:
                record = RunRecord(**parse(line, strict=True))
            except (ValueError, TypeError) as err:
                raise StateError(
                    f"{self.path}, line {i}: damaged: expected the record of a run, as `bouquet reproduce` "
                    f"writes it; got one that cannot be read: {err}. Without the line its run is done again"
                ) from None
            found[record.run] = record
        self.by_run = found

    def add(self, record: RunRecord) -> None:
        """Append a run, if another process has not, and read what others wrote."""
        with locked(self.path, wait_s=LOCK_WAIT_S):
            self.read()
            if self.by_run.get(record.run) != record:
                with self.path.open("ab") as file:
                    file.write(to_json(asdict(record)))
                    file.flush()
                    os.fsync(file.fileno())
                self.by_run[record.run] = record
