"""One machine of a federation, as somebody who can kill its processes sees it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from server_app.deploy.host.resource_limits import proportional_bytes

STARTS_S = 300.0  # of a whole federation, on a machine with six times as many processes as cores
LOOK_S = 0.05
ROLES = {"flower.superlink": "superlink", "flower.warm": "warm", "node.warm": "warm"}  # by module


@dataclass
class Machine:
    """One of the machines: a link or a node, which is a supervisor with what it started."""

    name: str
    command: list[str]
    log: Path
    prefix: list[str] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    def said(self) -> str:
        """Return what its supervisor printed."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def running(self) -> bool:
        """Return whether the supervisor runs."""
        return self.process is not None and self.process.poll() is None

    def roles(self) -> dict[str, list[psutil.Process]]:
        """Return its processes by role: supervisor, superlink, warm, task."""
        found: dict[str, list[psutil.Process]] = {}
        if self.process is None:
            return found
        with contextlib.suppress(psutil.NoSuchProcess):
            supervisor = psutil.Process(self.process.pid)
            found["supervisor"] = [supervisor]
            for child in supervisor.children():
                with contextlib.suppress(psutil.Error):
                    line = " ".join(child.cmdline())
                    role = next((r for m, r in ROLES.items() if f"server_app.deploy.{m}" in line), "other")
                    found.setdefault(role, []).append(child)
            for warm in found.get("warm", []):
                with contextlib.suppress(psutil.NoSuchProcess):
                    found["task"] = warm.children()
        return found

    def one(self, role: str, within_s: float = STARTS_S) -> psutil.Process:
        """Return the process of a role, once there is one."""
        found: psutil.Process = until(
            lambda: next(iter(self.roles().get(role, [])), None), within_s, f"{self.name}: a {role}"
        )
        return found

    def memory(self) -> dict[str, int]:
        """Return the memory of its processes by role, in bytes; pages shared with others count in part."""
        return {role: sum(proportional_bytes(p.pid) for p in ps) for role, ps in self.roles().items()}

    def kill(self) -> None:
        """Kill all of it at once, as a power cut does."""
        left = [p for ps in self.roles().values() for p in ps]
        left += [c for p in left for c in _children(p)]
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=10)
        if self.process is not None:
            self.process.wait(timeout=10)

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Stop all of its processes for the block, as a machine that sleeps."""
        assert self.process is not None
        top = psutil.Process(self.process.pid)
        processes = [top, *top.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        try:
            yield
        finally:
            for process in reversed(processes):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()

    def stop(self) -> None:
        """End it politely."""
        if self.running():
            assert self.process is not None
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.kill()


def until(true: Callable[[], Any], within_s: float, what: str) -> Any:
    """Return what `true` returns, once it is true.

    Raises:
        AssertionError: It is not within the time.
    """
    deadline = time.monotonic() + within_s
    while not (found := true()):
        assert time.monotonic() < deadline, f"expected {what} within {within_s:g} s"
        time.sleep(LOOK_S)
    return found


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def end_of(path: Path) -> str:
    """Return the end of a log."""
    return path.read_text(encoding="utf-8", errors="replace")[-2500:]
