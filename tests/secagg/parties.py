"""Nodes and a server of a secure round in one process, with drop-outs at any stage."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from task.secagg import node as steps
from task.secagg.node import RoundMemory
from task.secagg.protocol import Roster, Rules, Session
from task.secagg.server import Aggregation
from task.secagg.vector import NUMBER_MODULUS, Vector, as_residues, as_words

STAGES = ("keys", "shares", "masked", "unmask")


@dataclass
class Party:
    """One node."""

    vector: Vector
    state: RoundMemory = field(default_factory=RoundMemory)


def vector_of(seed: int, size: int = 37, numbers: int = 2, bits: int = 96) -> Vector:
    """Return a vector of integers of both signs, small ones among those of 96 bits."""
    rng = np.random.default_rng(seed)
    high, low = rng.integers(-(2**40), 2**40, size), rng.integers(0, 2**31, size)
    made = [int(x) % NUMBER_MODULUS for x in rng.integers(-(2**60), 2**60, numbers)]
    return Vector(*(as_words(high, low) if bits == 96 else as_residues(high, bits)), made)


def copy(vector: Vector) -> Vector:
    """Return a copy."""
    return Vector(vector.low.copy(), vector.high.copy(), list(vector.numbers))


def plain_sum(vectors: Sequence[Vector]) -> Vector:
    """Return the sum of vectors that are not masked."""
    made = Vector.zeros(*vectors[0].form)
    for v in vectors:
        made.add(v)
    return made


def run(
    parties: Mapping[str, Party], session: Session, rules: Rules, gone: Mapping[str, Collection[str]]
) -> tuple[Aggregation, Vector, dict[str, Vector]]:
    """Run a round in which the nodes of ``gone[stage]`` do not answer that stage or later ones.

    Returns:
        The server, the sum, and what each node sent.
    """
    server, out = Aggregation(session, rules), set()
    out |= set(gone.get("keys", ()))
    keys = {}
    for name in parties.keys() - out:
        parties[name].state, keys[name] = steps.give_keys(parties[name].state, session)
    roster = server.take_keys(keys)
    out |= set(gone.get("shares", ()))
    sealed = {}
    for name in sorted(roster.keys.keys() - out):
        parties[name].state, sealed[name] = steps.give_shares(parties[name].state, session, rules, roster)
    senders = server.take_shares(sealed)
    out |= set(gone.get("masked", ()))
    sent = {}
    for name in set(senders) - out:
        sent[name] = mask(parties[name], session, rules, roster, senders)
        server.add(name, copy(sent[name]))
    server.check_alive()
    out |= set(gone.get("unmask", ()))
    shares = {}
    for name in set(server.alive) - out:
        party = parties[name]
        about = session, rules, roster, senders, server.alive, server.shares_for(name)
        party.state, shares[name] = steps.unmask(party.state, *about)
    return server, server.take_unmask(shares), sent


def mask(party: Party, session: Session, rules: Rules, roster: Roster, senders: Collection[str]) -> Vector:
    """Return a party's masked vector."""
    made = copy(party.vector)
    party.state = steps.mask(party.state, session, rules, roster, senders, made)
    return made
