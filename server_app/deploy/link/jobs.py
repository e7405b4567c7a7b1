"""Jobs of a link: the submitted runs and their states, one JSON file each, ``jobs/NAME.json``.

``bouquet run --link`` and the link's port for submitters write a new one; from then on only the link changes
it. A file ``jobs/NAME.stop`` asks the link to end a job. `waiting` is the queue: it says which jobs may run.
"""

import dataclasses
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from server_app.deploy.kits.kit import OWNER
from task import timing
from task.errors import BouquetError, ConfigError, StateError
from task.population import listed, some
from task.storage.files import sync_folder, write_json, write_text
from task.storage.locks import HeldError, locked

QUEUED, RUNNING, FINISHED, FAILED, STOPPED = "queued", "running", "finished", "failed", "stopped"
ENDED = (FINISHED, FAILED, STOPPED)
SHOWN = 3  # jobs that another waits for
Value = bool | int | float | str


class StoppedJobError(BouquetError):
    """A job that was followed was stopped; its results so far stay."""


@dataclass(frozen=True)
class Job:
    """A run that was submitted."""

    name: str  # of the result folder
    keys: Mapping[str, Value]  # run-config keys, without runs-dir
    id: str  # distinguishes successive jobs of one name
    state: str = QUEUED  # "queued", "running", "finished", "failed" or "stopped"
    reason: str = ""  # why the last attempt ended; of a failed job, why there will be no other
    runs: tuple[int, ...] = ()  # numbers of Flower's runs so far, one for each attempt
    attempts: int = 0  # how often it was submitted
    failed: int = 0  # which of these attempts was the last that ended without a result
    result_before: int = 0  # time of change, in ns, of an earlier run's result.json; 0 = none
    folder_before: str = ""  # identity of the run whose folder had this name; "" = none
    submitter: str = OWNER  # who submitted it
    app: str = ""  # which app it began with: version and code
    created: float = 0.0  # seconds since 1970
    updated: float = 0.0  # seconds since 1970

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in ENDED

    @property
    def number(self) -> int:
        """Its number for Flower's own commands; Flower's runs of it have others, one for each attempt."""
        return int(self.id[:15], 16)

    @property
    def nodes(self) -> frozenset[str]:
        """Names of the nodes that it runs on; none = all."""
        return frozenset(listed(str(self.keys.get("node-names", ""))))

    def runs_on(self, node: str) -> bool:
        """Return whether a node is one of those."""
        return not self.nodes or node in self.nodes

    def shares(self, other: "Job") -> bool:
        """Return whether the two cannot run at once, because of a node."""
        return not self.nodes or not other.nodes or bool(self.nodes & other.nodes)


def waiting(jobs: Iterable[Job], most: int) -> dict[str, str]:
    """Return, by id, what each queued job waits for; jobs that are not listed may run.

    A job has its nodes to itself, and gets them in the order of submission: it waits for each job that shares
    a node with it and runs or was submitted before it. So no younger job overtakes it on a node, and none
    waits for ever.

    Args:
        jobs: All jobs, the oldest first.
        most: Jobs that run at once; of those whose nodes are free, the oldest come first.
    """
    queued = [job for job in jobs if job.state == QUEUED]
    before = [job for job in jobs if job.state == RUNNING]
    free, found = most - len(before), {}
    for job in queued:
        rivals = [other for other in before if job.shares(other)]
        if rivals:
            more = f"; and for {len(rivals) - SHOWN} more jobs" if len(rivals) > SHOWN else ""
            found[job.id] = "waits " + "; ".join(_claim(job, other) for other in rivals[:SHOWN]) + more
        elif free <= 0:
            found[job.id] = f"waits until fewer than {most} jobs run (max-runs in the link's kit.toml)"
        else:
            free -= 1
        before.append(job)
    return found


def _claim(job: Job, other: Job) -> str:
    shared = sorted(job.nodes & other.nodes or job.nodes or other.nodes)
    how = "runs" if other.state == RUNNING else "comes first"
    return f"for {some(shared) if shared else 'all nodes'}, where job {other.name} {how}"


class Jobs:
    """The jobs of a link.

    `runs` is the folder of the result folders.
    """

    def __init__(self, folder: Path, runs: Path) -> None:
        self.folder = folder
        self.runs = runs

    def path(self, name: str) -> Path:
        """Return the file of a job."""
        return self.folder / f"{name}.json"

    @contextmanager
    def submitting(self) -> Iterator[None]:
        """Hold the lock for submissions during the block, so that names stay free.

        Raises:
            BouquetError: Another one takes too long.
        """
        try:
            with locked(self.folder / ".lock", f"{os.getpid()}\n", wait_s=timing.SUBMIT_S):
                yield
        except HeldError as err:
            raise BouquetError(
                f"{self.folder}: expected to submit a job; process {err.holder or '?'} has been "
                f"submitting one for {timing.SUBMIT_S:g} s. Try again"
            ) from None

    def submit(self, name: str, keys: Mapping[str, Value], submitter: str = OWNER) -> Job:
        """Queue a job.

        Raises:
            ConfigError: One of this name is queued or running.
        """
        self.check_over(name)
        now = time.time()
        job = Job(
            name, dict(keys), uuid.uuid4().hex, created=now, updated=now,
            submitter=submitter, result_before=self.result_time(name), folder_before=self.folder_id(name),
        )  # fmt: skip
        self._stop_file(name).unlink(missing_ok=True)
        self.write(job)
        return job

    def active(self, name: str) -> bool:
        """Return whether a job of this name is queued or running."""
        job = self.read(name)
        return job is not None and not job.ended

    def check_over(self, name: str) -> None:
        """Refuse a name whose job has not ended.

        Raises:
            ConfigError: One of this name is queued or running.
        """
        if self.active(name):
            raise ConfigError(
                'run-config key "run-name": expected a name that no queued or running job has; got '
                f"{name!r}. Watch that job with --attach {name}, end it with --stop {name}, or choose "
                "another --run-name"
            )

    def read(self, name: str) -> Job | None:
        """Return a job, None if there is none of this name.

        Raises:
            StateError: Its file is damaged.
        """
        path = self.path(name)
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            fields = {field.name for field in dataclasses.fields(Job)}
            known = {key: v for key, v in value.items() if key in fields}
            return Job(**{**known, "runs": tuple(int(run) for run in known.get("runs", ()))})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, AttributeError) as err:
            raise StateError(
                f"{path}: expected the file of a job; got one that cannot be read "
                f"({type(err).__name__}: {err}). Delete it and submit the run again, with --resume"
            ) from None

    def write(self, job: Job) -> None:
        """Replace the file of a job."""
        write_json(self.path(job.name), dataclasses.asdict(job))

    def update(self, job: Job, **changes: object) -> Job:
        """Change a job and write it down."""
        changed = dataclasses.replace(job, **changes, updated=time.time())  # type: ignore[arg-type]
        self.write(changed)
        return changed

    def all(self) -> list[Job]:
        """Return the jobs, the oldest first, without those whose file is damaged."""
        return self._scan()[0]

    def damaged(self) -> list[str]:
        """Return what is wrong with files that cannot be read."""
        return self._scan()[1]

    def _scan(self) -> tuple[list[Job], list[str]]:
        found, damaged = [], []
        for path in sorted(self.folder.glob("*.json")):
            try:
                if job := self.read(path.stem):
                    found.append(job)
            except StateError as err:
                damaged.append(str(err))
        return sorted(found, key=lambda job: (job.created, job.name)), damaged

    def ask_to_stop(self, name: str) -> None:
        """Ask the link to end a job; its results so far stay.

        Raises:
            ConfigError: No job of this name is queued or running.
        """
        job = self.read(name)
        if job is None or job.ended:
            names = ", ".join(j.name for j in self.all() if not j.ended) or "none"
            raise ConfigError(
                f"--stop: expected a job that is queued or running ({names}); got {name!r}"
                + (f", which has {job.state}" if job else "")
            )
        write_text(self._stop_file(name), job.id + "\n")

    def shall_stop(self, job: Job) -> bool:
        """Return whether this job is to be ended."""
        try:
            return self._stop_file(job.name).read_text(encoding="utf-8").strip() == job.id
        except OSError:
            return False

    def stopped(self, name: str) -> None:
        """Remove the request to end it."""
        self._stop_file(name).unlink(missing_ok=True)
        sync_folder(self.folder)

    def _stop_file(self, name: str) -> Path:
        return self.folder / f"{name}.stop"

    def has_result(self, job: Job) -> bool:
        """Return whether the result folder has a result of this job."""
        return self.result_time(job.name) not in (0, job.result_before)

    def result_time(self, name: str) -> int:
        """Return when a run's result.json was changed, in ns; 0 if there is none."""
        try:
            return (self.runs / name / "result.json").stat().st_mtime_ns
        except OSError:
            return 0

    def folder_id(self, name: str) -> str:
        """Return the identity of the run whose folder is there, "" if there is none."""
        try:
            config = json.loads((self.runs / name / "config.json").read_text(encoding="utf-8"))
            return str(config.get("id", ""))
        except (OSError, ValueError, AttributeError):
            return ""
