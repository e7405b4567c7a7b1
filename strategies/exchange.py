"""Push messages and take the replies as they come."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from flwr.app import Message
from flwr.serverapp import Grid

# Flower's own send_and_receive sleeps 3 s between looks. Here the pause is a fiftieth of the time waited so
# far: it costs a round at most 2 %, and a long round does not keep a SuperLink busy with polls. A grid that
# knows when a reply is there (`Prompt`) is not polled at all.
FIRST_PAUSE_S = 0.001
LAST_PAUSE_S = 0.25
SHARE = 0.02


@runtime_checkable
class Prompt(Protocol):
    """A grid that knows when replies come."""

    def wait(self, timeout_s: float) -> None:
        """Return when a reply came since the last call, or after the time."""


def stream_replies(grid: Grid, messages: Sequence[Message], timeout_s: float) -> Iterator[Message]:
    """Push `messages` now and return an iterator that yields each reply when it is there.

    It ends when all came or the time is up. A message that could not be pushed, or whose reply does not
    come in time, yields nothing. A consumer that has enough may just stop; later replies are ignored.
    """
    deadline = time.monotonic() + timeout_s
    pushed = {i for i in grid.push_messages(messages) if i} if messages else set()
    return _pull(grid, pushed, deadline)


def _pull(grid: Grid, waiting: set[str], deadline: float) -> Iterator[Message]:
    began = time.monotonic()
    while waiting:
        for reply in list(grid.pull_messages(waiting)):
            waiting.discard(reply.metadata.reply_to_message_id)
            yield reply
        now = time.monotonic()
        if not waiting or now >= deadline:
            return
        if isinstance(grid, Prompt):
            grid.wait(min(LAST_PAUSE_S, deadline - now))
        else:
            time.sleep(min(max(FIRST_PAUSE_S, SHARE * (now - began)), LAST_PAUSE_S, deadline - now))
