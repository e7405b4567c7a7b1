"""The grid of a simulation: virtual nodes in this process, on Flower's public `Grid`.

Flower's `run_simulation` is deprecated and has Ray as its only backend.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from task import timing
from task.text import logger
from task.wire.error_codes import ErrorCode

SERVER = 1  # the ServerApp's node id; no virtual node has it
Answer = Callable[[Message, Context], tuple[Message, Context]]


class VirtualNodes(Grid):
    """Nodes whose messages are answered by a function, in threads.

    Node ids are random, as a SuperLink's are: no result may depend on them.

    Args:
        answer: Takes a message and the context of its node; returns the reply and the context to keep.
        nodes: How many nodes there are.
        at_once: How many messages are answered at the same time.
    """

    def __init__(self, answer: Answer, nodes: int, at_once: int) -> None:
        run = secrets.randbits(63)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run, SERVER
        self._answer = answer
        self._contexts: dict[int, Context] = {}
        while len(self._contexts) < nodes:
            node, number = SERVER + 1 + secrets.randbits(63), len(self._contexts)
            config: UserConfig = {"partition-id": number, "num-partitions": nodes}
            self._contexts[node] = Context(run, node, config, RecordDict(), {})
        self._replies: dict[str, Message] = {}  # by id of the message
        self._arrived = threading.Event()
        self._threads = ThreadPoolExecutor(at_once, "node")

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Give messages to their nodes; return the ids of those whose node exists."""
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = name = str(uuid4())
            if message.metadata.dst_node_id in self._contexts:
                self._threads.submit(self._work, message)
                ids.append(name)
        return ids

    def _work(self, message: Message) -> None:
        head = message.metadata
        if time.time() > head.created_at + head.ttl:
            why = f"expected to be answered within {head.ttl:g} s; got a thread only later"
            reply = Message(Error(ErrorCode.MESSAGE_UNAVAILABLE, why), reply_to=message)
        else:
            reply = self._answered(message)
        self._replies[head.message_id] = reply
        self._arrived.set()

    def _answered(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        try:
            reply, self._contexts[node] = self._answer(message, self._contexts[node])
        except Exception as err:  # it must not leave the message without an answer
            logger.exception("a virtual node cannot answer")
            return Message(Error(ErrorCode.UNKNOWN, f"{type(err).__name__}: {err}"), reply_to=message)
        return reply

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that are there, each once."""
        found = (self._replies.pop(name, None) for name in message_ids)
        return [reply for reply in found if reply is not None]

    def wait(self, timeout_s: float) -> None:
        """Return when a reply came since the last call, or after the time."""
        self._arrived.wait(timeout_s)
        self._arrived.clear()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push messages and return their replies, those that came within `timeout` seconds."""
        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        left, replies = set(self.push_messages(messages)), list[Message]()
        while left and time.monotonic() < deadline:
            self.wait(min(timing.REPLY_LATER_S, deadline - time.monotonic()))
            found = self.pull_messages(left)
            left -= {reply.metadata.reply_to_message_id for reply in found}
            replies += found
        return replies

    def close(self) -> None:
        """End the threads, once they have answered what they work on; no message is taken any longer."""
        self._threads.shutdown(cancel_futures=True)

    def set_run(self, run: Any) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Any:
        """Not there: a simulation has no run of Flower's."""
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Not there: Flower advises `Message` instead."""
        raise NotImplementedError
