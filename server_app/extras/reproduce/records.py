"""The measured runs of the tables: ``results.jsonl`` next to a table file, one line a run.

Only `bouquet reproduce` writes it. It stands apart from the table file, which people edit, so that a change
of a setting never carries a result along: a run belongs to a cell because all its keys say so (`run_id`).
"""

import datetime
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from server_app.extras.reproduce.measures import values_of
from server_app.results.folder import RunFolder, to_json
from server_app.results.lines import number, parse, split
from task.config.knobs import CHANGE_NO_RESULT
from task.config.read import defaults
from task.config.run_name import changed, default_name
from task.config.sections import Value
from task.errors import StateError
from task.resolve.read import read_config
from task.storage.locks import HeldError, locked

RESULTS = "results.jsonl"
LOCK_WAIT_S = 60.0
AGAIN = "Give the same command again"
SECONDS_AN_HOUR = 3600
_WITH_GPU = re.compile(r", \w+, [A-Z][A-Z0-9 ]*, .")  # architecture, vector instructions, then the GPU


@dataclass(frozen=True)
class RunRecord:
    """The record of one finished run."""

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
    def on_gpu(self) -> bool:
        """Whether its machine had a GPU."""
        return _WITH_GPU.search(self.machine) is not None

    @property
    def round_seconds(self) -> float:
        """Seconds of a round."""
        return self.hours * SECONDS_AN_HOUR / max(self.rounds, 1)


def results_of(table: Path) -> Path:
    """Return the results file of a table's file: that of its folder, which tables share."""
    return table.parent / RESULTS


def run_id(keys: Mapping[str, Value]) -> str:
    """Return a fingerprint of all keys that decide a run's numbers.

    With a target the number of rounds is only a limit, and two runs with different limits are the same run,
    unless the rounds depend on it (`Config.horizon`).
    """
    own = {key: keys[key] for key in ("learning-rate", "seed") if key in keys}
    shared = _terms(tuple(sorted((key, value) for key, value in keys.items() if key not in own)))
    shared = shared | {key: value for key, value in own.items() if value != defaults()[key]}
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:12]


@cache  # a cell's runs differ in rate and seed only
def _terms(pairs: tuple[tuple[str, Value], ...]) -> dict[str, Value]:
    config = read_config(dict(pairs))
    limit = config.server.target_accuracy > 0 and not config.horizon
    left = CHANGE_NO_RESULT | {"node-names"} | ({"num-server-rounds"} if limit else set())
    return {key: value for key, value in changed(config).items() if key not in left}


def folder_name(keys: Mapping[str, Value]) -> str:
    """Return the name of a run's folder: the run's own name, and its fingerprint."""
    return f"{default_name(read_config(keys))}-{run_id(keys)}"


def record_of(folder: RunFolder, keys: Mapping[str, Value], table: str, cell: str, rate: float) -> RunRecord:
    """Return the record of a finished run at a learning rate.

    Raises:
        StateError: Its result.json is damaged.
    """
    result, config = folder.result() or {}, folder.config()
    for key in ("rounds", "seconds"):
        if number(result.get(key)) is None:
            raise StateError(
                f'{folder.path / "result.json"}: key "{key}": expected a number, which every run writes; got '
                f"{result.get(key)!r}. Delete the run's folder, and it runs again"
            )
    made: Mapping[str, Any] = config.get("environment") or {}
    target = read_config(keys).server.target_accuracy
    commit = (made.get("git_commit") or "")[:12]
    ended = datetime.datetime.fromtimestamp((folder.path / "result.json").stat().st_mtime, datetime.UTC)
    return RunRecord(
        run_id(keys), table, cell, rate, int(keys["seed"]), int(result["rounds"]),
        result.get("ended_by"), values_of(result, target, folder.rounds()), str(result.get("model_sha256")),
        round(float(result["seconds"]) / SECONDS_AN_HOUR, 5), str(made.get("machine") or "unknown"),
        ended.date().isoformat(), str(made.get("bouquet") or ""), commit + "+" * bool(made.get("git_dirty")),
        int(keys.get("data-seed", -1)),
    )  # fmt: skip


def _parsed(line: bytes) -> RunRecord:
    record = RunRecord(**parse(line, strict=True))
    for name, kind in get_type_hints(RunRecord).items():
        if not _fits(value := getattr(record, name), kind):
            raise ValueError(f'key "{name}": a value of the wrong type, {value!r}')
    return record


def _fits(value: object, kind: Any) -> bool:
    if kind == Mapping[str, float]:
        return isinstance(value, dict) and all(number(each) is not None for each in value.values())
    return number(value) is not None if kind in (int, float) else isinstance(value, kind)


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
                record = _parsed(line)
            except (ValueError, TypeError) as err:
                raise StateError(
                    f"{self.path}, line {i}: damaged: expected the record of a run, as `bouquet reproduce` "
                    f"writes it; got one that cannot be read: {err}. Delete the line, and its run is repeated"
                ) from None
            found[record.run] = record
        self.by_run = found

    def add(self, record: RunRecord) -> bool:
        """Append a run, and read what others wrote; return whether it was not there yet.

        Raises:
            StateError: The file is damaged, held by another process, or cannot be written; it is as before.
        """
        try:
            with locked(self.path, wait_s=LOCK_WAIT_S):
                self.read()
                if self.by_run.get(record.run) == record:
                    return False
                _append(self.path, to_json(asdict(record)))
                self.by_run[record.run] = record
                return True
        except HeldError:
            raise StateError(
                f"{self.path}: expected it to be free within {LOCK_WAIT_S:g} s; another process holds it. "
                f"{AGAIN} once that has ended"
            ) from None
        except OSError as err:
            raise StateError(
                f"{self.path}: expected to write a run's record; got: {err.strerror or err}. {AGAIN} once it "
                "can be: the run's folder has its result"
            ) from err


def _append(path: Path, line: bytes) -> None:
    """Append a whole line, or nothing."""
    with path.open("r+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size:  # the last line may have been edited
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else b"\n" + line
        try:
            while line:
                line = line[file.write(line) :]
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(size)
            raise
