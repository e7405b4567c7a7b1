"""The warm parent of ServerApps: ``python -m server_app.deploy.flower.warm``, a SuperExec that forks.

Flower starts a Python process for every run, which imports torch, flwr and the app: seconds. Here one parent
has imported them, and forks. It stays single-threaded and does nothing in torch, so that a fork is safe, and
it runs none of the app's code, so that it cannot be hurt by it. If a process ends without having reported
how, a fork of the parent reports it.

A task's token goes to its process by the fork; it is in no command line and no environment.
"""

import argparse
import gc
import importlib
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Queue

import httpx
from flwr.supercore.logger import mirror_output_to_queue
from flwr.supercore.runtime import RuntimeHttpClient

from server_app.deploy.flower.portable_run import read_task, replace_if_portable
from server_app.deploy.flower.retries import retry_soon
from server_app.deploy.flower.task_calls import TaskCalls
from server_app.deploy.host.app_integrity import difference, installed
from server_app.deploy.host.forks import Forks, freeze
from server_app.deploy.host.processes import end_with_parent, how_the_work_ended, say
from task import portable, timing
from task.errors import RefusedError
from task.flower.services import Protobuf
from task.storage.files import make_folder, private
from task.storage.locks import locked

APP = "server_app.app"


@dataclass(frozen=True)
class AcquiredTask:
    """A task that was acquired.

    Attributes:
        address: HOST:PORT of the Runtime API.
        token: What its process proves itself with.
        certificates: Root certificates of the Runtime API; None = plaintext, on loopback.
    """

    address: str
    token: str = field(repr=False)
    certificates: bytes | None = None

    def report(self, why: str) -> None:
        """Report, on behalf of a process, how it ended."""
        try:
            with closing(TaskCalls(self.address, self.certificates)) as calls:
                calls.report(self.token, why)
        except httpx.HTTPError as err:  # the task may come from another process by now
            say(f"the task is no longer needed: {err}")


class PreforkExecutor:
    """Acquires the ServerApps of one Runtime API and runs each in a process of its own.

    Args:
        address: HOST:PORT of the Runtime API.
        tokens: Folder for what proves that a task is this parent's. The successor of a killed process reports
        its tasks with it; otherwise the SuperLink would wait a minute for a heartbeat.
        secret: The SuperExec secret.
        certificates: Root certificates of the Runtime API; None = plaintext.
    """

    def __init__(self, address: str, tokens: Path, secret: bytes, certificates: bytes | None = None) -> None:
        self.address, self.certificates, self._tokens = address, certificates, tokens
        self._here = installed()
        self._forks = Forks()  # whose wait ends with any signal that is handled
        self.running: dict[int, AcquiredTask] = {}  # by process id
        self._calls, self._secret = TaskCalls(address, certificates), secret
        self._trouble = ""

    def serve(self) -> None:
        """Acquire and run tasks until the process is ended; the link sends SIGUSR1 when there is one."""
        self._inherit()
        signal.signal(signal.SIGUSR1, lambda number, frame: None)
        while True:
            for pid, code in self._forks.wait(self._acquire()):
                self._ended(pid, code)

    def _acquire(self) -> float:
        """Look for a task once and start it; return for how long to wait."""
        try:
            token = self._calls.acquire(self._secret)  # while it waits for an answer, it does nothing else
        except (httpx.HTTPError, ValueError) as err:
            if str(err) != self._trouble:
                say(f"no tasks: unexpected answer from {self.address}: {err}")
                self._trouble = str(err)
            return timing.TASK_RETRY_S
        if self._trouble:
            say(f"{self.address} answers again")
            self._trouble = ""
        if token:
            task = AcquiredTask(self.address, token, self.certificates)
            pid = self._forks.fork(partial(server_task, task, self._here, self._tokens))
            self.running[pid] = task
            with open(self._tokens / str(pid), "w", opener=private, encoding="utf-8") as file:
                file.write(task.token)
            return 0.0  # there may be another
        return timing.TASK_IDLE_S

    def _ended(self, pid: int, code: int) -> None:
        (self._tokens / str(pid)).unlink(missing_ok=True)
        task = self.running.pop(pid, None)
        if task is None or not code:  # it reported, or has been reported itself
            return
        how = how_the_work_ended(code)
        say(f"process {pid}: the ServerApp's process {how}; reporting it")
        self._forks.fork(partial(task.report, f"the ServerApp's process {how}"))

    def _inherit(self) -> None:
        """Report the tasks of a parent that was killed, with which their processes ended."""
        make_folder(self._tokens)
        for path in sorted(self._tokens.iterdir()):
            token = path.read_text("utf-8")
            path.unlink()
            if token:
                say(f"process {path.name}: killed with its parent; reporting it")
                task = AcquiredTask(self.address, token, self.certificates)
                why = "the process was killed with the parent of all tasks"
                self._forks.fork(partial(task.report, why))


def server_task(task: AcquiredTask, here: Mapping[str, str], turn: Path) -> None:
    """Run a ServerApp in Flower's way, with the installed app.

    Flower takes a folder that another process has begun to unpack for an app, so they unpack in turn: `turn`
    is a folder that is locked.

    Raises:
        SystemExit: When it is over; with 0 if Flower has reported how it ended.
    """
    if not portable.in_force():
        order = task.address, task.token, task.certificates
        replace_if_portable(order, turn, "-P", "-m", "server_app.deploy.flower.warm", "--portable")
    importlib.import_module("flwr.superlink.runtime.run_serverapp")
    theirs = sys.modules["flwr.superlink.runtime.run_serverapp"]
    install, push = theirs.install_from_fab, RuntimeHttpClient.PushTaskOutput
    reported = []

    def checked(content: bytes, **options: object) -> Path:
        if differs := difference(content, here):
            say(f"audit: refused to serve: {differs}")
            raise RefusedError(
                f"policy: this SuperLink runs its installed app only; {differs}. The app has changed since "
                "the link started: restart the link"
            )
        with locked(turn, wait_s=timing.UNPACK_S):
            return Path(install(content, **options))

    def pushed(self: RuntimeHttpClient, request: Protobuf) -> object:
        response = push(self, request)
        reported.append(request)
        return response

    theirs.install_from_fab = checked  # type: ignore[attr-defined]
    RuntimeHttpClient.PushTaskOutput = pushed  # type: ignore[assignment,method-assign]
    lines: Queue[str | None] = Queue()
    mirror_output_to_queue(lines)
    try:
        theirs.run_serverapp(
            runtime_api_address=task.address,
            log_queue=lines,
            token=task.token,
            insecure=task.certificates is None,
            certificates=task.certificates,
            runtime_dependency_install=False,
        )
    finally:
        if reported:
            sys.exit(0)


def main() -> None:
    """Start from the command line; see `server_app.deploy.link.run_link`."""
    if sys.argv[1:] == ["--portable"]:  # a fork that has replaced itself
        task, turn = read_task()
        server_task(AcquiredTask(*task), installed(), turn)
    end_with_parent()
    retry_soon()
    args = _arguments()
    secret = Path(args.secret).read_bytes()
    if not secret:
        sys.exit(f"expected the SuperExec secret in {args.secret}; got none")
    certificates = Path(args.root_certificates).read_bytes() if args.root_certificates else None
    gc.disable()
    importlib.import_module(APP)
    freeze()
    warm = PreforkExecutor(args.runtime, args.tasks, secret, certificates)
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))  # the processes of tasks end with it
    say(f"warm: ready for ServerApps of {args.runtime}")
    warm.serve()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="server_app.deploy.flower.warm", description=__doc__.split("\n")[0])
    parser.add_argument("--runtime", required=True, metavar="HOST:PORT", help="Runtime API")
    parser.add_argument(
        "--root-certificates", help="root certificate of the Runtime API; without it: plaintext, on loopback"
    )
    parser.add_argument("--secret", required=True, help="file of the SuperExec secret")
    parser.add_argument(
        "--tasks", type=Path, required=True, help="folder for proofs that running tasks are its own"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
