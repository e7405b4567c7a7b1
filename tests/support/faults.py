"""A grid on which things go wrong: nodes die, come back, linger as ghosts, or send broken replies."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo

from task.wire.error_codes import ErrorCode
from tests.support.grid import RUN_ID, LocalGrid

SUPERLINK = 1


class FaultyGrid(LocalGrid):
    """A `LocalGrid` with a SuperLink's view of its nodes.

    What happens is scripted: `on` calls a function when a node is sent its n-th message of a kind, before the
    message is delivered; `later` calls one after some time.

    Args:
        app: The ClientApp of every node.
        node_configs: One node config per node.
        names: What the nodes were enrolled as, in that order; none if left out.
        more: See `LocalGrid`.
    """

    def __init__(
        self,
        app: ClientApp,
        node_configs: list[Mapping[str, Any]],
        run_config: Mapping[str, Any] | None = None,
        *,
        names: Iterable[str] = (),
        **more: Any,
    ) -> None:
        super().__init__(app, node_configs, run_config, **more)
        self.info = {
            n: NodeInfo(node_id=n, registered_at=f"2026-01-01T00:00:{i:02}") for n, i in self.index.items()
        }
        for node, name in zip(self.info, names, strict=False):
            self.info[node].name = name
        self.deaf: set[int] = set()  # their process is dead: what they are handed is lost
        self.pulled: dict[str, int] = {}  # by message: its node
        self.on_pull: dict[int, Callable[[], None]] = {}  # by node: before one of its replies is fetched
        self.down: Callable[[], None] = lambda: None  # before any call of the SuperLink
        self._script: dict[tuple[int, str, int], Callable[[], None]] = {}
        self._seen: dict[tuple[int, str], int] = {}
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._lock = threading.RLock()

    # ------------------------------------------------------------------------------ what happens

    def node(self, i: int) -> int:
        """Return the id of the i-th node."""
        return next(node for node, index in self.index.items() if index == i)

    def on(self, i: int, do: Callable[[], None], *, kind: str = "train", nth: int = 1) -> None:
        """Do something when the i-th node is sent its n-th message of a kind."""
        self._script[i, kind, nth] = do

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        """Do something after a time."""
        self._timers.append((time.monotonic() + seconds, do))

    def die(self, i: int) -> None:
        """Kill a node's process; the SuperLink still holds it for online: a ghost."""
        self.deaf.add(self.node(i))

    def leave(self, i: int) -> None:
        """Kill a node, and let the SuperLink know."""
        self.die(i)
        self.contexts.pop(self.node(i), None)

    def back(self, i: int) -> None:
        """Start a node again under the id that it had, as one with a key does."""
        node = self.node(i)
        self.deaf.discard(node)
        self.info[node].last_activated_at = str(time.monotonic())
        self.contexts[node] = self._context(node, i)

    def join(self, i: int, config: Mapping[str, Any] | None = None, name: str = "") -> int:
        """Start the i-th node under a new id; the old one is left as it is. Return the id."""
        node = 10**6 + len(self.info)
        config = dict(self.configs[i]) if config is None and i < len(self.configs) else dict(config or {})
        self.index = {n: j for n, j in self.index.items() if j != i} | {node: i}
        self.info[node] = NodeInfo(node_id=node, name=name, registered_at=f"2026-01-02T{len(self.info):06}")
        self.contexts[node] = Context(RUN_ID, node, config, RecordDict(), dict(self.run_config))
        return node

    def _context(self, node: int, i: int) -> Context:
        return Context(RUN_ID, node, dict(self.configs[i]), RecordDict(), dict(self.run_config))

    # --------------------------------------------------------------------------------- the grid

    def _tick(self) -> None:
        self.down()
        with self._lock:
            due = [do for at, do in self._timers if at <= time.monotonic()]
            self._timers = [(at, do) for at, do in self._timers if at > time.monotonic()]
        for do in due:
            do()

    def get_nodes(self) -> Iterable[NodeInfo]:
        self._tick()
        return [self.info[n] for n in self.get_node_ids()]

    def _deliver(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        index, kind = self.index.get(node, -1), message.metadata.message_type
        self.pulled[message.metadata.message_id] = node
        nth = self._seen[index, kind] = self._seen.get((index, kind), 0) + 1
        self._script.get((index, kind, nth), lambda: None)()
        if node in self.deaf or node not in self.contexts:
            return None
        return super()._deliver(message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self._tick()
        found = []
        for i in list(message_ids):
            node = self.pulled[i]
            if i in self.replies and node in self.on_pull:
                self.on_pull[node]()
            with self._lock:
                if i in self.replies:
                    found.append(self.replies.pop(i))
                elif node not in self.contexts:
                    found.append(self.lost(i, ErrorCode.NODE_UNAVAILABLE))
        return found

    def lost(self, message_id: str, code: int) -> Message:
        """Return the SuperLink's own answer to a message."""
        request = next(m for m in self.sent if m.metadata.message_id == message_id)
        error = Message(Error(code, "Error: Node Unavailable"), reply_to=request)
        error.metadata.__dict__["_src_node_id"] = SUPERLINK
        return error


class FullDisk:
    """The disk is full when files are synced for the `at`-th time; -1 = never. It counts in `syncs`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begin(-1)
        monkeypatch.setattr(os, "fsync", self._fsync)

    def begin(self, at: int) -> None:
        """Start the count at 0; the sync with number `at` finds the disk full."""
        self.syncs, self.at = 0, at

    def _fsync(self, handle: int) -> None:
        self.syncs += 1
        if self.syncs == self.at:
            raise OSError(28, "No space left on device")
