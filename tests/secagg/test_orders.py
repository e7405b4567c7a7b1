"""Masks of nodes that were told different sessions: they do not cancel, whatever the server does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from task.errors import SecureAggregationError
from task.secagg import node as steps
from task.secagg.primitives import agree
from task.secagg.protocol import Rules, Session, own_mask, pair_mask
from task.secagg.server import Aggregation
from task.secagg.vector import Vector
from tests.secagg.parties import Party, copy, mask, plain_sum, vector_of

SESSION, RULES = Session("run", 3, "train", "first", "order"), Rules()
UNLIKE: list[dict[str, Any]] = [{"order": "another"}, {"round": 4}, {"run": "another"}, {"attempt": "second"}]


def same(a: Vector, b: Vector) -> bool:
    return bool((a.low == b.low).all() and (a.high == b.high).all()) and a.numbers == b.numbers


def attacked(unlike: dict[str, Any]) -> tuple[dict[str, Party], dict[str, Session], Aggregation, Vector]:
    """Run a round up to the last stage in which n0 and the others were told different sessions.

    Returns:
        The nodes, the order of each, the server, and the sum of what they sent.
    """
    made = {f"n{i}": Party(vector_of(i)) for i in range(3)}
    told = {name: SESSION if name == "n0" else replace(SESSION, **unlike) for name in made}
    server, keys, sealed = Aggregation(SESSION, RULES), {}, {}
    for name, party in made.items():
        party.state, keys[name] = steps.give_keys(party.state, told[name])
    roster = server.take_keys(keys)
    for name, party in made.items():
        party.state, sealed[name] = steps.give_shares(party.state, told[name], RULES, roster)
    senders = server.take_shares(sealed)
    total = Vector.zeros(*made["n0"].vector.form)
    for name, party in made.items():
        sent = mask(party, told[name], RULES, roster, senders)
        server.add(name, copy(sent))
        total.add(sent)
    return made, told, server, total


@pytest.mark.parametrize("unlike", UNLIKE, ids=str)
def test_no_node_helps_to_open_the_sum_of_another_session(unlike: dict[str, Any]) -> None:
    made, told, server, _ = attacked(unlike)
    for name, party in made.items():
        for session in {told[name], SESSION, replace(SESSION, **unlike)}:
            about = session, RULES, server.roster, server.senders, server.alive, server.shares_for(name)
            with pytest.raises(SecureAggregationError):
                steps.unmask(party.state, *about)


@pytest.mark.parametrize("unlike", UNLIKE, ids=str)
def test_the_sum_stays_masked_also_for_a_server_that_knows_each_nodes_own_mask(
    unlike: dict[str, Any],
) -> None:
    """And all that two of the three nodes know, so that their masks with each other are gone, too."""
    made, told, server, total = attacked(unlike)
    for name, party in made.items():
        seed = steps._Keys.of(party.state.secret, told[name]).seed
        total.mask([own_mask(total, told[name], seed, undo=True)])
    assert not same(total, plain_sum([p.vector for p in made.values()]))
    # What is left is n0's masks with the others under its session, and theirs with it under the other one.
    for name in ("n1", "n2"):
        for session, mine, other in ((SESSION, "n0", name), (told[name], name, "n0")):
            secret = steps._Keys.of(made[mine].state.secret, told[mine]).masking
            agreed = agree(secret, server.roster.keys[other].masking)
            total.mask([pair_mask(total, session, server.roster, mine, other, agreed, undo=True)])
    assert same(total, plain_sum([p.vector for p in made.values()]))
