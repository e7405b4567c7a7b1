"""What the process of a task writes: an answer, or an error in its place, whatever it does."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from multiprocessing.connection import Connection
from pathlib import Path

import grpc
import pytest

from server_app.deploy.host import tasks
from server_app.deploy.host.tasks import (
    END,
    ID_BYTES,
    KILL,
    NEWS,
    ORDER,
    READY,
    Answer,
    TaskFailedError,
    Tasks,
)
from task import timing

ORDERED = [b"settings", b"run", b"message", b"a" * ID_BYTES + b"content"]
NAME = b"b" * ID_BYTES
GOOD = (b"head", b"tree", b"more", b"lines", NAME + b"body", END)
Work = Callable[[Connection], object]


class Parent:
    """In the place of the warm parent: it forks for each order, and a test says what the task does."""

    def __init__(self) -> None:
        self.tasks = Tasks()
        with self.tasks.stdin() as stdin:
            self.control = stdin.dup()
        self.control.sendall(NEWS.pack(READY, 0))
        self.pids: list[int] = []

    def run(self, work: Work, ttl: float = 600.0) -> Answer:
        """Let a task do something in answer to an order."""
        thread = threading.Thread(target=self._serve, args=(work,), daemon=True)
        thread.start()
        try:
            return self.tasks.run(ORDERED, ttl)
        finally:
            thread.join(timeout=20)
            assert not thread.is_alive(), "its process was not ended"

    def _serve(self, work: Work) -> None:
        data, fds, _, _ = socket.recv_fds(self.control, ORDER.size, 1)
        _, number = ORDER.unpack(data)
        with Connection(fds[0]) as there:
            if (pid := os.fork()) == 0:
                try:
                    # This process also has the test's own end, which the warm parent never has.
                    os.closerange(3, there.fileno())
                    os.closerange(there.fileno() + 1, 4096)
                    read = [there.recv_bytes() for _ in range(len(ORDERED) + 1)]
                    work(there) if read == [*ORDERED, END] else os._exit(99)
                finally:
                    os._exit(0)
        self.pids.append(pid)
        threading.Thread(target=self._kill, args=(pid,), daemon=True).start()
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(BrokenPipeError):  # the test closed it
            self.control.sendall(NEWS.pack(number, os.waitstatus_to_exitcode(status)))

    def _kill(self, pid: int) -> None:
        self.control.settimeout(20)
        try:
            data = self.control.recv(ORDER.size)
        except (TimeoutError, OSError):
            return
        if data and ORDER.unpack(data)[0] == KILL:
            os.kill(pid, signal.SIGKILL)


def write(there: Connection, *pieces: bytes) -> None:
    """Write pieces of an answer."""
    for piece in pieces:
        there.send_bytes(piece)


@pytest.fixture(scope="module", autouse=True)
def _grpc_is_in_use() -> Iterator[None]:
    """As in a process in which other tests have called a server."""
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        grpc.channel_ready_future(channel).result(20)
        yield
    server.stop(None).wait()


@pytest.fixture
def parent() -> Iterator[Parent]:
    made = Parent()
    yield made
    made.control.close()


def test_an_order_arrives_and_its_answer_is_read(parent: Parent) -> None:
    answer = parent.run(lambda there: write(there, *GOOD))
    assert (answer.head, answer.tree, answer.state, answer.remarks) == GOOD[:4]
    assert answer.objects == {NAME.decode(): b"body"}


@pytest.mark.parametrize("written", [(), GOOD[:1], GOOD[:4]])
def test_how_a_process_ended_is_said(parent: Parent, written: tuple[bytes, ...]) -> None:
    def work(there: Connection) -> None:
        write(there, *written)
        os._exit(3)

    with pytest.raises(TaskFailedError, match="the ClientApp's process ended with exit code 3"):
        parent.run(work)


def test_an_answer_counts_however_its_process_ends(parent: Parent) -> None:
    def work(there: Connection) -> None:
        write(there, *GOOD)
        os._exit(3)

    assert parent.run(work).head == b"head"


BYTES: dict[str, bytes] = {
    "a head of 1 GB": struct.pack("!i", 2**30),
    "an endless head": struct.pack("!iQ", -1, 2**63),
    "a long tree": struct.pack("!i", 0) + struct.pack("!i", tasks.TREE_BYTES + 1),
    "long remarks": struct.pack("!iii", 0, 0, 0) + struct.pack("!i", tasks.REMARKS_BYTES + 1),
    "a long object": struct.pack("!iiii", 0, 0, 0, 0) + struct.pack("!i", tasks.OBJECT_BYTES + 1),
    "text": b"done" * 1000,
    "a pickle": pickle.dumps({"a": 1}) * 100,
}


@pytest.mark.parametrize("data", BYTES.values(), ids=BYTES)
def test_a_process_that_writes_something_else_is_ended(parent: Parent, data: bytes) -> None:
    def work(there: Connection) -> None:
        os.write(there.fileno(), data)
        time.sleep(600)

    began = time.monotonic()
    with pytest.raises(TaskFailedError, match="was ended: it wrote something that is not a reply"):
        parent.run(work)
    assert time.monotonic() - began < 10


def test_half_a_piece_is_waited_for_until_its_messages_time_is_over(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(there: Connection) -> None:
        os.write(there.fileno(), struct.pack("!i", 10) + b"half")
        time.sleep(600)

    monkeypatch.setattr(timing, "TASK_LATE_S", 0.2)
    with pytest.raises(TaskFailedError, match="its message's time to live had expired"):
        parent.run(work, ttl=0.1)


def test_a_flood_of_objects_ends_at_the_limit_of_a_reply(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(there: Connection) -> None:
        write(there, b"", b"", b"", b"")
        while True:
            there.send_bytes(NAME + b"x" * 1000)

    monkeypatch.setattr(tasks, "REPLY_BYTES", 10_000)
    with pytest.raises(TaskFailedError, match="expected at most 10000 bytes; got more"):
        parent.run(work)


def test_a_process_that_closes_the_socket_and_lives_on_is_ended(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(there: Connection) -> None:
        there.close()
        time.sleep(600)

    monkeypatch.setattr(timing, "KILL_S", 0.5)
    with pytest.raises(TaskFailedError, match="was killed by SIGKILL"):
        parent.run(work)


def test_one_past_its_time_to_live_is_ended(parent: Parent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "TASK_LATE_S", 0.2)
    with pytest.raises(TaskFailedError, match="its message's time to live had expired"):
        parent.run(lambda there: time.sleep(600), ttl=0.1)


def test_what_a_process_started_does_not_hide_its_end(parent: Parent, tmp_path: Path) -> None:
    """A fork of the app has the socket, too, and keeps it open."""
    pids = tmp_path / "pid"

    def work(there: Connection) -> None:
        if (child := os.fork()) == 0:
            time.sleep(600)
        pids.write_text(str(child))
        write(there, *GOOD[:2])
        os._exit(5)

    try:
        with pytest.raises(TaskFailedError, match="exit code 5"):
            parent.run(work)
    finally:
        os.kill(int(pids.read_text()), signal.SIGKILL)


def test_without_its_parent_a_task_has_ended(parent: Parent) -> None:
    def work(there: Connection) -> None:
        time.sleep(600)

    def end() -> None:
        while not parent.pids:
            time.sleep(0.01)
        parent.control.shutdown(socket.SHUT_RDWR)
        os.kill(parent.pids[0], signal.SIGKILL)

    threading.Thread(target=end, daemon=True).start()
    with pytest.raises(TaskFailedError, match="was killed with the parent of all tasks"):
        parent.run(work)


def test_the_parent_reads_nothing_that_a_task_writes() -> None:
    """No module of the warm parent's own loop opens the task's socket or a pickle."""
    code = "import sys, server_app.deploy.node.warm; print('pickle' in sys.modules, 'grpc' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1] == "False"
