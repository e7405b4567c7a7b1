"""Runs the jobs of a link: submits a run, watches it, and submits it again if it fails.

`server_app.deploy.link.jobs.waiting` says which jobs run at once; what happens to one does not touch another.

The runner goes by three facts: the SuperLink's state of the run, whether the result folder is locked (the
ServerApp locks it while it lives), and whether ``result.json`` of this job exists. A run that ended without a
result is resumed from its last checkpoint, after a pause that grows while there is no progress. A reason that
lasts, such as a wrong key, bad data or what the nodes' owners do not allow (`task.errors.LASTING`), would end
it again, so it ends the job; so does a lack of memory at a second attempt. After a full disk, and while
nodes of a run that has begun are away, it tries without limit. A run goes on only with the app that it began
with: another may compute other bytes.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from server_app.deploy.calls.control import Control, NodeState, RunState
from server_app.deploy.calls.control_calls import LinkError
from server_app.deploy.link.jobs import FAILED, FINISHED, QUEUED, RUNNING, STOPPED, Job, Jobs, waiting
from server_app.deploy.link.stopped import finish_stopped
from server_app.results.folder import CHECKPOINT, RunFolder
from server_app.run.run_lock import is_held
from task import timing
from task.errors import ABSENT, LASTING, PASSING_KIND, BouquetError, ConfigError, of_memory, split_kind

MOST_FRUITLESS = 10  # attempts without a new round


@dataclass
class _Attempt:
    """A job's last attempt, as far as this process has seen it."""

    held: bool = False  # the folder was locked
    asked: float = -timing.RUN_LOOK_S  # when the SuperLink was last asked about the run
    free_since: float = 0.0
    result_since: float = 0.0
    first_seen: float = 0.0  # when its turn came
    ended: float = 0.0  # when this process found that it had ended; 0 = it has not
    due: float = 0.0
    seen: set[int] = field(default_factory=set)  # nodes that were online since it ended
    fruitless: int = 0
    rounds: int = -1  # bytes of rounds.jsonl when it began


class Runner:
    """Runs the jobs of a link.

    `fab` is the app's bundle, `tell` takes one line for the operator, `most` jobs run at once, `started` is
    called after each submission, `clock` gives seconds, for pauses, and `app` names the app's version and
    code.
    """

    def __init__(
        self,
        jobs: Jobs,
        control: Control,
        fab: bytes,
        tell: Callable[[str], None],
        most: int,
        started: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        app: str = "",
    ) -> None:
        self.jobs, self.control, self._tell, self._clock = jobs, control, tell, clock
        self.busy = False  # whether there is a job that has not ended
        self._fab, self._most, self._started, self._app = fab, most, started, app
        self._attempts: dict[str, _Attempt] = {}  # by job id
        self._left: list[Job] = []  # stopped jobs whose result is still to be written
        self._writer = threading.Thread()  # writes one of them

    def look(self, nodes: list[NodeState]) -> None:
        """Advance every job whose turn it is.

        Raises:
            LinkError: The SuperLink does not answer; call again later.
            OSError: A job could not be written down, such as on a full disk; the others went on.
        """
        jobs = [job for job in self.jobs.all() if not job.ended]
        self.busy = bool(jobs)
        queue, failed = waiting(jobs, self._most), None
        for job in jobs:
            try:
                if self.jobs.shall_stop(job):
                    self._stop(job)
                elif job.id not in queue:
                    self._step(job, nodes)
            except (LinkError, OSError) as err:
                if isinstance(err, LinkError) and not err.answered:
                    raise  # another one would not be answered either
                failed = failed or err
        for job in list(self._left):
            self._leave(job)
        if failed is not None:
            raise failed

    def _step(self, job: Job, nodes: list[NodeState]) -> None:
        if job.id not in self._attempts:
            # A job that is running when this process starts lost its ServerApp with the previous process.
            self._attempts[job.id] = _Attempt(held=job.state == RUNNING, first_seen=self._clock())
        attempt = self._attempts[job.id]
        if job.state == QUEUED:
            mine = [node for node in nodes if job.runs_on(node.name)]
            away = any(node.registered and not node.online for node in mine)
            if not away or self._clock() - attempt.first_seen >= timing.MUSTER_S:
                self._submit(job, attempt)
        elif attempt.ended:
            self._again(job, attempt, nodes)
        else:
            self._watch(job, attempt)

    def _submit(self, job: Job, attempt: _Attempt, least: int = 0) -> None:
        """Start a run.

        `least` nodes must be online before it continues; 0 = the job's own number. `attempt` is the previous
        one.
        """
        if job.app not in ("", self._app):
            self._end(
                job, FAILED,
                f"it started with version {job.app} of the app, but this link now runs {self._app}, "
                "which may give a different model. To continue with this version, submit it again "
                "with the same keys and --resume; to finish it with the former one, first install "
                "that again, on the nodes too",
            )  # fmt: skip
            return
        folder = self.jobs.runs / job.name
        keys = dict(job.keys) | {"runs-dir": str(self.jobs.runs), "run-name": job.name}
        if job.attempts and self.jobs.folder_id(job.name) not in ("", job.folder_before):
            keys["resume"] = True  # the folder is this job's, not an earlier one's
        if least:
            keys["min-nodes"] = least
        self.jobs.write(job)  # on a full disk a run could not be recorded, so it must not begin
        try:
            for run in self.control.unfinished(job.name, str(self.jobs.runs)):
                self.control.stop(run)  # the link was killed after submitting it
            run = self.control.start(self._fab, keys)
            self._started()
        except ConfigError as err:
            self._end(job, FAILED, str(err))
            return
        rounds = _size(folder / "rounds.jsonl")
        self._attempts[job.id] = _Attempt(fruitless=attempt.fruitless, rounds=rounds)
        self.jobs.update(job, state=RUNNING, runs=(*job.runs, run), attempts=job.attempts + 1, app=self._app)
        self._tell(f"job {job.name}: attempt {job.attempts + 1}, run {run}")

    def _watch(self, job: Job, attempt: _Attempt) -> None:
        now = self._clock()
        held = is_held(self.jobs.runs / job.name)
        if self.jobs.has_result(job):
            attempt.result_since = attempt.result_since or now
            if not held or now - attempt.result_since > timing.SERVERAPP_CLOSES_S:
                self._end(job, FINISHED, "")
            return
        if held and now - attempt.asked < timing.RUN_LOOK_S:
            return  # its ServerApp is alive
        attempt.asked = now
        run = self.control.run(job.runs[-1]) if job.runs else None
        if run is None or run.finished:
            if self.jobs.has_result(job):  # since a moment ago
                return
            self._over(job, attempt, run or RunState("finished", "failed", "the SuperLink does not know it"))
            return
        attempt.held = attempt.held or held
        if held or not attempt.held:
            attempt.free_since = 0.0
            return
        attempt.free_since = attempt.free_since or now
        if now - attempt.free_since > timing.SERVERAPP_LOST_S:
            self.control.stop(job.runs[-1])
            self._over(job, attempt, RunState("finished", "failed", "its ServerApp was killed"))

    def _over(self, job: Job, attempt: _Attempt, run: RunState) -> None:
        """Handle an attempt that ended without a result."""
        reason = run.details.removeprefix("ServerApp failed with exception: ") or f"the run {run.how}"
        kind, text = split_kind(reason)
        if kind in LASTING:
            self._end(job, FAILED, text)
            return
        if run.how == STOPPED and "killed" not in run.details:
            self._end(job, STOPPED, "stopped at the SuperLink")
            return
        rounds = _size(self.jobs.runs / job.name / "rounds.jsonl")
        if rounds <= attempt.rounds and of_memory(text) and of_memory(job.reason):
            self._end(job, FAILED, f"{text}. The previous attempt ended the same way, so there is no other")
            return
        if rounds > attempt.rounds:
            attempt.fruitless = 0
        elif kind != PASSING_KIND and not (kind == ABSENT and rounds):
            attempt.fruitless += 1
        if attempt.fruitless >= MOST_FRUITLESS:
            self._end(job, FAILED, f"{attempt.fruitless} attempts without a new round; the last: {text}")
            return
        pause_s = min(timing.ATTEMPT_FIRST_S * 2 ** max(attempt.fruitless - 1, 0), timing.ATTEMPT_LONGEST_S)
        pause_s = timing.ATTEMPT_LONGEST_S if kind == PASSING_KIND else pause_s
        attempt.ended, attempt.due = self._clock(), self._clock() + pause_s
        if kind == ABSENT:
            until = "" if rounds else f"; it ends by itself after {MOST_FRUITLESS} attempts without a round"
            text = (
                f"{text.rstrip('.')}. The run waits for nodes: start `bouquet node KIT` on their machines, "
                f"or end the run with `bouquet run --link KIT --stop {job.name}`{until}"
            )
        self.jobs.update(job, reason=text, failed=job.attempts)
        self._tell(f"job {job.name}: run {job.runs[-1] if job.runs else '?'} ended without a result: {text}")

    def _again(self, job: Job, attempt: _Attempt, nodes: list[NodeState]) -> None:
        """Submit again, once the pause is over and the run's nodes were online."""
        now = self._clock()
        attempt.seen |= {
            node.id for node in nodes if node.online
        }  # the run waits for a node that fails again
        if now < attempt.due:
            return
        wanted = self._participants(job)
        may_come = {node.id for node in nodes if node.registered}
        if (wanted & may_come) - attempt.seen and now - attempt.ended < timing.REUNION_S:
            return
        self._submit(job, attempt, least=len(wanted & may_come & attempt.seen))

    def _participants(self, job: Job) -> set[int]:
        """Return the nodes that took part in the job's last round."""
        try:
            return {int(row["node"]) for row in RunFolder(self.jobs.runs / job.name).nodes()}
        except (BouquetError, KeyError, TypeError, ValueError):  # a damaged file
            return set()

    def _stop(self, job: Job) -> None:
        run = self.control.run(job.runs[-1]) if job.runs else None  # raises where it cannot be ended now
        if run is not None and not run.finished:
            self.control.stop(job.runs[-1])
        self._end(job, STOPPED, "stopped by the user")
        self.jobs.stopped(job.name)

    def _leave(self, job: Job) -> None:
        """Have a stopped run's results written once its ServerApp is gone, without blocking."""
        folder = self.jobs.runs / job.name
        if is_held(folder) or self._writer.is_alive():
            return
        self._left.remove(job)
        if (folder / CHECKPOINT).exists():
            self._writer = threading.Thread(target=self._write, args=(job,), daemon=True)
            self._writer.start()

    def _write(self, job: Job) -> None:
        try:
            finish_stopped(self.jobs, job)
        except (BouquetError, OSError) as err:
            self._tell(f"job {job.name}: the result of its rounds so far could not be written: {err}")

    def _end(self, job: Job, state: str, reason: str) -> None:
        if state == STOPPED:
            self._left.append(job)
        self.jobs.update(job, state=state, reason=reason)
        self._attempts.pop(job.id, None)
        self._tell(f"job {job.name} {state}" + (f": {reason}" if reason else ""))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def bundle() -> bytes:
    """Return the app as a bundle for a SuperLink.

    Raises:
        BouquetError: The app's files are not here.
    """
    from server_app.deploy.host.host import APP_DIR, app_folder
    from task.flower.app import build_bundle

    try:
        with app_folder() as folder:
            return build_bundle(folder)
    except Exception as err:  # Flower's own, and those of a damaged installation; it is raised
        raise BouquetError(f"{APP_DIR}: expected the app's files; got {type(err).__name__}: {err}") from None
