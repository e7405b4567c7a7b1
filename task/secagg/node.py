"""A node's four steps of a secure round, and what it remembers between them.

Each step takes the state and returns the next one with the answer. The state is the round's secret of 32
bytes, from which all of the node's keys follow, and digests of what was asked before: so each step is
answered for one request only, and a node that lost its state answers nothing. Nothing of it is ever written
to a disk; it is gone when the round ends.

A server that lies is held to this:

* A node lists who is in the round once. Encrypted shares open only among nodes with the same list.
* It masks one vector, for one list of those who sent shares.
* It answers *unmask* once, with one share of each node, never both.
* It helps to open one sum of a round (`RoundMemory.released`): a server that repeats the round gets the sum
  of the same nodes again, or none. Otherwise the difference of two sums would show single nodes.
"""

import hmac
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from task.errors import SecureAggregationError
from task.secagg import shamir
from task.secagg.primitives import agree, derive, digest, public_of, seal, unseal
from task.secagg.protocol import PublicKeys, Roster, Rules, Session, own_mask, pair_mask
from task.secagg.vector import Vector

MOST_RELEASED = 1024  # sums that a node remembers


@dataclass(frozen=True)
class RoundMemory:
    """What a node remembers; without a session, of earlier rounds only."""

    session: bytes = b""  # identity of the attempt
    secret: bytes = field(default=b"", repr=False)
    roster: bytes = b""  # digests of what the steps so far were asked with
    masked: bytes = b""
    released: Mapping[bytes, bytes] = field(
        default_factory=dict
    )  # by sum: whose it was that it helped to open

    def dump(self) -> dict[str, bytes]:
        """Return it as named bytes."""
        pairs = b"".join(k + v for k, v in self.released.items())
        return {
            "session": self.session, "secret": self.secret, "roster": self.roster, "masked": self.masked,
            "released": pairs,
        }  # fmt: skip

    @classmethod
    def load(cls, dumped: Mapping[str, bytes]) -> "RoundMemory":
        """Return what `dump` took apart; an empty mapping gives an empty state."""
        found = {k: bytes(dumped.get(k, b"")) for k in ("session", "secret", "roster", "masked")}
        pairs = bytes(dumped.get("released", b""))
        rows = [pairs[i : i + 64] for i in range(0, len(pairs), 64)]
        return cls(**found, released={row[:32]: row[32:] for row in rows})


@dataclass(frozen=True)
class _Keys:
    """The keys that follow from a round's secret."""

    sealing: bytes  # private X25519
    masking: bytes  # private X25519
    seed: bytes  # of the node's own mask

    @classmethod
    def of(cls, secret: bytes, session: Session) -> "_Keys":
        return cls(*(derive(secret, session.id, label) for label in ("sealing", "masking", "seed")))

    @property
    def public(self) -> PublicKeys:
        return PublicKeys(public_of(self.sealing), public_of(self.masking))


def give_keys(state: RoundMemory, session: Session) -> tuple[RoundMemory, PublicKeys]:
    """Begin a session with a secret of its own, and return its public keys; a repeat gives the same ones."""
    if state.session != session.id or not state.secret:
        if state.session == session.id:
            raise SecureAggregationError("this session is over: expected a new attempt")
        state = RoundMemory(session.id, os.urandom(32), released=state.released)
    return state, _Keys.of(state.secret, session).public


def give_shares(
    state: RoundMemory, session: Session, rules: Rules, roster: Roster
) -> tuple[RoundMemory, dict[str, bytes]]:
    """Return the node's shares for each other node of a roster, encrypted.

    Raises:
        SecureAggregationError: The roster is not one, is of too few nodes, or another than before.
    """
    keys = _known(state, session)
    roster.check()
    mine = _name(keys, roster)
    if state.roster and not hmac.compare_digest(state.roster, roster.digest):
        raise SecureAggregationError("expected the roster of this session; got another one")
    n = len(roster.names)
    _enough(n, rules.least(n), "in the round")
    secrets = (("masking", keys.masking), ("seed", keys.seed))
    parts = [_shares(state, session, rules, roster, label, secret) for label, secret in secrets]
    out = {}
    for other in roster.names:
        if other != mine:
            at = roster.number(other) - 1
            text = b"".join(part[at].to_bytes(shamir.SHARE_BYTES, "big") for part in parts)
            key = _sealing_key(session, keys, roster, other, (mine, other))
            out[other] = seal(key, text, _about(session, roster, mine, other))
    return replace(state, roster=roster.digest), out


def noise_key(state: RoundMemory, session: Session, roster: Roster) -> bytes:
    """Return the key of the noise that the node adds to its vector, one for each session.

    Each session has noise of its own: with the same noise in two sums that differ in one node's vector, their
    difference would have only that node's noise.
    """
    _known(state, session, roster)
    return derive(state.secret, session.id, "noise")


def noise_name(state: RoundMemory, session: Session, roster: Roster) -> str:
    """Return by what a ledger knows the noise of `noise_key`: this node drew it, and no server chooses it."""
    _known(state, session, roster)
    return derive(state.secret, session.id, "name of the noise").hex()


def mask(
    state: RoundMemory,
    session: Session,
    rules: Rules,
    roster: Roster,
    senders: Collection[str],
    vector: Vector,
) -> RoundMemory:
    """Mask the node's vector in place, for the sum with those nodes that sent shares.

    Raises:
        SecureAggregationError: This is another roster or list of nodes than before, or another vector; or
            they are too few.
    """
    keys = _known(state, session, roster)
    mine = _name(keys, roster)
    _members(senders, roster, mine)
    _enough(len(senders), rules.least(len(roster.names)), "that sent shares")
    asked = _asked(senders)
    about = asked + vector.tag(derive(state.secret, session.id, "vector"))
    if state.masked and not hmac.compare_digest(state.masked, about):
        raise SecureAggregationError("expected to mask one vector in a session; got a second one")
    masks = [own_mask(vector, session, keys.seed)]
    for other in sorted(set(senders) - {mine}):
        agreed = agree(keys.masking, roster.keys[other].masking)
        masks.append(pair_mask(vector, session, roster, mine, other, agreed))
    vector.mask(masks)
    return replace(state, masked=about)


def unmask(
    state: RoundMemory,
    session: Session,
    rules: Rules,
    roster: Roster,
    senders: Collection[str],
    alive: Collection[str],
    sealed: Mapping[str, bytes],
    *,
    once: bool = False,
) -> tuple[RoundMemory, dict[str, int]]:
    """Return one share of each of the nodes that sent shares, and forget the session's secret.

    It is a share of the seed of the own mask of those that are `alive`, whose vectors are in the sum, and of
    the masking key of the others. `sealed` are the encrypted shares for this node, by sender. With `once`, no
    second sum of the round is opened, of the same nodes either: each has noise of its own, and both together
    have less.

    Raises:
        SecureAggregationError: The lists are not those of this session, or too short; the shares were not
            encrypted for it; or another sum of this round was opened.
    """
    keys = _known(state, session, roster)
    mine = _name(keys, roster)
    if not state.masked or not hmac.compare_digest(state.masked[:32], _asked(senders)):
        raise SecureAggregationError("expected the nodes for which this node masked its vector; got others")
    _members(alive, roster, mine)
    if odd := sorted(set(alive) - set(senders)):
        raise SecureAggregationError(f"node {odd[0]}: expected only nodes that sent shares")
    _enough(len(alive), rules.least(len(roster.names)), "whose sum may be seen")
    whose = _asked(alive)
    before = state.released.get(session.sum)
    if before is not None and once:
        raise SecureAggregationError(
            f"round {session.round}: this node helped to open a sum of this round; another one would have "
            "other noise, and both together less"
        )
    if before is not None and not hmac.compare_digest(before, whose):
        raise SecureAggregationError(
            f"round {session.round}: this node helped to open the sum of other nodes in this round; the "
            "difference would show single nodes"
        )
    out: dict[str, int] = {}
    for other in sorted(senders):
        label = "seed" if other in alive else "masking"
        if other == mine:
            own = _shares(state, session, rules, roster, label, keys.seed)
            out[mine] = own[roster.number(mine) - 1]
            continue
        key = _sealing_key(session, keys, roster, other, (other, mine))
        text = unseal(key, sealed.get(other, b""), _about(session, roster, other, mine))
        half = slice(shamir.SHARE_BYTES, None) if label == "seed" else slice(0, shamir.SHARE_BYTES)
        out[other] = int.from_bytes(text[half], "big")
    released = dict(list({**state.released, session.sum: whose}.items())[-MOST_RELEASED:])
    return RoundMemory(session.id, released=released), out


def _shares(
    state: RoundMemory, session: Session, rules: Rules, roster: Roster, label: str, secret: bytes
) -> list[int]:
    """Return the shares of one of the node's secrets, in the roster's order; a repeat gives the same ones."""
    n = len(roster.names)
    about = session.id, "polynomial", label, roster.digest
    more = [shamir.coefficient(derive(state.secret, *about, j, size=64)) for j in range(rules.t(n) - 1)]
    return shamir.share(secret, more, n)


def _known(state: RoundMemory, session: Session, roster: Roster | None = None) -> _Keys:
    """Return the keys of a session.

    Raises:
        SecureAggregationError: This node has none of it, or another roster.
    """
    if not state.secret or state.session != session.id:
        raise SecureAggregationError(
            "this node has no secret of this session: it began again since, or the session is over"
        )
    if roster is not None and not (state.roster and hmac.compare_digest(state.roster, roster.digest)):
        raise SecureAggregationError("expected the roster of this session; got another one")
    return _Keys.of(state.secret, session)


def _name(keys: _Keys, roster: Roster) -> str:
    """Return the name under which a roster has this node's own keys."""
    mine = keys.public
    for name, theirs in roster.keys.items():
        if (theirs.sealing, theirs.masking) == (mine.sealing, mine.masking):
            return name
    raise SecureAggregationError("expected a roster with this node's own keys; got one without them")


def _members(names: Collection[str], roster: Roster, mine: str) -> None:
    if odd := sorted(set(names) - roster.keys.keys()):
        raise SecureAggregationError(f"node {odd[0]}: expected only nodes of the roster")
    if mine not in names or len(set(names)) != len(names):
        raise SecureAggregationError("expected a list of nodes, each once and this one among them")


def _enough(found: int, least: int, what: str) -> None:
    if found < least:
        raise SecureAggregationError(
            f'expected at least {least} nodes {what} (run-config keys "secagg-min-nodes", '
            f'"secagg-threshold"); got {found}'
        )


def _asked(names: Collection[str]) -> bytes:
    return digest("nodes", *sorted(names))


def _sealing_key(session: Session, keys: _Keys, roster: Roster, other: str, way: tuple[str, str]) -> bytes:
    """Return the key of what the first node of the `way` encrypts for the second."""
    ends = [roster.keys[name].sealing for name in way]
    return derive(agree(keys.sealing, roster.keys[other].sealing), session.id, "shares", *way, *ends)


def _about(session: Session, roster: Roster, sender: str, receiver: str) -> bytes:
    return digest("shares", session.id, roster.digest, sender, receiver)
