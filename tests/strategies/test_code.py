"""Nodes whose copy of a user's code differs from the run's are left out, by name."""

import numpy as np

from strategies.membership.client_identity import Claim, OnlineNode, admit
from task.population import ClientNames
from task.wire.registration import Registration, read_registration, registration_content

CODE = {"net": "ab" * 32}


def _claim(node: int, code: dict[str, str]) -> Claim:
    registered = Registration(ClientNames(4), np.full(4, 9), "pool", code=code)
    return Claim(OnlineNode(node, f"ward-{node}"), registered, node)


def test_a_node_with_other_code_or_none_takes_no_part_and_is_told_why() -> None:
    done = admit([_claim(1, CODE), _claim(2, {"net": "cd" * 32}), _claim(3, {})], {}, code=CODE)
    assert done.admitted == {1}
    assert done.deviating == {2, 3}  # they count where most nodes must agree
    assert 'other code as "net": expected SHA-256 abababababab' in done.refused[2]
    assert "got cdcdcdcdcdcd..." in done.refused[2]
    assert "got none" in done.refused[3]


def test_a_run_without_code_of_its_user_asks_for_none() -> None:
    assert admit([_claim(1, {})], {}, code={}).admitted == {1}


def test_the_hashes_travel_with_the_registration() -> None:
    sent = Registration(ClientNames(4), np.full(4, 9), "pool", code={**CODE, "data": ""})
    assert read_registration(registration_content(sent)).code == sent.code
    old = registration_content(sent)
    del old["roll_call"]["code"]  # a node of an earlier version
    assert read_registration(old).code == {}
