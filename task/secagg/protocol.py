"""Shared by nodes and server of a secure round: session, rules, roster, masks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from task.errors import SecureAggregationError
from task.secagg.primitives import KEY_BYTES, derive, digest
from task.secagg.vector import Mask, Vector

PROTOCOL = "bouquet secure aggregation 3"


@dataclass(frozen=True)
class Session:
    """One attempt at one sum."""

    run: str  # identity of the run
    round: int  # server round, from 1
    phase: str  # message type of the phase whose replies are summed
    attempt: str  # never used before
    order: str = ""  # SHA-256 of what all nodes are asked, `task.wire.shared`

    @cached_property
    def id(self) -> bytes:
        """Which goes into every key, 32 bytes.

        So nodes that were asked different things have masks that do not cancel.
        """
        return digest(PROTOCOL, self.run, self.round, self.phase, self.attempt, self.order)

    @cached_property
    def sum(self) -> bytes:
        """Identity of the sum that it is an attempt at, 32 bytes."""
        return digest(PROTOCOL, self.run, self.round, self.phase)


@dataclass(frozen=True)
class Rules:
    """The rules that every node enforces; they are run-config keys, so that a node knows them by itself."""

    min_nodes: int = 3  # fewest nodes in a sum that the server may see
    threshold: int = 0  # t, nodes without which no mask is opened; 0 = floor(2n/3) + 1

    def t(self, n: int) -> int:
        """Return t among n nodes.

        Raises:
            SecureAggregationError: No more than half would do, so that a server could open a node's numbers
                by telling two halves different things; or more than there are.
        """
        t = self.threshold or 2 * n // 3 + 1
        if not n < 2 * t <= 2 * n:
            raise SecureAggregationError(
                f'run-config key "secagg-threshold": expected more than half of the {n} nodes of the '
                f"round and at most all of them; got {t}"
            )
        return t

    def least(self, n: int) -> int:
        """Return how many of n nodes must be left at every stage."""
        return max(self.t(n), self.min_nodes)


@dataclass(frozen=True)
class PublicKeys:
    """A node's public keys in a round."""

    sealing: bytes  # X25519: others encrypt shares for it
    masking: bytes  # X25519: for agreeing on masks
    proof: bytes = b""  # the proof that they belong to a node of the federation

    def check(self, name: str) -> None:
        """Refuse an invalid session.

        Raises:
            SecureAggregationError: Naming the node.
        """
        if len(self.sealing) != KEY_BYTES or len(self.masking) != KEY_BYTES:
            raise SecureAggregationError(f"node {name}: expected two keys of {KEY_BYTES} bytes")


@dataclass(frozen=True)
class Roster:
    """The nodes of a round, as its server lists them."""

    keys: Mapping[str, PublicKeys] = field(default_factory=dict)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the nodes, sorted; a node's place among them is what its shares are for."""
        return tuple(sorted(self.keys))

    @cached_property
    def digest(self) -> bytes:
        """Which goes into every encrypted share: nodes with different rosters cannot read each other's."""
        parts = [p for n in self.names for p in (n, self.keys[n].sealing, self.keys[n].masking)]
        return digest("roster", len(self.names), *parts)

    def check(self) -> None:
        """Refuse keys that are none, or that two nodes have.

        Raises:
            SecureAggregationError: Naming the node.
        """
        seen: dict[bytes, str] = {}
        for name in self.names:
            self.keys[name].check(name)
            for key in (self.keys[name].sealing, self.keys[name].masking):
                if key in seen:
                    raise SecureAggregationError(f"nodes {seen[key]} and {name}: expected keys of their own")
                seen[key] = name

    def number(self, name: str) -> int:
        """Return a node's place, from 1: where its shares are points of the polynomials."""
        return self.names.index(name) + 1


def pair_mask(
    vector: Vector,
    session: Session,
    roster: Roster,
    mine: str,
    other: str,
    agreed: bytes,
    *,
    undo: bool = False,
) -> Mask:
    """Return node `mine`'s mask with another node, or what takes it away; their keys agree on `agreed`.

    The two nodes' masks cancel: the node whose name comes first adds it.
    """
    first, second = sorted((mine, other))
    keys = [roster.keys[name].masking for name in (first, second)]
    key = derive(agreed, session.id, "pair", *keys, *vector.form)
    return key, 1 if (mine == first) != undo else -1


def own_mask(vector: Vector, session: Session, seed: bytes, *, undo: bool = False) -> Mask:
    """Return a node's own mask, or what takes it away."""
    return derive(seed, session.id, "own", *vector.form), -1 if undo else 1
