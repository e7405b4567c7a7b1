"""The queue of a sweep on disk: ``sweep.json`` in the sweep's folder, next to a result folder for each run.

A run that has its ``result.json`` is finished, whatever the queue says: killing the sweep, at any moment,
costs at most the rounds since the last checkpoints.
"""

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from server_app.results.folder import RunFolder, to_json
from server_app.results.groups import SWEEP
from server_app.results.lines import read_object
from server_app.sweep.points import Plan
from task.errors import BouquetError, ConfigError, StateError
from task.storage.files import make_folder, write_bytes
from task.storage.locks import HeldError, locked

WAITING, RUNNING, FINISHED, FAILED, STOPPED = "waiting", "running", "finished", "failed", "stopped"
VERSION = 1


@dataclass
class Entry:
    """One run of the queue."""

    name: str
    keys: dict[str, Any]
    state: str = WAITING
    error: str = ""  # why it failed or was stopped
    stopped_at: int | None = None  # the round whose result decided it
    seconds: float = 0.0  # by the clock, over all attempts

    @property
    def seed(self) -> Any:
        """The seed that the run sets, if it does."""
        return self.keys.get("seed")


@dataclass
class SweepQueue:
    """The runs of a sweep and how each of them stands; `save` after a change."""

    folder: Path
    entries: list[Entry]
    swept: dict[str, list[Any]] = field(default_factory=dict)
    command: str = ""
    started: str = ""

    def save(self) -> None:
        """Replace ``sweep.json``."""
        record = {
            "version": VERSION,
            "command": self.command,
            "started": self.started,
            "swept": self.swept,
            "points": [asdict(entry) for entry in self.entries],
        }
        write_bytes(self.folder / SWEEP, to_json(record, indent=1))

    def run(self, entry: Entry) -> RunFolder:
        """Return the result folder of a run."""
        return RunFolder(self.folder / entry.name)

    def count(self, state: str) -> int:
        """Return how many runs are in a state."""
        return sum(entry.state == state for entry in self.entries)


def open_queue(folder: Path, plan: Plan | None, command: str) -> tuple[SweepQueue, list[str]]:
    """Return the queue of a folder, made or continued, and remarks; hold the folder meanwhile, see `holding`.

    A plan with further runs is added to the queue; None goes on with what is there. Failed runs wait again.

    Raises:
        ConfigError: There is nothing to go on with, or the folder holds another sweep.
        StateError: ``sweep.json`` is damaged.
    """
    problems = list[str]()
    record = read_object(folder / SWEEP, problems)
    if problems:
        raise StateError(f"{folder}: expected a sweep's {SWEEP}; got {problems[0]}")
    if plan is None:
        check_there(folder)
    if record is None:
        assert plan is not None
        if folder.is_dir() and any(not p.name.startswith(".") for p in folder.iterdir()):
            raise ConfigError(
                f"sweep --name: expected a new folder or that of a sweep; got {folder}, which has no {SWEEP}"
            )
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        queue = SweepQueue(folder, [Entry(p.name, p.keys) for p in plan.points], plan.swept, command, now)
        queue.save()
        return queue, []
    try:
        entries = [Entry(**entry) for entry in record["points"]]
        queue = SweepQueue(folder, entries, record["swept"], record["command"], record["started"])
    except (KeyError, TypeError) as err:
        raise StateError(f"{folder / SWEEP}: damaged, or from another version: {err!r}") from None
    remarks = _extended(queue, plan, command) if plan is not None else []
    for entry in queue.entries:
        if queue.run(entry).finished():
            entry.state, entry.error = FINISHED, ""
        elif entry.state != STOPPED:
            entry.state, entry.error = WAITING, ""
    done = queue.count(FINISHED) + queue.count(STOPPED)
    begun = sum(queue.run(entry).begun() for entry in queue.entries if entry.state == WAITING)
    remarks.append(
        f"continuing {folder}: {done} of {len(queue.entries)} runs are done, {begun} continue from "
        "a checkpoint"
    )
    queue.save()
    return queue, remarks


def check_there(folder: Path) -> None:
    """Refuse to go on with a sweep that is not there.

    Raises:
        ConfigError: Saying what to give.
    """
    if not (folder / SWEEP).exists():
        raise ConfigError(
            "sweep: expected keys to sweep, such as -c 'learning-rate=0.05,0.1 seed=1..3', or the --name "
            f"of a sweep to continue; got neither, and {folder} holds none"
        )


def _extended(queue: SweepQueue, plan: Plan, command: str) -> list[str]:
    known = {entry.name: entry for entry in queue.entries}
    wanted = {point.name: point for point in plan.points}
    clash = [name for name, point in wanted.items() if name in known and known[name].keys != point.keys]
    gone = [name for name in known if name not in wanted]
    if clash or gone:
        name = (clash or gone)[0]
        got = f"other keys for {name}" if clash else f"a sweep without {name}"
        raise ConfigError(
            f"sweep --name: {queue.folder} holds another sweep: expected its {len(known)} runs, with others "
            f"or without; got {got}. Choose another --name, or give no keys, to continue it"
        )
    new = [point for point in plan.points if point.name not in known]
    if not new:
        return []
    entries = {**known, **{point.name: Entry(point.name, point.keys) for point in new}}
    queue.entries = [entries[point.name] for point in plan.points]
    queue.swept, queue.command = plan.swept, command
    return [f"{len(new)} new runs are added to the {len(known)} of {queue.folder}"]


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Hold a sweep's folder for the block, so that two sweeps never work on one.

    Raises:
        BouquetError: Another sweep holds it.
    """
    make_folder(folder)
    try:
        with locked(folder / ".lock", f"{os.getpid()}\n"):
            yield
    except HeldError as err:
        raise BouquetError(
            f"{folder}: expected a folder that no sweep uses; got one that process "
            f"{err.holder or '?'} holds. Wait until it ends, or choose another --name"
        ) from None
