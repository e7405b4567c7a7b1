"""Record all messages at the server's end of the wire, and decode them as the server could."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from task.catalogue.record import MODEL_UP
from task.config.knobs import Config
from task.errors import ConfigError
from task.numerics.arrays import Arrays
from task.numerics.held import dense
from task.privacy.bounded_integers import GRID
from task.resolve.contract import contract_of
from task.wire import messages as wire
from task.wire.coding import CODE, coder_of


class Tap:
    """A grid that keeps every message of a run that goes through it, as it was sent."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._sent: dict[str, Message] = {}  # by id
        self.heard: list[tuple[Message, Message]] = []  # orders and their replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages."""
        given = list(messages)
        ids = list(self._grid.push_messages(given))
        self._sent |= {m.metadata.message_id: m for m in given}
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull the replies that are there."""
        for reply in self._grid.pull_messages(message_ids):
            order = self._sent.get(reply.metadata.reply_to_message_id)
            if order is not None and reply.has_content():
                self.heard.append((order, reply))
            yield reply


def changes_heard(config: Config, tap: Tap, parameters: tuple[str, ...]) -> dict[str, Arrays]:
    """Return Delta_k by client, of every upload that went through the tap as one client's own.

    A node's merged or masked sum is none. Codes are decoded and integers scaled, as the server does.

    Raises:
        ConfigError: The clients send no local models.
    """
    entry = contract_of(config)
    record = next((r for r in entry.up if r.name == MODEL_UP.name and r.base), None)
    if record is None:
        raise ConfigError(
            f'run-config key "algorithm": expected one whose clients send local models, such as "fedavg"; '
            f'got "{config.algorithm}"'
        )
    found: dict[str, Arrays] = {}
    for order, reply in tap.heard:
        clients = wire.clients_of(order)
        if order.metadata.message_type != "train" or config.server.secagg or len(clients) != 1:
            continue
        received = wire.read_arrays(wire.records_of(order.content, ArrayRecord)[wire.ARRAYS])
        upload = wire.read_reply(reply.content, clients, 1).upload
        if upload is None:
            continue
        arrays: Arrays = upload.arrays[record.name]
        if CODE in arrays:
            coder = coder_of(config, entry, {record.name: received}, {wire.ARRAYS: received}, parameters, 1)
            assert coder is not None
            arrays = {n: dense(a) for n, a in coder.decode(clients[0], record, arrays).items()}
        if record.clipped:
            unit = 2.0 ** -int(float(str(wire.entry_of(order.content, GRID))))
            found[clients[0]] = {n: arrays[n].astype(np.float64) * unit for n in parameters}
        else:
            found[clients[0]] = {n: np.subtract(arrays[n], received[n], dtype=np.float64) for n in parameters}
    return found
