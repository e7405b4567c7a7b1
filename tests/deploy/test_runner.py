"""The runner's decisions: from the run's state, the folder's lock and the result, and nothing else."""

from __future__ import annotations

import errno
import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import Queue
from threading import Event
from typing import Any

import pytest

from server_app.deploy.calls.control import NodeState, RunState
from server_app.deploy.calls.control_calls import LinkError
from server_app.deploy.link import runner as module
from server_app.deploy.link.jobs import FAILED, FINISHED, QUEUED, RUNNING, STOPPED, Job, Jobs
from server_app.deploy.link.runner import MOST_FRUITLESS, Runner
from server_app.run.run_lock import holding
from task import timing
from task.errors import LASTING, ConfigError

ALIVE = RunState("running")
LOST = RunState("finished", "failed", "No heartbeat received from the task")


class Link:
    """A SuperLink of which the test says how its runs are."""

    def __init__(self) -> None:
        self.submitted: list[dict[str, Any]] = []
        self.stopped: list[int] = []
        self.state: RunState | None = ALIVE
        self.states: dict[int, RunState] = {}  # of single runs, in the place of `state`
        self.orphans: list[int] = []
        self.down = False
        self.refusal = ""

    def start(self, fab: bytes, keys: dict[str, Any]) -> int:
        self._answer()
        if self.refusal:
            raise ConfigError(self.refusal)
        self.submitted.append(dict(keys))
        self.state = ALIVE
        return len(self.submitted)

    def run(self, number: int) -> RunState | None:
        self._answer()
        return self.states.get(number, self.state)

    def stop(self, number: int) -> None:
        self.stopped.append(number)

    def unfinished(self, name: str, runs_dir: str) -> list[int]:
        return self.orphans

    def _answer(self) -> None:
        if self.down:
            raise LinkError("down")


class World:
    """A runner with a clock, a SuperLink and a ServerApp that hold still until the test moves them."""

    def __init__(self, folder: Path) -> None:
        self.jobs, self.link = Jobs(folder / "jobs", folder / "runs"), Link()
        self.now, self.nodes = 100.0, [node(1), node(2)]
        self.said: list[str] = []
        self.started: list[int] = []  # the number of runs at each call of `started`
        self.held: ExitStack | None = None
        self.restart()

    def restart(self, app: str = "1 (a)") -> None:
        told = lambda: self.started.append(len(self.link.submitted))  # noqa: E731
        self.runner = Runner(
            self.jobs,
            self.link,
            b"fab",
            self.said.append,
            2,
            told,
            lambda: self.now,
            app,  # type: ignore[arg-type]
        )

    def look(self, after_s: float = 0.0) -> None:
        self.now += after_s
        self.runner.look(self.nodes)

    def begin(self) -> None:
        """The ServerApp begins: makes the folder and holds it."""
        folder = self.folder
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "config.json").exists():
            (folder / "config.json").write_text(json.dumps({"id": "this"}))
        self.held = ExitStack()
        self.held.enter_context(holding(folder, 0.0))

    def end(self) -> None:
        """The ServerApp ends, however."""
        assert self.held is not None
        self.held.close()
        self.held = None

    def rounds(self, number: int) -> None:
        (self.folder / "rounds.jsonl").write_text("x" * number)

    @property
    def folder(self) -> Path:
        return self.jobs.runs / "a"

    @property
    def state(self) -> str:
        job = self.jobs.read("a")
        assert job is not None
        return job.state

    @property
    def reason(self) -> str:
        job = self.jobs.read("a")
        assert job is not None
        return job.reason


def node(number: int, *, online: bool = True, registered: bool = True) -> NodeState:
    return NodeState(number, f"n{number}", b"", registered, online, None)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    if made.held is not None:
        made.end()


def test_a_job_is_submitted_watched_and_finished_by_its_result(world: World) -> None:
    world.jobs.submit("a", {"seed": 3, "min-nodes": 2})
    world.look()
    assert world.link.submitted == [
        {"seed": 3, "min-nodes": 2, "run-name": "a", "runs-dir": str(world.jobs.runs)}
    ]
    assert world.started == [1]  # the parent of ServerApps looks for its task at once
    world.begin()
    world.look(1)
    assert world.state == RUNNING
    (world.folder / "result.json").write_text("{}")
    world.look(1)
    assert world.state == RUNNING  # the ServerApp still writes its report
    world.end()
    world.look(1)
    assert (world.state, len(world.link.submitted)) == (FINISHED, 1)


def test_a_new_run_waits_a_little_for_nodes_that_are_away(world: World) -> None:
    world.nodes = [node(1), node(2, online=False), node(3, online=False, registered=False)]
    world.jobs.submit("a", {})
    world.look()
    world.look(timing.MUSTER_S - 1)
    assert world.link.submitted == []
    world.look(1)
    assert len(world.link.submitted) == 1


def test_it_begins_when_they_come(world: World) -> None:
    world.nodes = [node(1), node(2, online=False)]
    world.jobs.submit("a", {})
    world.look()
    world.nodes = [node(1), node(2)]
    world.look(1)
    assert len(world.link.submitted) == 1


def test_a_serverapp_that_does_not_end_after_its_result_is_not_waited_for(world: World) -> None:
    world.jobs.submit("a", {})
    world.look()
    world.begin()
    (world.folder / "result.json").write_text("{}")
    world.look(1)
    world.look(timing.SERVERAPP_CLOSES_S + 1)
    assert world.state == FINISHED


def test_a_killed_serverapp_is_seen_by_the_lock_and_the_run_goes_on(world: World) -> None:
    world.jobs.submit("a", {"min-nodes": 2})
    world.look()
    world.begin()
    world.look(1)
    world.end()  # killed; the SuperLink still says that it runs
    world.look(1)
    world.look(timing.SERVERAPP_LOST_S - 0.5)
    assert world.link.stopped == []
    world.look(1)
    assert world.link.stopped == [1]
    assert "killed" in world.reason
    world.look(1.1)
    assert world.link.submitted[1] == world.link.submitted[0] | {"resume": True}
    assert world.state == RUNNING


def test_a_superlink_that_is_away_costs_no_submission(world: World) -> None:
    world.jobs.submit("a", {})
    world.look()
    world.begin()
    world.link.down = True
    for _ in range(5):
        with pytest.raises(LinkError):
            world.look(60)
    world.link.down = False
    world.look(1)
    assert (world.state, len(world.link.submitted)) == (RUNNING, 1)


def test_a_run_that_was_given_up_goes_on_without_what_was_there_before(world: World) -> None:
    """Killed before it made its folder: the finished run of that name must not be taken up."""
    world.folder.mkdir(parents=True)
    (world.folder / "config.json").write_text(json.dumps({"id": "older"}))
    (world.folder / "result.json").write_text("{}")
    world.jobs.submit("a", {})
    world.look()
    world.link.state = LOST
    world.look(1)
    world.look(5)
    assert len(world.link.submitted) == 2
    assert "resume" not in world.link.submitted[1]
    assert world.state == RUNNING


@pytest.mark.parametrize("kind", sorted(LASTING))
def test_what_would_fail_again_is_final(world: World, kind: str) -> None:
    world.jobs.submit("a", {})
    world.look()
    text = f"ServerApp failed with exception: {kind}: key: expected 1; got 2"
    world.link.state = RunState("finished", "failed", text)
    world.look(1)
    assert (world.state, world.reason) == (FAILED, "key: expected 1; got 2")
    world.look(100)
    assert len(world.link.submitted) == 1


def test_a_lack_of_memory_is_tried_once_more(world: World) -> None:
    world.jobs.submit("a", {})
    text = "nodes: round 1: client ward-1: MemoryError at client_app.work, line 3"
    for _ in range(200):
        world.link.state = RunState("finished", "failed", text)
        world.look(1)
    assert world.state == FAILED
    assert "MemoryError at client_app.work, line 3. The previous attempt ended the same way" in world.reason
    assert len(world.link.submitted) == 2


def test_a_key_that_the_superlink_refuses_is_final(world: World) -> None:
    world.jobs.submit("a", {})
    world.link.refusal = "no such key"
    world.look()
    assert (world.state, world.reason) == (FAILED, "no such key")


def test_pauses_grow_and_there_is_an_end_without_progress(world: World) -> None:
    world.jobs.submit("a", {})
    times = []
    for _ in range(4000):
        before = len(world.link.submitted)
        world.look(0.5)
        if len(world.link.submitted) > before:
            times.append(world.now)
        world.link.state = RunState("finished", "failed", "nodes: expected 2 nodes; got 1")
        if world.state == FAILED:
            break
    pauses = [b - a for a, b in itertools.pairwise(times)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 4
    assert 30 <= pauses[-1] < 33
    assert len(times) == MOST_FRUITLESS
    assert "got 1" in world.reason or "too few" in world.reason


def test_a_full_disk_is_waited_for_however_long(world: World) -> None:
    world.jobs.submit("a", {"min-nodes": 2})
    world.look()
    world.begin()
    world.end()
    text = 'passing: run-config keys "runs-dir": cannot write: [Errno 28] No space left on device'
    times = []
    for _ in range(3 * MOST_FRUITLESS):
        world.link.state = RunState("finished", "failed", f"ServerApp failed with exception: {text}")
        before = len(world.link.submitted)
        while len(world.link.submitted) == before:
            world.look(1)
        times.append(world.now)
        assert (world.state, world.reason) == (RUNNING, text.partition(": ")[2])
    assert all(30 <= b - a < 33 for a, b in itertools.pairwise(times)), times
    world.begin()
    (world.folder / "result.json").write_text("{}")
    world.end()
    world.look(1)
    assert world.state == FINISHED


def test_nodes_of_a_run_that_has_begun_are_waited_for_however_long(world: World) -> None:
    world.jobs.submit("a", {})
    world.look()
    world.begin()
    world.rounds(10)
    world.end()
    text = "absent: round 4: expected at least 3 clients online within 180 s; got 2"
    for _ in range(3 * MOST_FRUITLESS):
        world.link.state = RunState("finished", "failed", text)
        before = len(world.link.submitted)
        while len(world.link.submitted) == before:
            world.look(1)
        assert (world.state, world.reason) == (RUNNING, text.partition(": ")[2])


@pytest.mark.parametrize("app", ["1 (b)", "2 (a)"])
def test_a_run_goes_on_with_the_app_that_it_began_with_only(world: World, app: str) -> None:
    job = world.jobs.submit("a", {})
    world.look()
    world.begin()
    world.end()
    world.link.state = LOST
    world.restart(app)
    for _ in range(200):
        world.look(1)
    assert world.state == FAILED
    assert f"it started with version 1 (a) of the app, but this link now runs {app}" in world.reason
    assert "--resume" in world.reason
    assert len(world.link.submitted) == 1
    assert world.jobs.submit("a", job.keys).app == ""  # who submits it again says that it may
    world.look(1)
    assert (world.state, len(world.link.submitted)) == (RUNNING, 2)


def test_errors_before_and_after_a_full_disk_still_count(world: World) -> None:
    world.jobs.submit("a", {})
    for i in range(100):
        details = "nodes: too few" if i % 2 else "passing: full"
        while world.state != FAILED and not world.look(1) and not world.link.submitted[i:]:
            pass
        if world.state == FAILED:
            break
        world.link.state = RunState("finished", "failed", details)
    assert world.state == FAILED
    assert len(world.link.submitted) == 2 * MOST_FRUITLESS
    assert "got 1" in world.reason or "too few" in world.reason


def test_a_run_that_cannot_be_noted_does_not_begin(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.jobs.submit("a", {})

    def full(job: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(world.jobs, "write", full)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                world.look(1)
    assert world.link.submitted == []
    world.look(1)
    assert len(world.link.submitted) == 1


def test_progress_makes_the_pause_short_again(world: World) -> None:
    world.jobs.submit("a", {})
    world.look()
    world.begin()
    world.end()
    for size in range(1, 3 * MOST_FRUITLESS):
        world.rounds(size)
        world.link.state = LOST
        world.look(0.5)
        world.look(1.1)
        assert len(world.link.submitted) == size + 1, world.said


def test_it_waits_for_the_nodes_of_the_run_but_not_for_ever_nor_for_the_revoked(world: World) -> None:
    def lost_with(nodes: list[NodeState]) -> None:
        world.link.state = LOST
        world.look(0.5)
        world.nodes = nodes

    world.jobs.submit("a", {"min-nodes": 3})
    world.look()
    world.begin()
    world.end()
    rows = [{"node": str(n)} for n in (1, 2, 3)]
    (world.folder / "nodes.json").write_text(json.dumps({"nodes": rows}))
    lost_with([node(1), node(2, online=False), node(3, registered=False, online=False)])
    world.look(timing.REUNION_S - 1)
    assert len(world.link.submitted) == 1
    world.nodes = [node(1), node(2), node(3, registered=False, online=False)]
    world.look(0.5)
    assert world.link.submitted[1]["min-nodes"] == 2
    lost_with([node(1), node(2, online=False)])
    world.look(timing.REUNION_S + 1)
    assert world.link.submitted[2]["min-nodes"] == 1


def test_nodes_that_come_one_after_the_other_need_not_be_there_at_once(world: World) -> None:
    """In a federation where something fails every few seconds, all of it is hardly ever up."""
    world.jobs.submit("a", {"min-nodes": 2})
    world.look()
    world.begin()
    world.end()
    rows = [{"node": str(n)} for n in (1, 2)]
    (world.folder / "nodes.json").write_text(json.dumps({"nodes": rows}))
    world.link.state = LOST
    world.look(0.5)
    world.nodes = [node(1), node(2, online=False)]
    world.look(10)
    assert len(world.link.submitted) == 1
    world.nodes = [node(1, online=False), node(2)]
    world.look(1)
    assert world.link.submitted[1]["min-nodes"] == 2


def test_a_link_that_was_killed_takes_the_job_up_where_it_was(world: World) -> None:
    world.jobs.submit("a", {})
    world.look()
    world.begin()
    world.look(1)
    world.end()  # it ended its ServerApp, as the next link does with what is left
    world.restart()
    world.look(1)
    world.look(timing.SERVERAPP_LOST_S + 1)
    world.look(5)
    assert len(world.link.submitted) == 2
    assert world.link.submitted[1]["resume"] is True


def test_a_run_that_was_submitted_but_not_noted_is_stopped(world: World) -> None:
    world.jobs.submit("a", {})
    world.link.orphans = [77]
    world.look()
    assert world.link.stopped == [77]


def test_the_user_stops_a_job_whatever_it_does(world: World) -> None:
    world.jobs.submit("a", {})
    world.look()
    world.jobs.ask_to_stop("a")
    world.look(1)
    assert (world.state, world.reason, world.link.stopped) == (STOPPED, "stopped by the user", [1])
    world.look(100)
    assert len(world.link.submitted) == 1


def test_a_stopped_job_leaves_a_result_once_its_serverapp_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results are written one after the other, and no other job waits for them: it can take minutes."""
    left, go_on = Queue[str](), Event()

    def finish(_: Jobs, job: Job) -> None:
        left.put(job.name)
        go_on.wait(60)

    monkeypatch.setattr(module, "finish_stopped", finish)
    for name in ("a", "b", "c"):
        world.jobs.submit(name, {"node-names": "n1" if name == "a" else "n2"})
        (world.jobs.runs / name / "checkpoint").mkdir(parents=True)
    world.look()
    world.begin()
    for name in ("a", "b"):
        world.jobs.ask_to_stop(name)
    world.look(1)
    world.look(1)
    assert states(world) == {"a": STOPPED, "b": STOPPED, "c": RUNNING}
    world.end()
    world.look(1)
    assert (left.get(timeout=60), left.empty()) == ("b", True)  # the ServerApp of a still wrote at that time
    go_on.set()
    while left.empty():
        world.look(1)
    assert left.get() == "a"


def test_a_job_that_is_stopped_before_it_began_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "finish_stopped", pytest.fail)
    world.jobs.submit("a", {})
    world.jobs.ask_to_stop("a")
    world.look()
    assert (world.state, world.runner._left) == (STOPPED, [])
    assert not world.runner._writer.is_alive()


def states(world: World) -> dict[str, str]:
    return {job.name: job.state for job in world.jobs.all()}


def test_jobs_on_different_nodes_run_at_once_and_the_third_waits_for_both(world: World) -> None:
    for name, nodes in (("a", "n1"), ("b", "n2"), ("c", "")):
        world.jobs.submit(name, {"node-names": nodes})
    world.look()
    assert states(world) == {"a": RUNNING, "b": RUNNING, "c": QUEUED}
    assert [keys["node-names"] for keys in world.link.submitted] == ["n1", "n2"]
    for name in ("b", "a"):
        assert states(world)["c"] == QUEUED
        (world.jobs.runs / name).mkdir(parents=True)
        (world.jobs.runs / name / "result.json").write_text("{}")
        world.look(1)
        world.look(1)
    assert states(world) == {"a": FINISHED, "b": FINISHED, "c": RUNNING}


def test_a_job_waits_for_its_own_nodes_only(world: World) -> None:
    world.nodes = [node(1), node(2, online=False)]
    world.jobs.submit("a", {"node-names": "n1"})
    world.look()
    assert len(world.link.submitted) == 1


def test_the_end_and_the_pauses_of_one_job_do_not_touch_another(world: World) -> None:
    world.jobs.submit("a", {"node-names": "n1"})
    world.jobs.submit("b", {"node-names": "n2"})
    world.look()
    world.begin()  # a
    text = "ServerApp failed with exception: passing: no space left"
    world.link.states[2] = RunState("finished", "failed", text)
    world.look(1)
    world.look(10)  # b is in its pause
    (world.folder / "result.json").write_text("{}")
    world.end()
    world.look(1)
    assert states(world) == {"a": FINISHED, "b": RUNNING}
    assert len(world.link.submitted) == 2
    world.jobs.submit("c", {"node-names": "n1"})
    world.look(1)
    assert states(world)["c"] == RUNNING
    world.look(timing.ATTEMPT_LONGEST_S)
    assert [keys["node-names"] for keys in world.link.submitted] == ["n1", "n2", "n1", "n2"]


def test_a_job_that_cannot_be_noted_holds_up_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    write = world.jobs.write

    def full(job: Job) -> None:
        if job.name == "a":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(job)

    world.jobs.submit("a", {"node-names": "n1"})
    world.jobs.submit("b", {"node-names": "n2"})
    monkeypatch.setattr(world.jobs, "write", full)
    with pytest.raises(OSError, match="No space"):
        world.look()
    assert states(world) == {"a": QUEUED, "b": RUNNING}


def test_the_stop_of_one_job_leaves_the_other_and_frees_its_nodes(world: World) -> None:
    for name, nodes in (("a", "n1"), ("b", "n2"), ("c", "n1")):
        world.jobs.submit(name, {"node-names": nodes})
    world.look()
    world.jobs.ask_to_stop("a")
    world.look(1)
    world.look(1)
    assert states(world) == {"a": STOPPED, "b": RUNNING, "c": RUNNING}
    assert world.link.stopped == [1]


def test_a_stop_waits_for_a_superlink_that_is_away(world: World) -> None:
    """Else the run went on, on nodes that count as free."""
    world.jobs.submit("a", {})
    world.look()
    world.jobs.ask_to_stop("a")
    world.link.down = True
    with pytest.raises(LinkError):
        world.look(1)
    assert states(world) == {"a": RUNNING}
    world.link.down = False
    world.look(1)
    assert (states(world), world.link.stopped) == ({"a": STOPPED}, [1])


def test_jobs_run_one_after_the_other(world: World) -> None:
    world.jobs.submit("a", {})
    world.look()
    world.jobs.submit("b", {})
    world.look(1)
    job = world.jobs.read("b")
    assert job is not None
    assert job.state == QUEUED
    world.begin()
    (world.folder / "result.json").write_text("{}")
    world.end()
    world.look(1)
    world.look(1)
    job = world.jobs.read("b")
    assert job is not None
    assert job.state == RUNNING
