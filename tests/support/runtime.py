"""A SuperNode's Runtime API without a SuperLink behind it, and a warm SuperExec before it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import uvicorn
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeStateFactory
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState
from flwr.supernode.start_client_internal import _insert_message

from server_app.deploy.flower.supernode import answer_for_the_dead
from server_app.deploy.host.host import APP_DIR, free_port

STARTS_S = 120.0
RUN = 7

CRASHING = """
import os, signal, sys, time
from flwr.app import Message, RecordDict
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
    """Return the bundle of this app."""
    return _bundle(APP_DIR)


def _bundle(folder: Path) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a library that Flower uses
        return build_fab_from_disk(folder)


@dataclass
class Runtime:
    """A Runtime API with one run."""

    port: int
    states: NodeStateFactory
    fab: Fab
    warm: subprocess.Popen[bytes]
    log: Path
    start: Callable[[], subprocess.Popen[bytes]]

    def renew(self) -> None:
        """Kill the warm SuperExec, and start another."""
        self.warm.kill()
        self.warm.wait()
        self.warm = self.start()

    def ask(self, kind: str = "train", how: str = "", ttl: float = 600.0, within_s: float = 60.0) -> Message:
        """Send one message and return the reply, which may be an error; its content is not there."""
        self.order(kind, how, ttl)
        return self.reply(within_s)

    def order(self, kind: str = "train", how: str = "", ttl: float = 600.0) -> None:
        """Send one message."""
        state = self.states.state()
        content = (
            RecordDict({"how": ConfigRecord({"how": how})})
            if how
            else RecordDict({"m": MetricRecord({"x": 1})})
        )
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (("_run_id", RUN), ("_node_id", 1), ("_task_id", 1)):
                patch.setattr(TaskIdentity, name, value)
            message = Message(content, dst_node_id=3, message_type=kind, ttl=ttl)
        _insert_message(message, state, self.states.objectstore_factory.store())
        state.create_task(TaskType.CLIENT_APP, RUN, self.fab.hash_str)

    def reply(self, within_s: float = 60.0) -> Message:
        """Return the reply."""
        state = self.states.state()
        deadline = time.monotonic() + within_s
        while not (replies := state.get_messages(is_reply=True)):
            assert time.monotonic() < deadline, self.log.read_text(errors="replace")[-3000:]
            assert self.warm.poll() is None, self.log.read_text(errors="replace")[-3000:]
            time.sleep(0.02)
        assert len(replies) == 1
        answered = replies[0].metadata
        state.delete_messages(message_ids=[answered.message_id, answered.reply_to_message_id])
        return replies[0]

    def children(self) -> list[psutil.Process]:
        """Return the processes of tasks."""
        return psutil.Process(self.warm.pid).children(recursive=True)


@contextmanager
def running_runtime(folder: Path, bundle: bytes, *options: str) -> Iterator[Runtime]:
    """Serve a Runtime API that knows one run of a bundle, and start a warm SuperExec on it."""
    secret = os.urandom(48)
    (folder / "secret").write_bytes(secret)
    stores = ObjectStoreFactory()
    states = NodeStateFactory(objectstore_factory=stores)
    state = states.state()
    state.set_node_id(3)
    fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
    run = Run.create_empty(RUN)
    run.fab_id, run.fab_version, run.fab_hash = "tests/crashing", "1.0.0", fab.hash_str
    run.series_id = RUN
    state.store_run(run)
    state.store_fab(fab)
    state.set_run_series_context(RUN, Context(RUN, 3, {}, RecordDict(), {}, RUN))
    port = free_port()
    config = uvicorn.Config(
        create_app(states, secret),
        host="127.0.0.1",
        port=port,
        log_level="warning",
        ws="none",
        lifespan="off",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    log, ready = folder / "warm.log", folder / "ready"
    env = os.environ | {"FLWR_HOME": str(folder / "flwr"), "FLWR_TELEMETRY_ENABLED": "0"}

    def start() -> subprocess.Popen[bytes]:
        ready.unlink(missing_ok=True)
        with log.open("ab") as out:
            warm = subprocess.Popen(
                [
                    sys.executable, "-m", "server_app.deploy.flower.warm", "--kind", "flwr-clientapp",
                    "--runtime", f"127.0.0.1:{port}", "--secret", str(folder / "secret"),
                    "--ready", str(ready), "--tasks", str(folder / "tokens"), *options,
                ],
                env=env, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        try:
            deadline = time.monotonic() + STARTS_S
            while not ready.exists():
                assert warm.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
        except AssertionError:
            warm.kill()
            raise
        return warm

    runtime = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InMemoryNodeState, "finish_task", InMemoryNodeState.finish_task)  # is put back
        assert answer_for_the_dead()
        try:
            runtime = Runtime(port, states, fab, start(), log, start)
            yield runtime
        finally:
            if runtime is not None:
                runtime.warm.kill()
                runtime.warm.wait()
            server.should_exit = True
            thread.join(timeout=10)
