"""Flower's simulation engine, with workers of ours and without its pauses.

Flower's `run_simulation` is deprecated and knows Ray as its only backend; what it does around the engine is
done here.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from queue import Queue
from typing import Any, cast

from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.clientapp.client_app import ClientAppException
from flwr.common.constant import RUN_ID_NUM_BYTES, SUPERLINK_NODE_ID, TASK_ID_NUM_BYTES
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.fleet.vce import vce_api
from flwr.server.superlink.fleet.vce.backend import Backend
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

from task import timing
from task.flower.names import PACE, changes

__all__ = ["Backend", "ClientAppException", "engine"]


@contextmanager
def engine(
    app_fn: Callable[[], ClientApp], backend: Backend, nodes: int
) -> Iterator[tuple[Grid, Callable[[], None]]]:
    """Run Flower's engine with `nodes` virtual nodes in a thread; yield the grid and a stop function.

    The backend processes the messages, and is terminated at the end.
    """
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
        stopped.set()  # first, so that nothing waits for the workers' unfinished work
        pushed.set()
        backend.terminate()

    thread = threading.Thread(
        target=vce_api.run_api,
        args=(app_fn, lambda: backend, mapping, factory, stores, stopped, VceMetrics()),
    )
    with _prompt(partial(_messenger, pushed=pushed)):
        thread.start()
        try:
            yield grid, stop
        finally:
            stop()
            thread.join()


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
    """Make the engine deliver messages, and end, without pauses.

    Flower's engine polls for new messages ten times a second, so a round lasts a multiple of 0.1 s however
    little work it has, and its threads check once a second whether the run is over. Messenger and queues are
    replaced by such as look more often; on a version of Flower that is built otherwise they stay as they are,
    and so does the pace.
    """
    if changes(PACE):
        yield
        return
    theirs = {name: getattr(vce_api, name) for name in ("add_messages_to_queue", "Queue")}
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
        pushed.wait(timing.QUEUE_LOOK_S)
        pushed.clear()
        for node in nodes_mapping:
            for message in state.get_message_ins(node_id=node, limit=None):
                queue.put(message)


class _Queue(Queue[Message]):
    """A queue whose readers look up from waiting at least every `timing.QUEUE_LOOK_S`."""

    def get(self, block: bool = True, timeout: float | None = None) -> Message:
        """Return the next message, or raise `Empty`, perhaps before the time is up."""
        return super().get(block, timeout and min(timeout, timing.QUEUE_LOOK_S))
