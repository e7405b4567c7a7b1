"""Forks of a single-threaded parent: a process for each task, and how each ended."""

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence

from server_app.deploy.host.processes import end_with_parent


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
            self._in_the_child(parent, work)
        self.pids.add(pid)
        return pid

    def _in_the_child(self, parent: int, work: Callable[[], object]) -> None:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            end_with_parent(parent)
            for end in self._ends:
                end.close()
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
