"""The grid of a deployed run: packs messages to Bouquet nodes, unpacks replies; see `task.wire.packing`."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from task.flower.grid import pack_pushes
from task.numerics import pages
from task.wire import messages as wire
from task.wire.packing import packed, unpacked


class PackingGrid:
    """A grid that sends packed what goes to nodes of ours: they registered and are asked for clients."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._knows_parts = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages; afterwards they are as they were, and have their ids."""
        given = list(messages)
        if not self._knows_parts:
            self._knows_parts = True
            pack_pushes(self._grid)
        with _in_packed_form([message for message in given if wire.clients_of(message)]):
            found = list(self._grid.push_messages(given))
        pages.reclaim(max((wire.payload_bytes(message.content) for message in given), default=0))
        return found

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull the replies that are there.

        Raises:
            FieldError: One is packed and cannot be unpacked.
        """
        for reply in self._grid.pull_messages(message_ids):
            if reply.has_content():
                reply.content = unpacked(reply.content)
                pages.reclaim(wire.payload_bytes(reply.content))
            yield reply


@contextmanager
def _in_packed_form(messages: Iterable[Message]) -> Iterator[None]:
    contents = [(message, message.content) for message in messages]
    done: dict[int, ArrayRecord] = {}
    try:
        for message, content in contents:
            message.content = packed(content, done)
        yield
    finally:
        for message, content in contents:
            message.content = content
