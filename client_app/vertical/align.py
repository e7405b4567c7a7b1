"""Before round 1: the parties find their common rows (`task.vertical.psi`), and nobody learns an id."""

from collections.abc import Iterator

import numpy as np

from client_app.memory.memory import Memory
from client_app.node import Node
from client_app.stages.stage import Outcome
from client_app.vertical.party import AlignedParty, Party
from task.errors import StateError
from task.numerics.arrays import Arrays
from task.spec.entry import Algorithm
from task.vertical import psi
from task.vertical.rows import in_common_order
from task.wire import messages as wire
from task.wire.layouts import ROWS

Kept = dict[str, Arrays]


class Alignment:
    """One phase of the alignment, for the clients of an order."""

    def __init__(self, node: Node, entry: Algorithm, order: wire.TrainOrder) -> None:
        self.node, self.entry, self.order = node, entry, order
        self.memory = Memory(node, entry, order)
        self.session = int(order.scalars["session"])
        self.salt = f"{order.run}\x1f{self.session}".encode()

    def run(self) -> Iterator[Outcome]:
        """Yield each client with what it sends, or with what went wrong."""
        step = {"points": self.points, "mask": self.mask, "match": self.match}[self.entry.work]
        for client in self.order.clients:
            try:
                with self.memory.locked([client]):
                    (kept,) = self.memory.load([client], 0)
                    yield client, self.memory.keep(client, *step(client, kept))
            except Exception as err:  # `client_app.app` says what is a client's failure and what a mistake
                yield client, err

    def points(self, client: str, kept: Kept) -> tuple[wire.ClientUpdate, Kept]:
        """Send the own ids as points, and keep secret and order; a message that comes twice gets the same."""
        party = Party(self.node, client)
        ids, (size, _) = party.ids, self.order.rows["points"]
        held = kept.get("secret", {})
        if self._of_this_start(held):
            points, numbers = held["points"], held["numbers"]
            secret = held["exponent"]
        else:
            made = psi.new_secret()
            points, numbers = psi.own_points(ids, size, self.salt, made)
            secret = np.frombuffer(made, np.uint8)
        keep = {"exponent": secret, "numbers": numbers, "points": points, "session": np.array(self.session)}
        about = {"labels": float(party.labelled), "columns": float(party.inputs)}
        scalars = {wire.NUM_EXAMPLES: float(len(ids)), **about}
        return wire.ClientUpdate({"points": {ROWS: points}}, scalars), {"secret": keep}

    def mask(self, client: str, kept: Kept) -> tuple[wire.ClientUpdate, Kept]:
        """Send another party's points, masked by the own secret too."""
        held = self._held(client, kept)
        given = self.order.per_client["points"][client][client][ROWS]
        made = psi.masked((row.tobytes() for row in given), held["exponent"].tobytes())
        numbers = {wire.NUM_EXAMPLES: float(len(Party(self.node, client).ids))}
        return wire.ClientUpdate({"points": {ROWS: made}}, numbers), {"secret": held}

    def match(self, client: str, kept: Kept) -> tuple[wire.ClientUpdate, Kept]:
        """Keep the rows whose points all have, in the common order, and forget the secret."""
        party = Party(self.node, client)
        held = kept.get("secret", {})
        if "numbers" in held:
            held = self._held(client, kept)
            places = self.order.per_client["positions"][client][client][ROWS][:, 0]
            rows = held["numbers"][places]
            rows = rows[rows >= 0]
            ids = party.ids
            rows = rows[in_common_order([ids[i] for i in rows], self.node.config.seeds.data)]
            found = AlignedParty(party, rows).kept()
        else:  # the message has come before
            found = kept["aligned"]
        keep: Kept = {"secret": {"session": np.array(self.session)}, "aligned": found}
        return wire.ClientUpdate({}, {wire.NUM_EXAMPLES: len(party.ids)}), keep

    def _of_this_start(self, held: Arrays) -> bool:
        return "numbers" in held and int(held["session"]) == self.session

    def _held(self, client: str, kept: Kept) -> Arrays:
        held = kept.get("secret", {})
        if not self._of_this_start(held):
            raise StateError(
                f"client {client}: expected the secret of the alignment that is under way; got none, as the "
                "node's state folder was changed. Resume the run, which aligns the rows again"
            )
        return held


def align_parties(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Do one phase of the alignment for the clients of an order."""
    return Alignment(node, entry, order).run()
