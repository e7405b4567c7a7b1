"""Who may speak for which client: enrolled names, two that claim one, ghosts, and partitions that differ."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from strategies.membership.client_identity import Claim, OnlineNode, admit
from task.population import ClientNames
from task.wire.registration import Registration


def own(
    node: int, client: str, *, disk: str = "disk", name: str = "", sequence: int = 0, since: str = ""
) -> Claim:
    told = Registration((client,), np.array([5]), f"{disk}/{client}")
    return Claim(OnlineNode(node, name, "", since or f"{node:04}"), told, sequence or node)


def shared(node: int, clients: int | tuple[str, ...], *, disk: str = "disk", name: str = "") -> Claim:
    names = ClientNames(clients) if isinstance(clients, int) else clients
    return Claim(OnlineNode(node, name), Registration(names, np.ones(len(names), np.int64), disk), node)


def test_each_with_a_client_of_its_own_takes_part() -> None:
    done = admit([own(1, "a"), own(2, "b", disk="other")], {})
    assert (done.admitted, done.refused, done.ambiguous) == ({1, 2}, {}, "")
    assert done.held == {"a": "disk/a", "b": "other/b"}


def test_under_another_name_than_it_was_enrolled_a_node_is_refused() -> None:
    done = admit([own(1, "ward-1", name="ward-3"), own(2, "ward-2", name="ward-2")], {})
    assert done.admitted == {2}
    assert done.refused[1] == "says that it is client 'ward-1', but is enrolled as 'ward-3'"


def test_who_is_enrolled_has_the_name_whoever_was_first() -> None:
    for held in ({}, {"a": "stranger/a"}):
        done = admit([own(1, "a", disk="stranger"), own(2, "a", disk="mine", name="a")], held)
        assert done.admitted == {2}
        assert "the enrolled name of node a" in done.refused[1]


def test_of_two_that_bring_one_name_who_held_it_keeps_it() -> None:
    claims = [own(1, "a", disk="new"), own(2, "a", disk="old")]
    done = admit(claims, {"a": "old/a"})
    assert (done.admitted, done.ambiguous) == ({2}, "")
    assert done.refused == {1: "says that it is client 'a', which node 2 is"}
    assert admit(claims[:1], {"a": "old/a"}).admitted == {1}  # the other has gone


def test_with_none_who_held_it_the_first_registered_has_it_and_somebody_must_look() -> None:
    claims = [own(1, "a", disk="x", since="2026-02"), own(2, "a", disk="y", since="2026-01")]
    for order in itertools.permutations(claims):
        done = admit(order, {})
        assert done.admitted == {2}
        assert "node 1 and node 2 bring their own data as client 'a'" in done.ambiguous


def test_of_one_pool_who_told_last_takes_the_place() -> None:
    done = admit([own(1, "a", sequence=7), own(9, "a", sequence=3)], {})
    assert (done.admitted, done.refused, done.ambiguous) == ({1}, {}, "")
    assert done.replaced == {9: (1, "a")}


def test_a_pool_of_a_partition_and_several_pools_take_part_together() -> None:
    done = admit([shared(1, 10), shared(2, 10), shared(3, 10, disk="other"), own(4, "mine")], {})
    assert (done.admitted, done.refused) == ({1, 2, 3, 4}, {})


def test_a_node_that_counts_the_partition_otherwise_is_refused() -> None:
    done = admit([shared(1, 10), shared(2, 10), shared(3, 10**7)], {})
    assert done.admitted == {1, 2}
    assert done.refused[3] == "has 10000000 clients in the partition; others have 10"
    assert (done.deviating, done.ambiguous, done.size) == ({3}, "", 10)
    assert admit([shared(3, 10**7)], {}, size=10).admitted == set()


def test_it_is_not_guessed_which_of_two_partitions_is_right() -> None:
    done = admit([shared(1, 10), shared(2, 12)], {})
    assert "got node 1: 10; node 2: 12" in done.ambiguous


def test_nobody_hosts_a_client_whose_data_a_node_brings() -> None:
    done = admit([own(1, "ward-1"), shared(2, ("ward-1", "x"), disk="thief")], {})
    assert done.admitted == {1}
    assert "'ward-1'" in done.refused[2]
    gone = admit([shared(2, ("ward-1", "x"), disk="thief")], done.held)  # not while its node is away either
    assert gone.admitted == set()


@pytest.mark.parametrize("names", [("ward-9",), ("a", "b"), 4])
def test_beside_nodes_that_are_enrolled_with_their_own_data_nobody_hosts_a_partition(names: int) -> None:
    done = admit([own(1, "ward-1", name="ward-1"), shared(2, names, name="ward-2")], {})
    assert done.admitted == {1}
    assert "bring their own data" in done.refused[2]


def test_enrolled_nodes_host_a_partition_where_all_do() -> None:
    done = admit([shared(1, 10, name="lab-1"), shared(2, 10, name="lab-2", disk="other")], {})
    assert (done.admitted, done.refused) == ({1, 2}, {})
