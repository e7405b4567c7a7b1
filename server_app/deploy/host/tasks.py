"""The node's tasks: each message is served in its own process, one at a time.

The process is a fork of the warm parent (`server_app.deploy.node.warm`). However it ends, and whatever it
writes, its message gets one answer: its own, or an error that says how it ended. Between the two go pieces of
bytes: the process ran an app that the SuperLink may have sent, so each piece that it writes has a limit
before it is read, and nothing of it is run.
"""

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from server_app.deploy.host.processes import how_the_work_ended
from server_app.deploy.host.resource_limits import MEMORY, MemoryLimit
from task import timing
from task.units import size_option

# What the connection orders of the warm parent, and what it hears
ORDER = struct.Struct("!BQ")  # START or KILL, number of the task
NEWS = struct.Struct("!Qi")  # number of the task, exit code; `READY` once
START, KILL = 1, 2
READY = 0

# What a task reads and writes
ID_BYTES = 64  # of an object: its SHA-256 in hexadecimal, before its content
END = b""  # after the last object
HEAD_BYTES, TREE_BYTES, STATE_BYTES = 64 * 1024, 8 * 1024**2, 256 * 1024**2
REMARKS_BYTES = 16 * 1024
OBJECT_BYTES = 64 * 1024**2
REPLY_BYTES = 2 * 1024**3  # of all objects


class TaskFailedError(Exception):
    """A task's process ended, or was ended, before it had answered; the text says how."""


@dataclass
class Answer:
    """What a task wrote; only the lengths have been checked.

    Attributes:
        head: The reply without its content.
        tree: The ids of its objects.
        state: What the app keeps for the next message of its run; b"" = nothing.
        remarks: Lines for the operator of the node, in UTF-8.
        objects: Its content, by id.
    """

    head: bytes
    tree: bytes
    state: bytes
    remarks: bytes = b""
    objects: dict[str, bytes] = field(default_factory=dict)


@dataclass
class _Running:
    number: int
    ours: socket.socket
    until: float
    why: str = ""  # our reason to end it
    ended: threading.Event = field(default_factory=threading.Event)
    code: int | None = None  # None: it ended with its parent


class Tasks:
    """The node's tasks. `run` is called by one thread, `stdin` by another, `end` by any.

    Args:
        memory: The limit on the node's memory; None = there is none.
    """

    def __init__(self, memory: MemoryLimit | None = None) -> None:
        self._memory = memory
        self.ready = threading.Event()
        self.wanted = False  # whether there was a task for their parent
        self._control: socket.socket | None = None
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._numbers = READY

    @contextlib.contextmanager
    def stdin(self) -> Iterator[socket.socket]:
        """Yield the standard input of a warm parent, which is to start in the block; then hear from it."""
        ours, theirs = socket.socketpair()
        with theirs:
            yield theirs
        with self._lock:
            self._control = ours
        threading.Thread(target=self._hear, args=(ours,), name="tasks", daemon=True).start()

    def _hear(self, control: socket.socket) -> None:
        """Hear how tasks end, until the parent itself does; end those that must end."""
        while True:
            if not select.select([control], [], [], timing.MEMORY_LOOK_S)[0]:
                self._watch()
                continue
            record = b""
            with contextlib.suppress(OSError):
                record = control.recv(NEWS.size, socket.MSG_WAITALL)
            if len(record) < NEWS.size:
                break
            number, code = NEWS.unpack(record)
            if number == READY:
                self.ready.set()
            else:
                self._ended(number, code)
        self.ready.clear()
        with self._lock:
            if self._control is control:
                self._control = None
        control.close()
        self._ended(None, None)

    @property
    def number(self) -> int:
        """The number of the task that runs; 0 = none."""
        running = self._running
        return running.number if running else 0

    def end(self, number: int, why: str) -> None:
        """End a task, unless another runs by now."""
        running = self._running
        if running and running.number == number:
            running.why = why
            self._send(KILL, number)

    def _watch(self) -> None:
        running = self._running
        if running is None or running.why:
            return
        if time.monotonic() > running.until:
            running.why = "its message's time to live had expired"
        elif self._memory is not None and (used := self._memory.used()) > self._memory.most:
            most = size_option(self._memory.most)
            running.why = f"{MEMORY} {most}: this task needs at least {size_option(used)}"
        if running.why:
            self.end(running.number, running.why)

    def _ended(self, number: int | None, code: int | None) -> None:
        running = self._running
        if running is not None and number in (None, running.number):
            running.code = code
            running.ended.set()
            with contextlib.suppress(OSError):
                # What it wrote can still be read; what it started, and lives on, writes no more.
                running.ours.shutdown(socket.SHUT_RD)

    def run(self, order: Iterable[bytes], ttl: float) -> Answer:
        """Run a task and return its answer.

        Args:
            order: What it reads, see `server_app.deploy.flower.client_task`; `END` follows.
            ttl: Seconds that it has.

        Raises:
            TaskFailedError: It gave none.
        """
        until = time.monotonic() + ttl + timing.TASK_LATE_S
        self.wanted = True
        if not self.ready.wait(until - time.monotonic()):
            raise TaskFailedError("the node's parent of all tasks could not be started in time")
        ours, theirs = socket.socketpair()
        self._numbers += 1
        with ours, Connection(socket.dup(ours.fileno())) as pipe:
            running = self._running = _Running(self._numbers, ours, until)
            try:
                with theirs:
                    if not self._send(START, running.number, theirs):
                        raise TaskFailedError("the parent of all tasks has ended")
                with contextlib.suppress(OSError):  # it has ended, or was ended
                    for piece in order:
                        pipe.send_bytes(piece)
                    pipe.send_bytes(END)
                return _read(pipe)
            except (OSError, EOFError) as err:
                if not isinstance(err, EOFError | ConnectionError) and "end of file" not in str(err):
                    running.why = f"it wrote something that is not a reply: {err}"
                if running.why or not running.ended.wait(timing.KILL_S):  # or it closed the pipe and lives on
                    self._send(KILL, running.number)
                    running.ended.wait(timing.KILL_S)
                raise TaskFailedError(f"the ClientApp's process {_how(running)}") from None
            finally:
                self._running = None

    def _send(self, kind: int, number: int, end: socket.socket | None = None) -> bool:
        """Send an order to the parent; return whether it has it."""
        with self._lock:
            control = self._control
        try:
            if control is not None:
                socket.send_fds(control, [ORDER.pack(kind, number)], [end.fileno()] if end else [])
                return True
        except OSError:
            pass
        return False


def _read(pipe: Connection) -> Answer:
    """Read an answer.

    Raises:
        OSError: A piece is longer than it may be, or there are too many.
        EOFError: The process ended before it was whole.
    """
    head, tree, state = (pipe.recv_bytes(most) for most in (HEAD_BYTES, TREE_BYTES, STATE_BYTES))
    answer = Answer(head, tree, state, pipe.recv_bytes(REMARKS_BYTES))
    left = REPLY_BYTES
    while (piece := pipe.recv_bytes(OBJECT_BYTES)) != END:
        left -= len(piece)
        if left < 0:
            raise OSError(f"expected at most {REPLY_BYTES} bytes; got more")
        answer.objects[piece[:ID_BYTES].decode("ascii", errors="replace")] = piece[ID_BYTES:]
    return answer


def _how(running: _Running) -> str:
    if running.why:
        return f"was ended: {running.why}"
    if running.code is None:
        return "was killed with the parent of all tasks"
    return how_the_work_ended(running.code)
