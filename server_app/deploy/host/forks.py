"""Forks of a single-threaded parent: a process for each task, and how each ended."""

import contextlib
import ctypes
import gc
import os
import re
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence

import psutil

from server_app.deploy.host.processes import end_with_parent

HUGE = 2 * 1024**2  # bytes of a huge page
MADV_COLLAPSE = 25  # Linux 6.1
_WRITTEN = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p 0+ 00:00 0\s+(?:\[heap\])?$", re.MULTILINE)


def freeze() -> None:
    """Prepare what this process has in memory for many forks, which are to share it.

    No garbage collection touches it any more. A fork copies, and its end frees, an entry for each page that
    its parent has written: 85,000 with torch, 18 ms. Merged into huge pages, where Linux can, they are 170.
    """
    gc.collect()
    gc.freeze()
    if sys.platform == "linux":
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
            areas = [(int(start, 16), int(end, 16)) for start, end in _WRITTEN.findall(maps.read())]
        for start, end in areas:
            for place in range(-(-start // HUGE) * HUGE, end - HUGE + 1, HUGE):
                madvise(place, HUGE, MADV_COLLAPSE)  # a page that cannot be merged stays as it is


def fork(work: Callable[[], object]) -> int:
    """Run a function in a child, which ends with it, at the latest with this process; return its id.

    The child's exit code is 0 if the function returns, or that of its SystemExit, else 1.
    """
    if threading.active_count() > 1:
        raise RuntimeError(f"cannot fork safely: threads {threading.enumerate()}")
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _in_the_child(parent, work)
    return pid


def _in_the_child(parent: int, work: Callable[[], object]) -> None:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        end_with_parent(parent)
        gc.enable()
        work()
        code = 0
    except SystemExit as err:
        code = err.code if isinstance(err.code, int) else int(err.code is not None)
    except BaseException:  # of a child that is forked: it prints its traceback and ends with code 1
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):  # the output may have no reader
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


class ForkedProcess:
    """A fork of this process that does other work, in a session of its own, with no other open files.

    Args:
        work: What it does.
        env: Its environment.
        stdin: Its standard input, a file descriptor.
        output: Its standard output and error.
    """

    def __init__(self, work: Callable[[], object], env: Mapping[str, str], stdin: int, output: int) -> None:
        def start() -> None:
            os.setsid()
            for target, source in enumerate((stdin, output, output)):
                os.dup2(source, target)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            os.environ.clear()
            os.environ.update(env)
            work()

        self.pid = fork(start)
        self._process = psutil.Process(self.pid)

    def poll(self) -> int | None:
        """Return its exit code, as `subprocess` gives it; None = it runs."""
        try:
            return self.wait(0)
        except psutil.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once the process has ended; 0 if another caller has collected it.

        Raises:
            psutil.TimeoutExpired: It has not, in time.
        """
        return self._process.wait(timeout) or 0


class Forks:
    """The children of this process.

    It must be single-threaded and do nothing in torch, so that a fork is safe. Make one in the main thread.
    """

    def __init__(self) -> None:
        self.pids: set[int] = set()
        self._woken, wake = socket.socketpair()  # becomes readable when a child ends
        self._ends = (self._woken, wake)
        for end in self._ends:
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)

    def fork(self, work: Callable[[], object]) -> int:
        """Run a function in a child, as `fork` does; return its id."""

        def start() -> None:
            for end in self._ends:
                end.close()
            work()

        pid = fork(start)
        self.pids.add(pid)
        return pid

    def wait(self, timeout_s: float | None, others: Sequence[socket.socket] = ()) -> list[tuple[int, int]]:
        """Wait until a child ends, one of `others` is readable or the time is over; None = no limit.

        Returns:
            Process id and exit code, as `subprocess` gives it, of each child that has ended.
        """
        readable, _, _ = select.select([self._woken, *others], [], [], timeout_s)
        if self._woken in readable:
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
        ended = []
        for pid in list(self.pids):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self.pids.remove(pid)
                ended.append((pid, os.waitstatus_to_exitcode(status)))
        return ended

    def kill(self, pid: int) -> None:
        """End a child at once, if it has not ended; `wait` tells when it has."""
        if pid in self.pids:
            os.kill(pid, signal.SIGKILL)
