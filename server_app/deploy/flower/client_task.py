"""The process of a single message: reads the order, runs the app, writes the answer.

The process is a fork of the warm parent. It reads its order from the socket, see
`server_app.deploy.host.tasks`, and writes its answer there; it has no connection and no key.
"""

import importlib
import json
import logging
import resource
import signal
import socket
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, cast

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.cli.install import install_from_fab
from flwr.clientapp import ClientApp
from flwr.clientapp.utils import get_load_client_app_fn
from flwr.common.serde import (
    message_to_proto,
    recorddict_from_proto,
    recorddict_to_proto,
)
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from server_app.deploy.calls.protocol import read_keys
from server_app.deploy.host.app_integrity import difference, forget, run_config
from server_app.deploy.host.policy import Site, audit, may_train
from server_app.deploy.host.processes import say
from server_app.deploy.host.resource_limits import MEMORY, MemoryLimit, lacking
from server_app.deploy.host.tasks import END, ID_BYTES, REMARKS_BYTES
from task.errors import BouquetError, RefusedError, WireError, public, with_kind
from task.flower.services import FLEET, Protobuf
from task.text import logger
from task.units import size_option
from task.wire.error_codes import ErrorCode
from task.wire.in_place import give_bytes

TASK_ID = 1  # a process serves one message


@dataclass
class _Received:
    """What came through the socket; `kept` is the app's state for this series of runs."""

    settings: dict[str, Any]
    run: Protobuf
    fab: Protobuf
    kept: bytes
    message: Message

    @property
    def site(self) -> Site:
        """What the owner of this machine allows."""
        return Site(**self.settings["site"])

    @property
    def context(self) -> Context:
        """The context of the ClientApp."""
        keys = self.settings["keys"]
        config = run_config(self.fab.content, read_keys(self.run.override_config)) if keys is None else keys
        (state := _message().content).ParseFromString(self.kept)
        return Context(
            self.run.run_id, self.settings["node"], self.settings["node-config"],
            recorddict_from_proto(state), config, self.run.series_id,
        )  # fmt: skip


class _Remarks(logging.Handler):
    """Collects the errors that are logged, which the node's operator also sees in the terminal."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Collect one."""
        kind = f"{record.exc_info[0].__name__}: " if record.exc_info and record.exc_info[0] else ""
        self.lines.append(" ".join(f"{kind}{record.getMessage()}".split()))

    def packed(self) -> bytes:
        """Return the lines as `server_app.deploy.host.tasks.Answer` has them."""
        return "\n".join(self.lines).encode(errors="replace")[:REMARKS_BYTES]


def run(there: socket.socket, own: ClientApp, here: Mapping[str, str]) -> None:
    """Serve one message: the socket has the order, and gets the answer.

    Args:
        there: The socket.
        own: The installed app.
        here: Its files, as `server_app.deploy.host.app_integrity.installed` returned them.
    """
    pipe = Connection(there.detach())
    task = _read(pipe)
    TaskIdentity.task_id, TaskIdentity.run_id = TASK_ID, task.run.run_id
    TaskIdentity.node_id = task.settings["node"]
    _limit_memory(task.settings["max-memory"])
    message, site = task.message, task.site
    kept = task.kept
    logger.addHandler(remarks := _Remarks())
    try:
        context = task.context
        app = _admitted(task, own, here)
        if site.threads:
            _cap_threads(site.threads)
        reply = app(message=message, context=context)
        message.content = RecordDict()  # no longer needed
        if not isinstance(reply, Message):
            raise WireError(f"the ClientApp returned {type(reply).__name__}; expected a Message")
        kept = recorddict_to_proto(context.state).SerializeToString()
    except BaseException as err:  # whatever the app does, its message gets an answer
        why = _reason(err, task.settings["max-memory"])
        if isinstance(err, RefusedError):
            audit(site, f"refused {message.metadata.message_type} of run {task.run.run_id}: {err}")
        else:
            say(f"task of run {task.run.run_id} failed: {err if isinstance(err, BouquetError) else why}")
        if not isinstance(err, BouquetError | SystemExit):
            traceback.print_exception(err)  # into the node's own log
        remarks.lines = remarks.lines or [str(err) if isinstance(err, BouquetError) else why]
        reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, why), reply_to=message)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a partial reply would be worse than a late end
    _write(pipe, reply, kept, remarks.packed())


def _read(pipe: Connection) -> _Received:
    """Read an order: the settings, the run, its app, what the app kept, the message's head, its objects."""
    settings = json.loads(pipe.recv_bytes())
    (run := FLEET.answer("GetRun").run).ParseFromString(pipe.recv_bytes())
    (fab := FLEET.answer("GetFab").fab).ParseFromString(pipe.recv_bytes())
    kept = pipe.recv_bytes()
    (head := _message()).ParseFromString(pipe.recv_bytes())
    objects = {}
    while (piece := pipe.recv_bytes()) != END:
        objects[piece[:ID_BYTES].decode("ascii")] = piece[ID_BYTES:]
    name = head.metadata.message_id
    message = cast(Message, inflate_object_from_contents(name, objects))
    message.metadata.__dict__["_message_id"] = name  # its hash excludes it
    return _Received(settings, run, fab, kept, message)


def _message() -> Protobuf:
    return FLEET.answer("PullMessages").messages_list.add()


def _write(pipe: Connection, reply: Message, kept: bytes, remarks: bytes) -> None:
    """Write an answer, what the app keeps for the next message of its run, and lines for the operator."""
    if reply.has_content():
        give_bytes(reply.content)
    with no_object_id_recompute():  # each part is hashed once
        reply.metadata.__dict__["_message_id"] = reply.object_id
        pipe.send_bytes(message_to_proto(remove_content_from_message(reply)).SerializeToString())
        pipe.send_bytes(get_object_tree(reply).SerializeToString())
        pipe.send_bytes(kept)
        pipe.send_bytes(remarks)
        parts = get_all_nested_objects(reply)
        heads = [name.encode() + part.deflate() for name, part in parts.items() if part.children]
        contents = {name: part for name, part in parts.items() if not part.children}
    if reply.has_content():
        reply.content = RecordDict()
    parts.clear()
    for name in list(contents):  # what is sent is gone from here
        pipe.send_bytes(name.encode() + contents.pop(name).deflate())
    for head in heads:
        pipe.send_bytes(head)
    pipe.send_bytes(END)


def _admitted(task: _Received, own: ClientApp, here: Mapping[str, str]) -> ClientApp:
    """Return the ClientApp to run.

    Raises:
        RefusedError: The site does not allow it.
    """
    differs = difference(task.fab.content, here)
    if differs and task.site.apps != "any":
        raise RefusedError(
            f'policy: this node runs its installed app only (apps = "installed"); '
            f"the app of this run is not that: {differs}"
        )
    if task.settings["trains"]:
        may_train(task.site, task.settings["trained"], installed=not differs)
    if not differs:
        return own
    install_from_fab(task.fab.content, skip_prompt=True)
    forget()
    load = get_load_client_app_fn("", None, multi_app=True)
    return load(task.run.fab_id, task.run.fab_version, task.fab.hash_str)


def _limit_memory(most: int) -> None:
    """Limit this process to the node's remaining memory, in bytes; 0 = no limit."""
    if most:
        data = MemoryLimit(most).data_limit()
        resource.setrlimit(resource.RLIMIT_DATA, (data, data))


def _cap_threads(most: int) -> None:
    torch: Any = importlib.import_module("torch")
    wanted = torch.set_num_threads
    torch.set_num_threads = lambda n: wanted(min(n, most))
    wanted(most)


def _reason(err: BaseException, most: int) -> str:
    """Return the reason of an error, for the server; `most` is the node's memory in bytes, 0 = no limit."""
    if isinstance(err, SystemExit):
        code = err.code if isinstance(err.code, int | None) else "..."
        return f"the ClientApp called sys.exit({code})"
    text = with_kind(err, public(err))
    if most and (asked := lacking(err)) is not None:
        needs = max(MemoryLimit(most).used() + asked, most + 1)
        return f"{MEMORY} {size_option(most)}: this task needs at least {size_option(needs)}: {text}"
    return text
