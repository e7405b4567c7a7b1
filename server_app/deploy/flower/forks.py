"""The parent of the tasks' processes: acquires a task, forks, hears, reaps, and answers for the dead."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient

from server_app.deploy.flower.task_process import Task, client_task, report, server_task
from server_app.deploy.host.processes import end_with_parent, how_it_ended, say
from server_app.deploy.node.app_integrity import OF_A_NODE, PACKAGES, installed
from server_app.deploy.node.policy import Site
from server_app.deploy.node.resource_limits import MemoryLimit, spell
from server_app.deploy.node.task_reports import BEGUN, DONE, PUSHING, RECORD, Told, read, teller
from task import timing
from task.storage.files import make_folder, private, write_json

READ_BYTES = 4096
CLIENT, SERVER = "flwr-clientapp", "flwr-serverapp"


@dataclass
class _Running:
    """A process and what it told."""

    task: Task
    pipe: int
    told: bytearray = field(default_factory=bytearray)
    last: int = 0  # kind of what it told last
    until: float = float("inf")
    why: str = ""  # the parent's reason to end it
    reporter: bool = False


class PreforkExecutor:
    """Acquires tasks of one Runtime API and runs each in a process of its own.

    Args:
        kind: `CLIENT` or `SERVER`: the tasks it takes.
        address: HOST:PORT of the Runtime API.
        site: What is allowed.
        secret: The SuperExec secret; None where there is none.
        certificates: Root certificates of the Runtime API; None = plaintext.
        memory: The limit on the node's memory, if it has one.
        rounds: File in which the training messages of each run are counted, if they are limited.
        work: File that is touched when there will be a task; without it, there is a question a second.
        tokens: Folder for what proves that a task is this parent's. Whoever comes after a killed one
            reports its tasks with it; else who gave them would wait a minute for a sign of life.
    """

    def __init__(
        self,
        kind: str,
        address: str,
        site: Site,
        secret: bytes | None = None,
        certificates: bytes | None = None,
        memory: MemoryLimit | None = None,
        rounds: Path | None = None,
        work: Path | None = None,
        tokens: Path | None = None,
    ) -> None:
        self.kind, self.address, self.site = kind, address, site
        self.certificates, self.memory, self.rounds = certificates, memory, rounds
        self.here = installed(OF_A_NODE if kind == CLIENT else PACKAGES)
        self.running: dict[int, _Running] = {}
        self.trained: dict[int, int] = {}
        if rounds is not None and rounds.exists():
            with contextlib.suppress(ValueError):
                self.trained = {int(k): v for k, v in json.loads(rounds.read_text("utf-8")).items()}
        interceptors: list[ProtobufClientInterceptor]
        interceptors = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
        if secret:
            method = {"/flwr.proto.Runtime/AcquireTask"}
            signer = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=method)
            interceptors.append(signer)
        self.client = RuntimeHttpClient.from_server_address(
            server_address=address,
            insecure=certificates is None,
            root_certificates=certificates,
            interceptors=interceptors,
        )
        self.client._client.timeout = timing.TASK_ANSWER_S  # while it waits, it sees to nothing else
        self._trouble = ""
        self._memory_looked = 0.0
        self._work, self._touched = work, 0
        self._tokens = tokens
        self._due, self._news_until = 0.0, 0.0

    def serve(self) -> None:
        """Acquire and run tasks until the process is ended."""
        self._inherit()
        while True:
            now = time.monotonic()
            if self._is_news():
                self._due, self._news_until = now, now + timing.TASK_NEWS_S
            free = self.kind == SERVER or not self.running  # a SuperNode has one message at a time
            if free and now >= self._due:
                pause_s = self._acquire()
                self._due = time.monotonic() + pause_s
            self._wait(timing.TASK_LOOK_S)

    def _is_news(self) -> bool:
        """Return whether the file was touched since the last look."""
        if self._work is None:
            return False
        with contextlib.suppress(FileNotFoundError):
            touched = self._work.stat().st_mtime_ns
            if touched != self._touched:
                self._touched = touched
                return True
        return False

    def _acquire(self) -> float:
        """Look for a task once and start it; return for how long to wait."""
        try:
            answer = self.client.AcquireTask(AcquireTaskRequest(supported_task_types=[self.kind]))
        except (httpx.HTTPError, ValueError) as err:
            if str(err) != self._trouble:
                say(f"no tasks: {self.address} does not answer as it should: {err}")
                self._trouble = str(err)
            return timing.TASK_RETRY_S
        if self._trouble:
            say(f"{self.address} answers again")
            self._trouble = ""
        if answer.HasField("task") and answer.token:
            task = Task(self.kind, self.address, answer.token, self.certificates)  # type: ignore[arg-type]
            self._start(task, self._client_task if self.kind == CLIENT else self._server_task)
            self._news_until = 0.0
        return timing.TASK_ASK_S if time.monotonic() < self._news_until else timing.TASK_IDLE_S

    def _client_task(self, task: Task, pipe: int) -> None:
        limit = ""
        if self.memory is not None:
            limit = spell(self.memory.most)
            data = self.memory.data_limit()
            resource.setrlimit(resource.RLIMIT_DATA, (data, data))
        client_task(task, self.site, self.here, self.trained, teller(pipe), limit)

    def _server_task(self, task: Task, pipe: int) -> None:
        server_task(task, self.site, self.here, teller(pipe))

    def _start(self, task: Task, work: Callable[[Task, int], None], *, reporter: bool = False) -> int:
        if threading.active_count() > 1:
            raise RuntimeError(f"cannot fork safely: threads {threading.enumerate()}")
        theirs, ours = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._in_the_child(parent, theirs, task, work, ours)
        os.close(ours)
        os.set_blocking(theirs, False)
        self.running[pid] = _Running(task, theirs, reporter=reporter)
        if path := self._token(pid):
            with open(path, "w", opener=private, encoding="utf-8") as file:
                file.write(task.token)
        return pid

    def _in_the_child(
        self, parent: int, theirs: int, task: Task, work: Callable[[Task, int], None], pipe: int
    ) -> None:
        code = 1
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            end_with_parent(parent)
            os.close(theirs)
            for other in self.running.values():
                os.close(other.pipe)
            gc.enable()
            work(task, pipe)
            code = 0
        except SystemExit as err:
            code = err.code if isinstance(err.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _wait(self, pause_s: float) -> None:
        """Wait, and meanwhile hear what the processes tell and see to those that end."""
        pipes = {running.pipe: pid for pid, running in self.running.items()}
        readable, _, _ = select.select(list(pipes), [], [], pause_s)
        for pipe in readable:
            pid = pipes[pipe]
            if not self._hear(pid):  # it has ended, or closed the pipe and shall end
                os.kill(pid, signal.SIGKILL)
                self._ended(pid)
        for pid, running in list(self.running.items()):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                while self._hear(pid):  # what it started may have the pipe and keep it open
                    pass
                self._ended(pid)
            elif time.monotonic() > running.until:
                self._kill(pid, "its message's time to live was over")
        self._watch_memory()

    def _hear(self, pid: int) -> bool:
        """Take what a process told; return whether there may be more."""
        running = self.running[pid]
        try:
            data = os.read(running.pipe, READ_BYTES)
        except BlockingIOError:
            return False
        running.told += data
        while len(running.told) >= RECORD.size:
            record = bytes(running.told[: RECORD.size])
            del running.told[: RECORD.size]
            try:
                self._told(running, read(record))
            except ValueError as err:
                self._kill(pid, f"it told its parent what it should not: {err}")
        return bool(data)

    def _told(self, running: _Running, told: Told) -> None:
        if told.kind <= running.last:
            raise ValueError(f"expected each kind once, in order; got {told.kind} after {running.last}")
        running.last = told.kind
        if told.kind == PUSHING:
            running.until = float("inf")
        elif told.kind == BEGUN:
            running.until = time.monotonic() + told.ttl + timing.TASK_LATE_S
            if told.trains and self.site.max_rounds:
                self.trained[told.run] = self.trained.get(told.run, 0) + 1
                if self.rounds is not None:
                    write_json(self.rounds, {str(k): v for k, v in self.trained.items()})

    def _ended(self, pid: int) -> None:
        running = self.running.pop(pid)
        os.close(running.pipe)
        if path := self._token(pid):
            path.unlink(missing_ok=True)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if running.last == DONE or running.reporter:
            return
        how = running.why or how_it_ended(code) + (" (out of memory?)" if code == -signal.SIGKILL else "")
        app = "ClientApp" if running.task.kind == CLIENT else "ServerApp"
        why = f"the {app}'s process {how}"
        say(f"process {pid}: {why}; reporting it")

        self._report(running.task, why, pushing=running.last == PUSHING)

    def _report(self, task: Task, why: str, *, pushing: bool) -> None:
        def work(task: Task, pipe: int) -> None:
            report(task, why, pushing=pushing)

        self._start(task, work, reporter=True)

    def _inherit(self) -> None:
        """Report the tasks of a parent that was killed, with which their processes ended."""
        if self._tokens is None:
            return
        make_folder(self._tokens)
        for path in sorted(self._tokens.iterdir()):
            token = path.read_text("utf-8")
            path.unlink()
            if token:
                say(f"process {path.name}: killed with its parent; reporting it")
                task = Task(self.kind, self.address, token, self.certificates)  # type: ignore[arg-type]
                self._report(task, "the process was killed with the parent of all tasks", pushing=False)

    def _token(self, pid: int) -> Path | None:
        """Return the file that holds a task's token while a process has the task."""
        return None if self._tokens is None else self._tokens / str(pid)

    def _kill(self, pid: int, why: str) -> None:
        running = self.running[pid]
        if not running.why and not running.reporter:
            running.why = f"was ended: {why}"
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _watch_memory(self) -> None:
        due = self._memory_looked + timing.MEMORY_LOOK_S
        if self.memory is None or not self.running or time.monotonic() < due:
            return
        self._memory_looked = time.monotonic()
        used = self.memory.used()
        if used > self.memory.most:
            for pid in list(self.running):
                limit = spell(self.memory.most)
                self._kill(pid, f"--max-memory: the node used {spell(used)} of the {limit} it may use")
