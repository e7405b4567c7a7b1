"""What a task's process tells its parent: numbers, in order, whatever the app writes into the pipe."""

from __future__ import annotations

import os
import pickle
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server_app.deploy.flower import forks
from server_app.deploy.flower.forks import PreforkExecutor
from server_app.deploy.flower.task_process import Task
from server_app.deploy.node.policy import Site
from server_app.deploy.node.task_reports import BEGUN, DONE, PUSHING, RECORD, Told, read, teller

TASK = Task("flwr-clientapp", "127.0.0.1:1", "token")
FIRST = Told(BEGUN, trains=True, run=7, ttl=600.0)
Work = Callable[[int], object]


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


class Parent:
    """A warm parent whose tasks do what a test says, and which notes what it would report."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(forks.threading, "active_count", lambda: 1)  # threads of other tests
        self.rounds = folder / "rounds.json"
        self.warm = PreforkExecutor(forks.CLIENT, TASK.address, Site(max_rounds=9), rounds=self.rounds)
        self.reported: list[tuple[str, bool]] = []
        monkeypatch.setattr(
            self.warm, "_report", lambda task, why, *, pushing: self.reported.append((why, pushing))
        )

    def run(self, work: Work, seconds: float = 20.0) -> float:
        """Fork a task and wait for its end; return how long that took."""
        began = time.monotonic()
        pid = self.warm._start(TASK, lambda task, pipe: work(pipe))  # type: ignore[arg-type, return-value]
        while pid in self.warm.running:
            assert time.monotonic() - began < seconds, "its process was not ended"
            self.warm._wait(0.05)
        return time.monotonic() - began


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parent]:
    made = Parent(tmp_path, monkeypatch)
    yield made
    for pid in made.warm.running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_what_is_told_is_read(parent: Parent) -> None:
    def work(pipe: int) -> None:
        tell = teller(pipe)
        for told in (FIRST, Told(PUSHING), Told(DONE)):
            tell(told)

    parent.run(work)
    assert parent.reported == []
    assert parent.warm.trained == {7: 1}
    assert parent.rounds.read_text().split() == ["{", '"7":', "1", "}"]


@pytest.mark.parametrize("told", [FIRST, Told(BEGUN, False, 2**64 - 1, 0.0), Told(PUSHING), Told(DONE)])
def test_a_record_comes_back_as_it_was(told: Told) -> None:
    there, here = os.pipe()
    teller(here)(told)
    assert read(os.read(there, 2 * RECORD.size)) == told
    os.close(there)
    os.close(here)


@pytest.mark.parametrize(
    ("last", "how"), [((), "exit code 3"), ((FIRST,), "exit code 3"), ((FIRST, Told(PUSHING)), "exit code 3")]
)
def test_how_a_process_ended_is_reported(parent: Parent, last: tuple[Told, ...], how: str) -> None:
    def work(pipe: int) -> None:
        for told in last:
            teller(pipe)(told)
        os._exit(3)

    for _ in range(20):  # its end and that of the pipe come one after the other
        parent.run(work)
    assert len(parent.reported) == 20
    assert all(how in why for why, _ in parent.reported), parent.reported
    assert {pushing for _, pushing in parent.reported} == {Told(PUSHING) in last}


def _write(data: bytes) -> Work:
    def work(pipe: int) -> None:
        teller(pipe)(FIRST)
        os.write(pipe, data)
        time.sleep(600)

    return work


RECORDS: dict[str, bytes] = {
    "an unknown kind": RECORD.pack(9, False, 0, 0.0),
    "kind 0": bytes(RECORD.size),
    "the first once more": RECORD.pack(BEGUN, True, 8, 600.0),
    "backwards": RECORD.pack(DONE, False, 0, 0.0) + RECORD.pack(PUSHING, False, 0, 0.0),
    "no time to live": RECORD.pack(PUSHING, False, 0, float("nan")),
    "an endless one": RECORD.pack(PUSHING, False, 0, float("inf")),
    "a negative one": RECORD.pack(PUSHING, False, 0, -1.0),
    "text": b"done" * 1000,
}


@pytest.mark.parametrize("data", RECORDS.values(), ids=RECORDS)
def test_a_process_that_tells_something_else_is_ended(parent: Parent, data: bytes) -> None:
    assert parent.run(_write(data)) < 10
    if data == RECORDS["backwards"]:
        assert parent.reported == []  # it had said that it was done
    else:
        ((why, _),) = parent.reported
        assert "told its parent" in why
    assert parent.warm.trained == {7: 1}  # nobody counts for another run


def test_a_pickle_is_not_executed(parent: Parent, tmp_path: Path) -> None:
    trace = tmp_path / "was-here"
    data = pickle.dumps(Evil(trace))
    parent.run(_write(struct.pack("!I", len(data)) + data))  # a length before it, as other pipes have
    parent.run(_write(data))
    assert not trace.exists()
    assert len(parent.reported) == 2


def test_a_flood_takes_no_memory(parent: Parent) -> None:
    def work(pipe: int) -> None:
        signal.alarm(15)
        while True:
            os.write(pipe, b"\xff" * 65536)

    most = []
    hear = parent.warm._hear

    def heard(pid: int) -> bool:
        more = hear(pid)
        most.append(len(parent.warm.running[pid].told))
        return more

    parent.warm._hear = heard  # type: ignore[method-assign]
    assert parent.run(work) < 10
    assert max(most) < RECORD.size


def test_a_process_that_closes_the_pipe_and_lives_on_is_ended(parent: Parent) -> None:
    def work(pipe: int) -> None:
        os.close(pipe)
        time.sleep(600)

    assert parent.run(work) < 10
    assert len(parent.reported) == 1


def test_what_a_process_started_does_not_hide_its_end(parent: Parent, tmp_path: Path) -> None:
    """A fork of the app has the pipe, too, and keeps it open."""
    pids = tmp_path / "pid"

    def work(pipe: int) -> None:
        teller(pipe)(FIRST)
        if (child := os.fork()) == 0:
            time.sleep(600)
        pids.write_text(str(child))
        teller(pipe)(Told(PUSHING))
        os._exit(5)

    try:
        assert parent.run(work) < 10
        ((why, pushing),) = parent.reported
        assert ("exit code 5" in why, pushing) == (True, True)
    finally:
        os.kill(int(pids.read_text()), signal.SIGKILL)
