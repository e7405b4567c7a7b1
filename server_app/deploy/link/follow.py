"""Submits a job to a link and follows it, with the progress and the closing table of a simulation."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from server_app.deploy.kits.kit import OWNER, LinkKit
from server_app.deploy.link.jobs import FINISHED, QUEUED, RUNNING, STOPPED, Job, Jobs, StoppedJobError
from server_app.deploy.link.majority import derived
from server_app.deploy.link.status import RED, YELLOW, left_out_of, node_lines, read_status, round_lines
from server_app.deploy.link.submitters import audit, check_keys, check_submitter, may_take
from server_app.results.folder import RunFolder
from server_app.results.lines import Chunk, Row, read_lines
from server_app.run.confined import confined
from server_app.run.naming import folder_of_run, numbered, remove_run
from server_app.run.progress import Progress, closing_table, progress_of
from server_app.run.same_run import check_resumed, keys_to_resume
from task import timing, trust
from task.config.knobs import Config
from task.config.read import flatten, read_checked
from task.datasets.facts_in_words import as_text
from task.errors import BouquetError, ConfigError, choose_from
from task.population import listed
from task.references import is_reference, references_in
from task.resolve.read import read_config


def submit(kit: LinkKit, keys: dict[str, Any], *, overwrite: bool = False, submitter: str = OWNER) -> Job:
    """Queue a run at a link.

    Its result folder lies in the kit; `overwrite` deletes the run of this name first. A run that is resumed
    has the keys that it was started with, unless they are given again. `submitter` is who submits it, see
    `server_app.deploy.link.submitters`.

    Raises:
        ConfigError: A key is wrong or names a file outside the kit, a job of this name has not ended, its
            folder holds a run, there is none to resume, it was started with other keys, or the submitter may
            not submit it.
    """
    try:
        job = _submit(kit, keys, submitter, overwrite=overwrite)
    except ConfigError as err:
        audit(kit, f"a run of {submitter} was refused: {err}")
        raise
    audit(kit, f"{submitter} submitted run {job.name} ({job.number})")
    return job


def _submit(kit: LinkKit, keys: dict[str, Any], submitter: str, *, overwrite: bool) -> Job:
    if submitter != OWNER:
        check_keys(keys, submitter)
    if "runs-dir" in keys:
        raise ConfigError(
            f'run-config key "runs-dir": expected none with --link, whose results lie in {kit.runs}; '
            f"got {keys['runs-dir']!r}"
        )
    jobs = Jobs(kit.jobs, kit.runs)
    with jobs.submitting():
        # First: the keys of another's run are not this submitter's to read.
        check_submitter(jobs, submitter, str(keys.get("run-name", "")), resume=bool(keys.get("resume")))
        keys = {**keys_to_resume(keys, kit.runs), **flatten(keys)}
        config = read_config(confined(keys, kit.path))
        _check_data(config, keys, kit)
        if not config.output.keep_state:
            raise ConfigError(
                'run-config key "keep-state" (--no-keep-state): expected none with --link: the state is '
                "on the nodes, where `bouquet state` lists and deletes it"
            )
        name = config.output.run_name
        if name.startswith("."):
            raise ConfigError(
                f'run-config key "run-name": expected a name that does not start with a dot; got {name!r}'
            )
        if name:
            jobs.check_over(name)
            if overwrite:
                remove_run(kit.runs, name)
        name = folder_of_run(
            config, kit.runs, lambda name: jobs.active(name) or not may_take(jobs, name, submitter)
        ).name
        before = RunFolder(kit.runs / name).config().get("run", {}) if config.output.resume else {}
        if before:
            check_resumed(config, kit.runs / name)
        nodes = chosen(kit, keys.get("node-names", before.get("node-names", "")))
        keys = {**derived(config, len(nodes or kit.node_keys), before), **keys}
        if nodes and keys["min-nodes"] > len(nodes):
            raise ConfigError(
                f'run-config key "min-nodes": expected at most {len(nodes)}, the number of "node-names"; got '
                f"{keys['min-nodes']}"
            )
        keys |= {"run-name": name, "num-server-rounds": config.server.num_server_rounds}
        keys |= {"node-names": ",".join(nodes)} if nodes else {}
        return jobs.submit(name, keys, submitter)


def _check_data(config: Config, keys: Mapping[str, Any], kit: LinkKit) -> None:
    """Refuse a simulation's keys of data that are not in the link's kit.

    Raises:
        ConfigError: Naming them.
    """
    data = config.data
    if data.data_path and not is_reference(data.dataset) and not Path(data.data_path).exists():
        also = [key for key in ("partition", "num-clients") if key in keys]
        raise ConfigError(
            f'run-config key "data-path": expected none with --link, or a test file in {kit.path}; got '
            f"{keys['data-path']!r}, which is not there. At a link each node has its own data (bouquet node "
            f"--data): leave out {', '.join(['data-path', *also])}"
        )


def numbered_name(kit: LinkKit, keys: Mapping[str, Any], job: Job) -> str:
    """Return the line that says why a submitted job has a number in its name, "" if it has none."""
    return numbered(read_config(confined(keys, kit.path)), job.name)


def stop(kit: LinkKit, name: str, submitter: str = OWNER) -> None:
    """Ask the link to end a job; its results so far stay.

    Raises:
        ConfigError: No job of this name is queued or running.
    """
    Jobs(kit.jobs, kit.runs).ask_to_stop(name)
    audit(kit, f"{submitter} asked to stop run {name}")


def chosen(kit: LinkKit, text: str) -> tuple[str, ...]:
    """Return the names of the nodes that a run is to have, as its key ``nodes`` has them; none = all.

    Raises:
        ConfigError: One of them may not join.
    """
    names, enrolled = listed(text), kit.node_keys
    revoked = {path.stem.partition("~")[0] for path in kit.revoked_keys}
    for name in names:
        if name not in enrolled:
            why = f": {name} is revoked" if name in revoked else ""
            raise ConfigError(choose_from(f'run-config key "node-names" (--node-names){why}', name, enrolled))
    return names


def attach(kit: LinkKit, name: str) -> Job:
    """Return a job to follow.

    Raises:
        ConfigError: There is none of this name.
    """
    jobs = Jobs(kit.jobs, kit.runs)
    job = jobs.read(name)
    if job is None:
        names = ", ".join(j.name for j in jobs.all()) or "none"
        raise ConfigError(f"--attach: expected the name of a job ({names}); got {name!r}")
    return job


def follow(kit: LinkKit, job: Job) -> None:
    """Show a job's progress until it ends.

    Raises:
        StoppedJobError: It was stopped.
        BouquetError: It ended without a result; with the reason.
        KeyboardInterrupt: The user stopped following; the job goes on.
    """
    jobs = Jobs(kit.jobs, kit.runs)
    trust.user_named(references_in(job.keys))  # typed by the user who submitted it with this kit
    config = read_checked(dict(job.keys))
    folder = kit.runs / job.name
    with progress_of(config) as progress:
        job = _watch(kit, jobs, job, progress)
    if job.state == STOPPED:
        raise StoppedJobError(f"job {job.name}: {job.reason}")
    if job.state != FINISHED or not jobs.has_result(job):
        raise BouquetError(f"job {job.name} {job.state}: {job.reason or 'no reason given'}")
    result = RunFolder(folder).result()
    assert result is not None
    if config.output.progress != "none":
        closing_table(result, folder.resolve())


def _watch(kit: LinkKit, jobs: Jobs, job: Job, progress: Progress) -> Job:
    """Show the job's progress until it ends; return it."""
    fresh = not job.attempts and not job.keys.get("resume", False)
    rounds = Rounds(kit.runs / job.name / "rounds.jsonl", fresh=fresh)
    said: tuple[object, ...] = ()
    warned: set[str] = set()
    described = False  # whether the run's data are shown
    late: dict[str, float] = {}  # nodes that were never online, and since when that is known
    if read_status(kit)["state"] == RED and not job.ended:
        progress.message(f"{read_status(kit)['warnings'][0]}; the job waits")
    for line in read_status(kit).get("flower", ()):
        progress.message(line, YELLOW)
    while True:
        now = jobs.read(job.name)
        if now is None or now.id != job.id:
            raise BouquetError(f"job {job.name}: its file was replaced or deleted, so its state is unknown")
        status = read_status(kit)
        words = _words(now, _waits(status, now))
        if words != said:
            progress.message(str(words[-1]))
            said = words
        if now.state != QUEUED:
            mine = [node for node in status["nodes"] if now.runs_on(node["name"])]
            news = list(rounds.new())
            # The status is some seconds old, and may be of the run before.
            without = left_out_of(kit, now) if described or news else {}
            mine = [n | {"problem": without.get(n.get("id", ""), _problem(n, now))} for n in mine]
            for line in node_lines([node for node in mine if now.ended or not _may_come(node, late)]):
                if line not in warned:
                    warned.add(line)
                    progress.message(line, YELLOW)
            for row in news:
                if not described:
                    described = True
                    for line in as_text(RunFolder(kit.runs / job.name).config().get("data") or {}):
                        progress.message(line)
                for line in round_lines(now.name, row, now.keys.get("min-replies", 1)):
                    progress.message(line, YELLOW)
                progress.round_done(row)
        if now.ended:
            return now
        time.sleep(timing.FOLLOW_S)


def _problem(node: Mapping[str, Any], job: Job) -> str:
    """Return what is wrong with a node by the link's status, without what an earlier run said of it."""
    return node.get("problem", "") if node.get("left_out_by", "") in ("", job.name) else ""


def _may_come(node: Mapping[str, Any], late: dict[str, float]) -> bool:
    """Return whether a node that was never online may still be starting; `late` is kept between calls."""
    if node.get("online") or node.get("last_seen") is not None:
        return False
    return time.monotonic() < late.setdefault(node["name"], time.monotonic()) + timing.MUSTER_S


def _waits(status: Row, job: Job) -> str:
    """Return what a job waits for, by the status of its link."""
    return next((run.get("waits", "") for run in status.get("runs", ()) if run["name"] == job.name), "")


def _words(job: Job, waits: str) -> tuple[object, ...]:
    """Return the parts of a job's state that are reported when they change; the last is the sentence."""
    if job.state == QUEUED:
        return job.state, waits, f"job {job.name} is queued" + (f": it {waits}" if waits else "")
    if job.state == RUNNING and job.failed and job.failed == job.attempts:
        return job.failed, job.reason, f"attempt {job.failed} failed: {job.reason}"
    if job.state == RUNNING and job.attempts > 1:
        return job.state, job.attempts, f"attempt {job.attempts} of job {job.name} is running"
    return job.state, job.attempts, f"job {job.name} is {job.state}"


class Rounds:
    """Reads each line of a growing rounds.jsonl once, even if a resumed run truncates it.

    With `fresh`, a file that is there now belongs to an earlier run.
    """

    def __init__(self, path: Path, *, fresh: bool) -> None:
        self._path = path
        self._file = _identity(path) if fresh else None
        self._chunk, self._last = Chunk(), -1

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the rows that were added since the last call."""
        if self._file is not None:
            if _identity(self._path) == self._file:
                return
            self._file = None
        while True:
            self._chunk = read_lines(self._path, self._chunk.after, self._chunk.mark)
            for row in self._chunk.rows:
                if row["round"] > self._last:
                    self._last = row["round"]
                    yield row
            if not self._chunk.more:
                return


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
