"""The supervisor starts, watches and restarts the processes of a link or a node.

It restarts a child that ended or failed its health check, after a pause that doubles with each failure. Every
process below a child carries the child's mark in its environment, and ends with the child: Flower detaches
some of its processes, so the process tree would miss them. If the supervisor itself is killed, a child that
called `end_with_parent` ends too.
"""

import contextlib
import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol

import psutil

from server_app.deploy.host.host import MARK, marked
from task import timing
from task.errors import BouquetError
from task.storage.files import make_folder, private
from task.storage.locks import HeldError, locked
from task.text import logger, plain

LOG_BYTES = 5_000_000  # per file; each has one predecessor
TAIL_BYTES = 4000

PR_SET_PDEATHSIG = 1
SUPERVISOR = "BOUQUET_SUPERVISOR"  # process id of the supervisor, in its children's environment


_speaker: list[str] = []  # the name before each line, where several processes print to one terminal


def speak_as(name: str) -> None:
    """Put a name before each line that this process says."""
    _speaker[:] = [f"{name}:"]


def say(line: str) -> None:
    """Print a line and the time before it, for the operator."""
    words = " ".join([time.strftime("%Y-%m-%d %H:%M:%S"), *_speaker, plain(line)])
    sys.stderr.write(f"{words}\n")  # in one piece: several processes print to one terminal
    sys.stderr.flush()


def log_plainly() -> None:
    """Have this process log lines with their time and without colours, which a file shows as codes."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s: %(message)s", "%Y-%m-%d %H:%M:%S"))
    logger.handlers[:] = [handler]


class Process(Protocol):
    """What the supervisor uses of a process, as `subprocess.Popen` has it."""

    pid: int

    def poll(self) -> int | None:
        """Return its exit code; None = it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code once it has ended."""


@dataclass
class Child:
    """A process that should always run."""

    name: str  # of the process, its log file and its mark
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)  # added to the supervisor's environment
    # Called at each check; returns why the child must be restarted, or "".
    health: Callable[[], str] = lambda: ""
    # Returns in words how it ended, from the exit code and the end of its log.
    explain: Callable[[int, str], str] = lambda code, log: how_it_ended(code)
    # Makes its standard input, at each start; None = none.
    stdin: Callable[[], AbstractContextManager[socket.socket]] | None = None
    # Starts it the first time in place of the command, with environment, standard input and output.
    fork: Callable[[Mapping[str, str], int, int], Process] | None = None
    process: Process | None = None
    started: float = 0.0  # time.monotonic() of the last start
    due: float = 0.0  # when to start it again
    pause_s: float = field(default_factory=lambda: timing.RESTART_FIRST_S)
    starts: int = 0

    @property
    def running(self) -> psutil.Process | None:
        """Its process, if it runs."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                return psutil.Process(self.process.pid)
        return None

    def uptime_s(self) -> float:
        """Return for how long it has been running, in seconds; 0 if it is not."""
        return time.monotonic() - self.started if self.running else 0.0


class Supervisor:
    """Starts and watches children; a context manager that stops all of them at its end.

    Call it from one thread that lives as long as the supervisor, best the main thread: to `end_with_parent`,
    the end of the thread that started a process is the end of its parent.

    The folder of the log files, `logs`, is made, in the folder of all that the children use; `tell` takes one
    line for the operator.
    """

    def __init__(self, logs: Path, tell: Callable[[str], None] = say) -> None:
        self.children: dict[str, Child] = {}
        self._logs, self._place = logs, logs.parent
        self._tell = tell
        self._mark = uuid.uuid4().hex
        make_folder(logs)

    def __enter__(self) -> "Supervisor":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def add(self, child: Child) -> Child:
        """Start a child and watch it from now on."""
        self.children[child.name] = child
        self._start(child)
        return child

    def log(self, name: str) -> Path:
        """Return the log file of a child."""
        return self._logs / f"{name}.log"

    def run(self, over: threading.Event, each: Callable[[], None] = lambda: None) -> None:
        """Watch the children until the event is set; call `each` at every look.

        Raises:
            BouquetError: The folder above the logs was moved or deleted.
        """
        while not over.wait(timing.SUPERVISE_S):
            try:
                self._check_place()
                self.look()
                each()
            except FileNotFoundError:
                self._check_place()
                raise

    def look(self) -> None:
        """Start every child that is due, and restart those that ended or are unhealthy."""
        for child in self.children.values():
            if child.process is None:
                if time.monotonic() >= child.due:
                    self._start(child)
                continue
            code = child.process.poll()
            if code is not None:
                self._ended(child, f"{child.name} {child.explain(code, self.tail(child.name))}")
            elif why := child.health():
                self._ended(child, f"{child.name}: {why}")
            else:
                _bound(self.log(child.name))

    def _check_place(self) -> None:
        if not self._place.is_dir():
            raise BouquetError(
                f"{self._place}: expected this folder to stay while it is in use; it was moved or deleted, "
                "so everything that ran from it was ended. `bouquet provision --revoke` moves the kits of "
                "revoked nodes"
            )

    def tail(self, name: str) -> str:
        """Return the end of a child's log since its last start."""
        try:
            with self.log(name).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
                text = log.read().decode("utf-8", errors="replace")
        except FileNotFoundError:  # deleted since
            return ""
        return text.rpartition(_HEAD)[2]

    def stop(self) -> None:
        """End every process of every child, with SIGTERM first; return when none is left, within 10 s."""
        self._end(list(self.children.values()))

    def _start(self, child: Child) -> None:
        self._logs.mkdir(exist_ok=True)
        _bound(self.log(child.name))
        with open(self.log(child.name), "ab", opener=private) as log:
            log.write(f"{_HEAD} {time.strftime('%Y-%m-%d %H:%M:%S')} {child.name}\n".encode())
            log.flush()
            env = os.environ | child.env | {MARK: self._mark_of(child), SUPERVISOR: str(os.getpid())}
            with contextlib.ExitStack() as held:
                stdin = held.enter_context(child.stdin()).fileno() if child.stdin else subprocess.DEVNULL
                if child.fork and not child.starts:
                    child.process = child.fork(env, stdin, log.fileno())
                else:
                    child.process = subprocess.Popen(
                        list(child.command), env=env,
                        stdin=stdin, stdout=log, stderr=log, start_new_session=True,
                    )  # fmt: skip
        child.started = time.monotonic()
        child.starts += 1

    def _ended(self, child: Child, what: str) -> None:
        if time.monotonic() - child.started > timing.RECOVERED_S:
            child.pause_s = timing.RESTART_FIRST_S
        self._tell(f"{what}; starting it again in {child.pause_s:g} s")
        self._end([child])
        child.due = time.monotonic() + child.pause_s
        child.pause_s = min(timing.RESTART_LONGEST_S, 2 * child.pause_s)

    def _end(self, children: list[Child]) -> None:
        marks = {self._mark_of(child) for child in children}
        for wait_s, kill in ((timing.TERMINATE_S, False), *2 * ((timing.KILL_S, True),)):
            left = {process.pid: process for mark in marks for process in marked(mark)}
            # A process that has just started may not have its environment yet, a fork never has the mark.
            for process in filter(None, (child.running for child in children)):
                left |= {p.pid: p for p in (process, *process.children(recursive=True))}
            if not left:
                break
            for process in left.values():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill() if kill else process.terminate()
            psutil.wait_procs(left.values(), timeout=wait_s)
        for child in children:
            if child.process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired, psutil.TimeoutExpired):
                    child.process.wait(timeout=1)
            child.process = None

    def _mark_of(self, child: Child) -> str:
        return f"{self._mark}-{child.name}"


_HEAD = "---- start"


def _bound(log: Path) -> None:
    """Move a log aside that has grown too long; its writers append, so they go on in the emptied file."""
    if log.exists() and log.stat().st_size > LOG_BYTES:
        content = log.read_bytes()
        with open(log.with_suffix(".log.1"), "wb", opener=private) as before:
            before.write(content)
        os.truncate(log, 0)


def how_it_ended(code: int) -> str:
    """Say in words what an exit code, as `subprocess` gives it, means."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def how_the_work_ended(code: int) -> str:
    """Say the same of a process that trains: one that nobody meant to kill may have lacked memory."""
    return how_it_ended(code) + (" (out of memory?)" if code == -signal.SIGKILL else "")


def end_with_parent(parent: int = 0) -> None:
    """Have the kernel kill this process when the thread that started it ends. Linux only.

    Call it first thing in the process. A fork does not inherit it.

    `parent` is its process id; 0 = that of the supervisor, and without one nothing happens.

    Raises:
        SystemExit: The parent had ended already.
    """
    parent = parent or int(os.environ.get(SUPERVISOR, 0))
    if sys.platform != "linux" or not parent:
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


@contextmanager
def only_one(lock: Path, what: str) -> Iterator[None]:
    """Hold a lock file for the block.

    Raises:
        BouquetError: Another process holds it; `what` names what it runs.
    """
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked(lock, str(os.getpid())))
        except HeldError as err:
            raise BouquetError(f"{what} is already running, as process {err.holder}; stop it first") from None
        yield
