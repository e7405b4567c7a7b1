"""Run the app in Flower's simulation engine, in this process and workers forked from it.

Flower's `run_simulation` is deprecated and knows Ray as its only backend; what it does around the engine is
done here. The ServerApp runs in the main thread, so that Ctrl-C reaches it; the engine in another.

This module imports all that a run needs, torch included.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from queue import Queue
from typing import Any, cast

from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.common.constant import RUN_ID_NUM_BYTES, SUPERLINK_NODE_ID, TASK_ID_NUM_BYTES
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.fleet.vce import vce_api
from flwr.server.superlink.fleet.vce.metrics import VceMetrics
from flwr.server.superlink.linkstate import InMemoryLinkState, LinkState, LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord
from flwr.server.superlink.linkstate.utils import generate_rand_int_from_bytes
from flwr.serverapp import Grid
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import InMemoryGrid

from client_app.app import make_app
from server_app.app import prepare, run
from server_app.engines.workers import Workers
from task.config.read import read_config

LOOK_S = 0.002  # between looks for new messages
LOOK_UP_S = 0.1  # between looks whether the run is over
PARAMETERS = {"state", "queue", "nodes_mapping", "f_stop"}


def simulate(run_config: Mapping[str, Any], nodes: int = 0) -> None:
    """Run the ServerApp and virtual nodes; returns when the run is over.

    The nodes only spread the work: results do not depend on their number. Flower's ``flwr run`` does the
    same through a local SuperLink, a bundle and Ray. Call it once in a process: see `Workers`.

    With `nodes` = 0 there is a virtual SuperNode per CPU, so that every core trains.

    Raises:
        BouquetError: As `server_app.app.run`.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    nodes = nodes or cpus
    config = {**run_config, "min-nodes": nodes}
    logging.getLogger("flwr").setLevel(logging.ERROR)
    prepare(config)  # before the workers, so that they need not open the data again
    app_fn = partial(make_app, config)
    workers = Workers(app_fn, min(cpus, nodes))
    with _engine(app_fn, workers, nodes) as (grid, stop):
        # The workers have all cores, and an evaluation beside them costs both what it saves.
        run(grid, read_config(config), rounds_over=stop, overlap=False)


@contextmanager
def _engine(
    app_fn: Callable[[], ClientApp], workers: Workers, nodes: int
) -> Iterator[tuple[Grid, Callable[[], None]]]:
    """Run Flower's simulation engine in a thread; yield the grid and what stops the engine."""
    run_id = generate_rand_int_from_bytes(RUN_ID_NUM_BYTES)
    task_id = generate_rand_int_from_bytes(TASK_ID_NUM_BYTES)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task_id, run_id, SUPERLINK_NODE_ID
    flower_run = Run.create_empty(run_id)
    flower_run.primary_task_id, flower_run.federation_id = task_id, NOOP_FEDERATION_ID
    factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
    state = cast(InMemoryLinkState, factory.state())
    state.run_ids[run_id] = RunRecord(run=flower_run)
    state.task_store[task_id] = Task(task_id=task_id, run_id=run_id)
    pushed, arrived = threading.Event(), threading.Event()
    vars(state).update(
        store_message_ins=_telling(state.store_message_ins, pushed),
        store_message_res=_telling(state.store_message_res, arrived),
    )
    mapping = vce_api._register_nodes(nodes, factory)
    stores = vce_api._register_node_info_stores(mapping, flower_run)
    grid = _Grid(factory, arrived)
    grid.set_run(flower_run)
    stopped = threading.Event()

    def stop() -> None:
        stopped.set()  # first: what the workers leave undone is of no use any more
        pushed.set()
        workers.terminate()

    engine = threading.Thread(
        target=vce_api.run_api,
        args=(app_fn, lambda: workers, mapping, factory, stores, stopped, VceMetrics()),
    )
    with _prompt(partial(_messenger, pushed=pushed)):
        engine.start()
        try:
            yield grid, stop
        finally:
            stop()
            engine.join()


def _telling(method: Callable[..., Any], event: threading.Event) -> Callable[..., Any]:
    """Return the method, which then also sets the event."""

    def told(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        finally:
            event.set()

    return told


class _Grid(InMemoryGrid):
    """Flower's grid, which knows when a reply is there."""

    def __init__(self, factory: LinkStateFactory, arrived: threading.Event) -> None:
        super().__init__(factory)
        self._arrived = arrived

    def wait(self, timeout_s: float) -> None:
        """Return when a reply came since the last call, or after the time."""
        self._arrived.wait(timeout_s)
        self._arrived.clear()


@contextmanager
def _prompt(messenger: Callable[..., None]) -> Iterator[None]:
    """Let the engine hand out messages at once and end at once.

    Flower's engine looks for new messages ten times a second, so that a round lasts a multiple of 0.1 s
    whatever the work in it, and its threads look once a second whether the run is over. Messenger and
    queues are replaced by such as look more often; on a version of Flower that is built otherwise they
    stay as they are, and so does the pace.
    """
    theirs = {name: getattr(vce_api, name, None) for name in ("add_messages_to_queue", "Queue")}
    original = theirs["add_messages_to_queue"]
    known = original is not None and inspect.signature(original).parameters.keys() == PARAMETERS
    if not known or theirs["Queue"] is not Queue:
        yield
        return
    vars(vce_api).update(add_messages_to_queue=messenger, Queue=_Queue)
    try:
        yield
    finally:
        vars(vce_api).update(theirs)


def _messenger(
    state: LinkState,
    queue: Queue[Message],
    nodes_mapping: Mapping[int, int],
    f_stop: threading.Event,
    pushed: threading.Event,
) -> None:
    """Move the nodes' messages into the workers' queue when there are new ones, until the run is over."""
    while not f_stop.is_set():
        pushed.wait(LOOK_UP_S)
        pushed.clear()
        for node in nodes_mapping:
            for message in state.get_message_ins(node_id=node, limit=None):
                queue.put(message)


class _Queue(Queue[Message]):
    """A queue whose readers look up from waiting at least every `LOOK_UP_S`."""

    def get(self, block: bool = True, timeout: float | None = None) -> Message:
        """Return the next message, or raise `Empty`, perhaps before the time is up."""
        return super().get(block, timeout and min(timeout, LOOK_UP_S))
