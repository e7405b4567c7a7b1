"""A node's exchange with a SuperLink that is none, and the warm parent that forks for its messages."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import psutil
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto, message_from_proto, message_to_proto, run_to_proto
from flwr.proto import message_pb2
from flwr.proto.run_pb2 import Run as RunProto
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from server_app.deploy.host.host import APP_DIR
from server_app.deploy.host.policy import Site
from server_app.deploy.host.processes import SUPERVISOR
from server_app.deploy.host.resource_limits import MemoryLimit
from server_app.deploy.host.tasks import Tasks
from server_app.deploy.node.message_loop import MessageLoop
from task.flower.app import build_bundle

STARTS_S = 120.0
RUN, NODE = 7, 3

CRASHING = """
import os, signal, sys, time
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

def answer(message, context):
    how = message.content["how"]["how"] if "how" in message.content.config_records else "well"
    if how in ("SIGTERM", "SIGKILL", "SIGSEGV"):
        os.kill(os.getpid(), getattr(signal, how))
    if how == "os._exit":
        os._exit(0)
    if how == "sys.exit":
        sys.exit(3)
    if how == "None":
        return None
    if how == "raises":
        raise ValueError("boom")
    if how == "MemoryError":
        raise MemoryError()
    if how.startswith("sleeps"):
        time.sleep(float(how.split()[1]))
    if how.startswith("allocates"):
        block = bytearray(int(how.split()[1]) * 2**20)
        block[::4096] = b"x" * len(block[::4096])
    if how == "keeps":
        context.state["mine"] = MetricRecord({"x": 2})
    if how == "kept":
        assert context.state["mine"]["x"] == 2
    if how == "forgotten":
        context.state["other"]
    return Message(RecordDict(), reply_to=message)

@app.train()
def train(message, context):
    return answer(message, context)

@app.evaluate()
def evaluate(message, context):
    return answer(message, context)
"""
PROJECT = """
[project]
name = "crashing"
version = "1.0.0"
description = "an app that ends in every way"
license = "Apache-2.0"
dependencies = ["flwr"]
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "crashing.app:app"
clientapp = "crashing.app:app"
[tool.flwr.app.config]
"""


def crashing_bundle(folder: Path) -> bytes:
    """Return a bundle whose ClientApp ends as the message says."""
    package = folder / "crashing"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "app.py").write_text(CRASHING)
    (folder / "pyproject.toml").write_text(PROJECT)
    return _bundle(folder)


def own_bundle() -> bytes:
    """Return the bundle of this app; Flower's own function reads all of a .venv in its folder."""
    return build_bundle(APP_DIR)


def _bundle(folder: Path) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a library that Flower uses
        return build_fab_from_disk(folder)


class FakeLink:
    """A SuperLink's Fleet API in this process: it has one run, hands out orders and takes the replies."""

    def __init__(self, bundle: bytes) -> None:
        self.fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
        self.orders: Queue[Message] = Queue()
        self.replies: Queue[Message] = Queue()
        self.heard = 0.0
        self.over = False  # whether the run has ended
        self._parts: dict[str, bytes] = {}

    def activate(self) -> int:
        return NODE

    def beat(self) -> None:
        pass

    def close(self) -> None:
        pass

    def pull(self) -> tuple[message_pb2.Message, message_pb2.ObjectTree] | None:
        try:
            message = self.orders.get(timeout=0.1)
        except Empty:
            return None
        message.metadata.__dict__["_message_id"] = message.object_id
        self._parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        return message_to_proto(remove_content_from_message(message)), get_object_tree(message)

    def objects(self, run: int, tree: message_pb2.ObjectTree) -> list[tuple[str, bytes]]:
        return list(self._parts.items())

    def confirm(self, run: int, name: str) -> None:
        pass

    def has_ended(self, run: int) -> bool:
        return self.over

    def run(self, run: int) -> RunProto:
        made = Run.create_empty(run)
        made.fab_id, made.fab_version, made.fab_hash = "tests/crashing", "1.0.0", self.fab.hash_str
        made.series_id = RUN
        return run_to_proto(made)

    def bundle(self, run: RunProto) -> bytes:
        return fab_to_proto(self.fab).SerializeToString()

    def push(
        self,
        head: message_pb2.Message,
        tree: message_pb2.ObjectTree,
        contents: Callable[[str], bytes],
        took_s: float,
    ) -> None:
        waiting = [tree]
        while waiting:
            part = waiting.pop()
            assert hashlib.sha256(contents(part.object_id)).hexdigest() == part.object_id
            waiting.extend(part.children)
        self.replies.put(message_from_proto(head))


@dataclass
class Runtime:
    """A node whose SuperLink is a test."""

    link: FakeLink
    tasks: Tasks
    loop: MessageLoop
    log: Path
    env: Mapping[str, str]
    warm: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        """Start the warm parent."""
        with self.log.open("ab") as out, self.tasks.stdin() as stdin:
            self.warm = subprocess.Popen(
                [sys.executable, "-m", "server_app.deploy.node.warm", "client_app.app"],
                env=self.env, stdin=stdin.fileno(), stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        assert self.tasks.ready.wait(STARTS_S), self.log.read_text()

    def stop(self) -> None:
        """Kill the warm parent."""
        self.warm.kill()
        self.warm.wait()

    def ask(self, kind: str = "train", how: str = "", ttl: float = 600.0, within_s: float = 60.0) -> Message:
        """Send one message and return the reply, which may be an error; its content is not there."""
        self.order(kind, how, ttl)
        return self.reply(within_s)

    def order(self, kind: str = "train", how: str = "", ttl: float = 600.0) -> None:
        """Send one message."""
        content = (
            RecordDict({"how": ConfigRecord({"how": how})})
            if how
            else RecordDict({"m": MetricRecord({"x": 1})})
        )
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (("_run_id", RUN), ("_node_id", 1), ("_task_id", 1)):
                patch.setattr(TaskIdentity, name, value)
            self.link.orders.put(Message(content, dst_node_id=NODE, message_type=kind, ttl=ttl))

    def reply(self, within_s: float = 60.0) -> Message:
        """Return the reply."""
        try:
            return self.link.replies.get(timeout=within_s)
        except Empty:
            raise AssertionError(self.log.read_text(errors="replace")[-3000:]) from None

    def children(self) -> list[psutil.Process]:
        """Return the processes of tasks."""
        return psutil.Process(self.warm.pid).children(recursive=True)

    def wait_for_child(self) -> psutil.Process:
        """Return the process of a task as soon as there is one."""
        deadline = time.monotonic() + 20
        while not (children := self.children()):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return children[0]


@contextmanager
def running_runtime(folder: Path, bundle: bytes, max_memory: int = 0, **site: Any) -> Iterator[Runtime]:
    """Run a node whose SuperLink knows one run of a bundle; `site` says what its owner allows."""
    link = FakeLink(bundle)
    memory = MemoryLimit(max_memory) if max_memory else None
    tasks = Tasks(memory)
    loop = MessageLoop(link, {False: tasks}, Site(**site), {}, max_memory, folder / "rounds.json")  # type: ignore[arg-type]
    home = {"FLWR_HOME": str(folder / "flwr"), "FLWR_TELEMETRY_ENABLED": "0", SUPERVISOR: str(os.getpid())}
    runtime = Runtime(link, tasks, loop, folder / "warm.log", os.environ | home)
    runtime.start()
    loop.start()
    try:
        yield runtime
    finally:
        loop.close()
        runtime.stop()


@contextmanager
def other_node(runtime: Runtime, folder: Path, bundle: bytes, **site: Any) -> Iterator[Runtime]:
    """Run a node more, of another owner, whose tasks the warm parent of the first one forks."""
    link = FakeLink(bundle)
    loop = MessageLoop(link, {False: runtime.tasks}, Site(**site), {}, 0, folder / "rounds.json")  # type: ignore[arg-type]
    other = Runtime(link, runtime.tasks, loop, runtime.log, runtime.env)
    other.warm = runtime.warm
    loop.start()
    try:
        yield other
    finally:
        loop.close()
