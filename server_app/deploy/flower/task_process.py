"""What runs in the process of one task: the app between what Flower pulls for it and what it pushes.

The process is a fork of the warm parent. Before the app runs, the parent is told what the message is, as it
ends a process that outlives its message, and counts trainings.
"""

from __future__ import annotations

import importlib
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any, Literal, cast

import httpx
from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.cli.install import install_from_fab
from flwr.clientapp import ClientApp
from flwr.clientapp.utils import get_load_client_app_fn
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import PushTaskOutputRequest
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.logger import mirror_output_to_queue
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.run import Run
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from server_app.deploy.host.host import UNANSWERED
from server_app.deploy.host.processes import say
from server_app.deploy.node.app_integrity import difference, forget
from server_app.deploy.node.policy import Site, TaskRequest, audit, may_train
from server_app.deploy.node.task_reports import BEGUN, DONE, PUSHING, Tell, Told
from task.errors import BouquetError, RefusedError, WireError, public

CLIENT_APP = "client_app.app:app"
Kind = Literal["flwr-clientapp", "flwr-serverapp"]


@dataclass(frozen=True)
class Task:
    """A task that was acquired.

    Attributes:
        kind: Of the app.
        address: HOST:PORT of the Runtime API.
        token: What the process proves itself with; it is in no command line.
        certificates: Root certificates of the Runtime API; None = plaintext, on loopback.
    """

    kind: Kind
    address: str
    token: str = field(repr=False)
    certificates: bytes | None = None

    def client(self) -> RuntimeHttpClient:
        """Connect to the Runtime API; retries while it is away."""
        return RuntimeHttpClient.from_server_address(
            server_address=self.address,
            insecure=self.certificates is None,
            root_certificates=self.certificates,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name=self.kind),
                RuntimeTokenHttpInterceptor(self.token),
            ],
            retry_invoker=make_simple_http_retry_invoker(),
        )


def client_task(
    task: Task, site: Site, here: Mapping[str, str], trained: Mapping[int, int], tell: Tell, limit: str = ""
) -> None:
    """Answer one message, with an error if the app cannot.

    Args:
        task: What was acquired.
        site: What is allowed.
        here: The installed files, as `server_app.deploy.node.app_integrity.installed` returned them.
        trained: Training messages so far, by run.
        tell: Takes what happens; see `server_app.deploy.node.task_reports`.
        limit: The memory that the process was given, for the error when it is not enough.
    """
    client = task.client()
    beat = HeartbeatSender(make_task_heartbeat_fn_http(client))
    beat.start()
    message, context, run, fab = pull_task_input(client)
    order = TaskRequest(
        remove_content_from_message(message),
        Context(context.run_id, context.node_id, {}, RecordDict(), {}),
    )
    tell(Told(BEGUN, order.trains, context.run_id, message.metadata.ttl))
    done, why = SubStatus.COMPLETED, ""
    try:
        app = _admitted(order, context, run, fab, site, here, trained)
        if site.threads:
            _cap_threads(site.threads)
        reply = app(message=message, context=context)
        if not isinstance(reply, Message):
            raise WireError(f"the ClientApp returned {type(reply).__name__}; expected a Message")
    except BaseException as err:  # whatever the app does, its message gets an answer
        done, why = SubStatus.FAILED, _reason(err, limit)
        if isinstance(err, RefusedError):
            audit(site, f"refused {message.metadata.message_type} of run {context.run_id}: {err}")
        else:
            say(f"task of run {context.run_id} failed: {err if isinstance(err, BouquetError) else why}")
        if not isinstance(err, BouquetError | SystemExit):
            traceback.print_exception(err)  # into the node's own log
        reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, why), reply_to=message)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # half a reply would be worse than a late end
    tell(Told(PUSHING))
    push_message(client, reply, context)
    push_task_output(client, context if done == SubStatus.COMPLETED else None, done, why)
    tell(Told(DONE))


def _admitted(
    order: TaskRequest,
    context: Context,
    run: Run,
    fab: Fab,
    site: Site,
    here: Mapping[str, str],
    trained: Mapping[int, int],
) -> ClientApp:
    """Return the ClientApp to run.

    Raises:
        RefusedError: The site does not allow it.
    """
    differs = difference(fab.content, here)
    if differs and site.apps != "any":
        raise RefusedError(
            f'policy: this node runs its installed app only (apps = "installed"); '
            f"the app of this run is not that: {differs}"
        )
    if order.trains:
        may_train(order, context, site, trained, installed=not differs)
    if not differs:
        return cast(ClientApp, _attribute(CLIENT_APP))
    install_from_fab(fab.content, skip_prompt=True)
    forget()
    return get_load_client_app_fn("", None, multi_app=True)(run.fab_id, run.fab_version, fab.hash_str)


def _attribute(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def _cap_threads(most: int) -> None:
    torch: Any = importlib.import_module("torch")
    wanted = torch.set_num_threads
    torch.set_num_threads = lambda n: wanted(min(n, most))
    wanted(most)


def _reason(err: BaseException, limit: str) -> str:
    if isinstance(err, SystemExit):
        code = err.code if isinstance(err.code, int | None) else "..."
        return f"the ClientApp called sys.exit({code})"
    text = public(err)
    if limit and (isinstance(err, MemoryError) or "allocate memory" in str(err)):
        return f"--max-memory: this task needs more than {limit}: {text}"
    return text


def server_task(task: Task, site: Site, here: Mapping[str, str], tell: Tell) -> None:
    """Run a ServerApp in Flower's way, with the installed app; does not return.

    Raises:
        SystemExit: When it is over; the parent has `DONE` if Flower has reported how it ended.
    """
    importlib.import_module("flwr.superlink.runtime.run_serverapp")
    theirs = sys.modules["flwr.superlink.runtime.run_serverapp"]
    install, push = theirs.install_from_fab, RuntimeHttpClient.PushTaskOutput

    def checked(content: bytes, **options: Any) -> Path:
        if differs := difference(content, here):
            if site.apps != "any":
                audit(site, f"refused to serve: {differs}")
                raise RefusedError(f"policy: this SuperLink runs its installed app only; {differs}")
            forget()
        return Path(install(content, **options))

    def pushed(self: RuntimeHttpClient, request: PushTaskOutputRequest) -> object:
        response = push(self, request)
        tell(Told(DONE))
        return response

    theirs.install_from_fab = checked  # type: ignore[attr-defined]
    RuntimeHttpClient.PushTaskOutput = pushed  # type: ignore[assignment,method-assign]
    lines: Queue[str | None] = Queue()
    mirror_output_to_queue(lines)
    theirs.run_serverapp(
        runtime_api_address=task.address,
        log_queue=lines,
        token=task.token,
        insecure=task.certificates is None,
        certificates=task.certificates,
        runtime_dependency_install=False,
    )


def report(task: Task, why: str, *, pushing: bool) -> None:
    """Say, in the place of a process, how it ended.

    A SuperNode then answers the message that the process had (`server_app.deploy.flower.supernode`), unless
    it had begun to push its reply: a second one would be too many.
    """
    if task.kind == "flwr-clientapp" and not pushing:
        why = UNANSWERED + why
    try:
        task.client().PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.FAILED, details=why))
    except httpx.HTTPError as err:  # who gave the task may be another process by now
        say(f"nobody waits for the task any more: {err}")
