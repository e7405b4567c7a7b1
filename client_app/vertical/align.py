"""Before round 1: the parties find their common rows (`task.vertical.psi`), and no party learns an id.

A party masks the points that it receives with the same secret as its own ids. So a server that could make it
mask chosen points would learn which ids the party has, guess by guess. Sets therefore go round a ring: a
party masks only what the party before it has signed in this start and at the hop before, at each hop one set,
and a run may be started a bounded number of times (`task.vertical.proofs`).
"""

from collections.abc import Iterator

import numpy as np

from client_app.data.node import Node
from client_app.stages.stage import Outcome
from client_app.vertical.party import AlignedParty, Kept, Party, PartyWork
from task.catalogue.entry import Algorithm
from task.errors import FieldError, RefusedError, StateError
from task.numerics.arrays import Arrays
from task.secagg.primitives import digest
from task.vertical import psi
from task.vertical.proofs import from_row, message
from task.vertical.rows import in_common_order
from task.wire import messages as wire
from task.wire.layouts import ROWS

MOST_STARTS = 100  # of one run: each resume aligns again, and lets the parties compare other sets of ids


class Alignment(PartyWork):
    """One phase of the alignment, for the clients of an order."""

    def __init__(self, node: Node, entry: Algorithm, order: wire.TrainOrder) -> None:
        super().__init__(node, entry, order)
        self.session = int(order.scalars["session"])
        self.salt = f"{order.run}\x1f{self.session}".encode()

    def points(self, client: str, kept: Kept) -> tuple[wire.ClientUpdate, Kept]:
        """Send the own ids as points, and keep secret and order; a message that comes twice gets the same."""
        party = Party(self.node, client)
        ids, (size, _) = party.ids, self.order.rows["points"]
        held = kept.get("secret", {})
        if self._of_this_start(held):
            points, numbers = held["points"], held["numbers"]
            secret = held["exponent"]
        else:
            held = {"starts": self._next_start(client, held)}
            made = psi.new_secret()
            points, numbers = psi.own_points(ids, size, self.salt, made)
            secret = np.frombuffer(made, np.uint8)
        session = np.array(self.session)
        keep = {**held, "exponent": secret, "numbers": numbers, "points": points, "session": session}
        about = {"labels": float(party.labelled), "columns": float(party.inputs)}
        scalars = {wire.NUM_EXAMPLES: float(len(ids)), **about}
        return wire.ClientUpdate(self._signed(client, 0, points), scalars), {"secret": keep}

    def mask(self, client: str, kept: Kept) -> tuple[wire.ClientUpdate, Kept]:
        """Send the points that come from the party before, masked by the own secret too.

        Raises:
            FieldError: That party has not signed them, or others were masked at this hop.
        """
        held, hop = self._held(client, kept), int(self.order.scalars["hop"])
        given = self.given(client, "points")
        parties = self.parties
        if client not in parties or not 0 < hop < len(parties):
            raise FieldError("hop", f"1 to {len(parties) - 1} of {len(parties)} parties", str(hop))
        if (prover := self.prover) is not None:
            before = parties[parties.index(client) - 1]
            proof = from_row(self.given(client, "proofs")[0])
            prover.check(before, "points", self._message(before, hop - 1, given), proof)
        asked = np.frombuffer(digest("points", given.tobytes()), np.uint8)
        if not np.array_equal(held.setdefault(f"hop-{hop}", asked), asked):
            raise FieldError("points", "one set of points at each hop of a start", "another one")
        made = psi.masked((row.tobytes() for row in given), held["exponent"].tobytes())
        numbers = {wire.NUM_EXAMPLES: float(len(Party(self.node, client).ids))}
        return wire.ClientUpdate(self._signed(client, hop, made), numbers), {"secret": held}

    def match(self, client: str, kept: Kept) -> tuple[wire.ClientUpdate, Kept]:
        """Keep the rows whose points all have, in the common order, and forget the secret."""
        party = Party(self.node, client)
        held = kept.get("secret", {})
        if "numbers" in held:
            held = self._held(client, kept)
            places = self.given(client, "positions")[:, 0]
            rows = held["numbers"][places]
            rows = rows[rows >= 0]
            ids = party.ids
            rows = rows[in_common_order([ids[i] for i in rows], self.node.config.seeds.data)]
            found = AlignedParty(party, rows).kept()
        else:  # the message has come before
            found = kept["aligned"]
        starts = {name: held[name] for name in ("starts",) if name in held}
        keep: Kept = {"secret": {**starts, "session": np.array(self.session)}, "aligned": found}
        return wire.ClientUpdate({}, {wire.NUM_EXAMPLES: len(party.ids)}), keep

    def _message(self, party: str, hop: int, points: np.ndarray) -> bytes:
        """Return what a party signs of a set that it has masked at a hop; 0 is its own."""
        about = self.order.run, self.session, hop, party
        return message("alignment", *about, arrays=[np.ascontiguousarray(points)])

    def _signed(self, client: str, hop: int, points: np.ndarray) -> dict[str, Arrays]:
        """Return points with a proof of their origin."""
        proof = self.proof(self._message(client, hop, points))
        return {"points": {ROWS: points}, "proof": {ROWS: proof[None]}}

    def _next_start(self, client: str, held: Arrays) -> np.ndarray:
        """Return the number of this start.

        Raises:
            RefusedError: The run was started too often.
        """
        number = int(held.get("starts", 0)) + 1
        if number > MOST_STARTS:
            raise RefusedError(
                f"client {client}: expected a run that aligns its rows at most {MOST_STARTS} times, as each "
                "time different ids can be compared; got one more. Start another run"
            )
        return np.array(number)

    def _of_this_start(self, held: Arrays) -> bool:
        return "numbers" in held and int(held["session"]) == self.session

    def _held(self, client: str, kept: Kept) -> Arrays:
        held = kept.get("secret", {})
        if not self._of_this_start(held):
            raise StateError(
                f"client {client}: expected the secret of the alignment in progress; got none, because the "
                "node's state folder was changed. Resume the run: it aligns the rows again"
            )
        return held


def align_parties(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Do one phase of the alignment for the clients of an order."""
    work = Alignment(node, entry, order)
    step = {"points": work.points, "mask": work.mask, "match": work.match}[entry.work]
    return work.run(lambda client: step(client, *work.memory.load([client], 0)))
