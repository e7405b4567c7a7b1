"""A Grid without processes: messages go through the wire's bytes and straight into a ClientApp."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

RUN_ID = 7


class LocalGrid(Grid):
    """Calls one ClientApp per node, in this process.

    Args:
        app: The ClientApp of every node.
        node_configs: One node config per node.
        run_config: What the nodes' contexts hold.
        tamper: Called with (node index, reply) for training and evaluation replies; what it returns
            is delivered, None is a node that never answers.
        seed: Shuffles node ids and the order of replies, as reality does.
    """

    def __init__(
        self,
        app: ClientApp,
        node_configs: list[Mapping[str, Any]],
        run_config: Mapping[str, Any] | None = None,
        *,
        tamper: Callable[[int, Message], Message | None] | None = None,
        seed: int = 0,
    ) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN_ID, 1
        self.random = random.Random(seed)
        self.app = app
        self.tamper = tamper
        self.configs, self.run_config = node_configs, dict(run_config or {})
        ids = self.random.sample(range(10**6), len(node_configs))
        self.contexts = {
            node: Context(RUN_ID, node, dict(config), RecordDict(), dict(run_config or {}))
            for node, config in zip(ids, node_configs, strict=True)
        }
        self.index = {node: i for i, node in enumerate(ids)}
        self.replies: dict[str, Message] = {}
        self.sent: list[Message] = []
        self._next = 0

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=n) for n in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            self._next += 1
            message.metadata.__dict__["_message_id"] = str(self._next)
            self.sent.append(message)
            ids.append(str(self._next))
            reply = self._deliver(message_from_proto(message_to_proto(message)))
            if reply is not None:
                self.replies[str(self._next)] = reply
        return ids

    def _deliver(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        try:
            reply = self.app(message, self.contexts[node])
        except Exception as err:
            reply = Message(Error(code=2, reason=f"{type(err)}:<'{err}'>"), reply_to=message)
        if self.tamper is not None and not message.metadata.message_type.startswith("query"):
            tampered = self.tamper(self.index[node], reply)
            if tampered is None:
                return None
            reply = tampered
        return message_from_proto(message_to_proto(reply)) if not reply.has_error() else reply

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        there = [i for i in message_ids if i in self.replies]
        self.random.shuffle(there)
        return [self.replies.pop(i) for i in there[:3]]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        ids = list(self.push_messages(messages))
        out: list[Message] = []
        while any(i in self.replies for i in ids):
            out += self.pull_messages(ids)
        return out


class Twice(LocalGrid):
    """Has every message answered twice, as after a lost answer; the second answer counts."""

    def _deliver(self, message: Message) -> Message | None:
        super()._deliver(message)
        return super()._deliver(message)
