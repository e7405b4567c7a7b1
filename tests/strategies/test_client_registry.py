"""Registration, and which node trains whom; who is drawn is in test_draw.py."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.app.error import Error
from flwr.clientapp import ClientApp

from strategies.engine.registration_phase import RegistrationPhase
from strategies.membership.client_registry import ClientRegistry
from task import timing
from task.errors import ConfigError, NodesError
from task.population import ClientNames
from task.resolve.read import read_config
from task.wire import registration
from task.wire.error_codes import ErrorCode
from tests.support.faults import FaultyGrid
from tests.support.grid import LocalGrid


@pytest.fixture(autouse=True)
def _gone_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "COME_BACK_S", 0.0)


def test_only_the_nodes_that_a_run_names_are_asked() -> None:
    grid = hosts(*({"clients": {name: 1}, "name": name} for name in "abc"))
    registry = ClientRegistry(1.0, 2)
    registry.membership.only = ("a", "c")
    RegistrationPhase(registry, 1).run(grid)
    assert registry.names == ["a", "c"]
    assert {p["name"] for p in registry.participants()} == {"a", "c"}
    assert registry.left_out() == []
    assert len(grid.sent) == 2
    registry = ClientRegistry(0.1, 3)
    registry.membership.only = ("a", "gone", "c")
    with pytest.raises(NodesError, match="at least 3 of the nodes a, gone, c within"):
        RegistrationPhase(registry, 1).run(grid)


def test_names_are_refused_where_nodes_have_none() -> None:
    registry = ClientRegistry(1.0, 1)
    registry.membership.only = ("a",)
    with pytest.raises(ConfigError, match=r'"node-names": expected it where nodes are enrolled by name'):
        RegistrationPhase(registry, 1).run(hosts({"clients": {"a": 1}}))


def hosts(*nodes: dict[str, Any]) -> FaultyGrid:
    """Return a grid of nodes that register as told: clients, pool, share, shape, classes."""
    app = ClientApp()

    @app.query(registration.REGISTER)
    def register(message: Message, context: Context) -> Message:
        told = nodes[int(context.node_config["i"])]
        if "policy" in told:
            reason = 'policy: this node runs its installed app only (apps = "installed")'
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
        if "error" in told:
            raise told["error"]
        if "stock" in told:  # what Flower raises for an app without this query
            raise ValueError(f"No query function registered with name '{registration.REGISTER}'")
        if "refused" in told:
            return Message(registration.refusal_content(told["refused"]), reply_to=message)
        if "content" in told:
            return Message(told["content"](), reply_to=message)
        clients = told["clients"]
        answer = registration.Registration(
            ClientNames(told["numbered"]) if "numbered" in told else tuple(clients),
            np.array(list(clients.values())),
            told.get("pool", f"pool-{context.node_config['i']}"),
            told.get("share", (0, 1)),
            shape=told.get("shape", (4,)),
            classes=told.get("classes", 3),
        )
        return Message(registration.registration_content(answer), reply_to=message)

    return FaultyGrid(app, [{"i": i} for i in range(len(nodes))], names=[n.get("name", "") for n in nodes])


def owner(client: str, *, disk: str = "disk", **more: Any) -> dict[str, Any]:
    """Return a node that brings the data of one client."""
    return {"clients": {client: 10}, "pool": f"{disk}/{client}", **more}


def called(grid: LocalGrid, *, min_nodes: int = 1, timeout_s: float = 0.3) -> ClientRegistry:
    registry = ClientRegistry(timeout_s, min_nodes)
    RegistrationPhase(registry, 0).run(grid)
    return registry


def by_index(grid: LocalGrid, plan: dict[int, list[str]]) -> dict[int, list[str]]:
    return {grid.index[node]: clients for node, clients in plan.items()}


# ---------------------------------------------------------------------------------- registration


def test_the_roll_lists_clients_by_name_with_their_counts() -> None:
    registry = called(hosts({"clients": {"ward-3": 30, "ward-1": 10}}, {"clients": {"ward-2": 20}}))
    assert registry.names == ["ward-1", "ward-2", "ward-3"]
    assert registry.num_examples(registry.names) == {"ward-1": 10, "ward-2": 20, "ward-3": 30}


def test_only_new_nodes_are_called() -> None:
    grid = hosts({"clients": {"a": 1}}, {"clients": {"b": 1}})
    registry = called(grid)
    for t in range(3):
        RegistrationPhase(registry, t).run(grid)
    assert len(grid.sent) == 2


def test_a_node_that_leaves_takes_its_clients_along_and_one_that_joins_brings_its_own() -> None:
    grid = hosts({"clients": {"a": 1}}, {"clients": {"b": 1}}, {"clients": {"c": 1}})
    (last, context) = next((n, c) for n, c in grid.contexts.items() if c.node_config["i"] == 2)
    del grid.contexts[last]
    registry = called(grid)
    assert registry.names == ["a", "b"]
    first = next(n for n, c in grid.contexts.items() if c.node_config["i"] == 0)
    grid.contexts[last] = context
    del grid.contexts[first]
    RegistrationPhase(registry, 2).run(grid)
    assert registry.names == ["b", "c"]
    assert by_index(grid, registry.assign(["b", "c"], {"b": 1, "c": 1})) == {1: ["b"], 2: ["c"]}


def test_of_a_pool_one_node_may_leave_and_the_other_takes_over() -> None:
    grid = hosts({"clients": {"a": 1, "b": 1}, "pool": "disk"}, {"clients": {"a": 1, "b": 1}, "pool": "disk"})
    registry = called(grid)
    assert len(registry.assign(["a", "b"], {"a": 1, "b": 1})) == 2
    gone = next(n for n, c in grid.contexts.items() if c.node_config["i"] == 0)
    del grid.contexts[gone]
    RegistrationPhase(registry, 1).run(grid)
    assert by_index(grid, registry.assign(["a", "b"], {"a": 1, "b": 1})) == {1: ["a", "b"]}


def test_min_nodes_is_asked_for_before_the_first_round_only() -> None:
    """A node that dies later must not end the run; `min-nodes` says "nodes ... before round 1"."""
    grid = hosts({"clients": {"a": 1}}, {"clients": {"b": 1}})
    registry = called(grid, min_nodes=2, timeout_s=0.1)
    del grid.contexts[next(iter(grid.contexts))]
    RegistrationPhase(registry, 2).run(grid)
    assert len(registry.names) == 1


def test_a_node_that_left_a_moment_ago_is_there_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "COME_BACK_S", 60.0)
    grid = hosts(owner("ward-1"), owner("ward-2"))
    registry = called(grid)
    grid.leave(0)
    RegistrationPhase(registry, 1).run(grid)
    assert registry.names == ["ward-1", "ward-2"]
    monkeypatch.setattr(timing, "COME_BACK_S", 0.0)
    RegistrationPhase(registry, 2).run(grid)
    assert registry.names == ["ward-2"]
    grid.back(0)
    RegistrationPhase(registry, 3).run(grid)
    assert registry.names == ["ward-1", "ward-2"]


def test_it_is_not_while_a_node_of_its_pool_can_do_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "COME_BACK_S", 30.0)
    shared = {"clients": {"a": 1, "b": 1}, "pool": "disk"}
    grid = hosts(shared, shared)
    registry = called(grid)
    assert len(registry.participants()) == 2
    grid.leave(0)
    RegistrationPhase(registry, 1).run(grid)
    assert [p["node"] for p in registry.participants()] == [str(grid.node(1))]


def shown(registry: ClientRegistry, grid: FaultyGrid) -> list[tuple[int, int]]:
    """Return clients and examples of each node as ``nodes.json`` has them."""
    by_node = {p["node"]: (p["clients"], p["examples"]) for p in registry.participants()}
    return [by_node[str(grid.node(i))] for i in range(len(by_node))]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ([{"share": (0, 3)}, {"share": (1, 3)}, {"share": (2, 3)}], [(2, 5), (2, 7), (1, 3)]),
        ([{}, {}], [(5, 15), (0, 0)]),  # two disks without shares: the first trains all
        ([{"pool": "disk"}, {"pool": "disk"}], [(3, 9), (2, 6)]),
        ([{"share": (1, 3)}], [(5, 15)]),  # whose share it is is not there
    ],
    ids=["shares", "no shares", "one disk", "one share alone"],
)
def test_a_node_is_shown_with_the_clients_that_it_trains(
    more: list[dict[str, Any]], expected: list[tuple[int, int]]
) -> None:
    clients = {f"c{i}": i + 1 for i in range(5)}
    grid = hosts(*({"clients": clients} | node for node in more))
    registry = called(grid)
    assert sorted(shown(registry, grid)) == sorted(expected)  # nodes' ids are random
    plan = by_index(grid, registry.assign(list(clients), dict.fromkeys(clients, 1.0)))
    assert sorted(map(len, plan.values())) == sorted(n for n, _ in expected if n)


def deaf_to(grid: FaultyGrid, i: int, times: int) -> None:
    """Lose the answers of the i-th node to its first questions."""
    push, lost = grid.push_messages, [0]

    def pushed(messages: Any) -> list[str]:
        ids = list(push(messages))
        for m in grid.sent:
            mine = grid.index[m.metadata.dst_node_id] == i
            if mine and lost[0] < times and grid.replies.pop(m.metadata.message_id, None) is not None:
                lost[0] += 1
        return ids

    grid.push_messages = pushed  # type: ignore[method-assign]


def test_an_answer_that_is_lost_is_asked_for_again_before_the_first_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the SuperLink is killed during registration."""
    monkeypatch.setattr(timing, "ASK_AGAIN_S", 0.1)
    monkeypatch.setattr(timing, "ONLINE_LOOK_S", 0.02)
    grid = hosts(owner("ward-1"), owner("ward-2"))
    deaf_to(grid, 1, times=2)
    began = time.monotonic()
    assert called(grid, min_nodes=2, timeout_s=20).names == ["ward-1", "ward-2"]
    assert time.monotonic() - began < 5


def test_a_node_that_does_not_answer_is_none_of_those_that_must_be_there() -> None:
    grid = hosts(owner("ward-1"), owner("ward-2"))
    deaf_to(grid, 1, times=99)
    with pytest.raises(NodesError, match=r"got 2, 1 of them registered\. Read the logs of node"):
        called(grid, min_nodes=2)
    assert called(grid, min_nodes=1).names == ["ward-1"]


def test_a_node_that_cannot_register_is_one_client() -> None:
    grid = hosts({"clients": {"a": 1}}, {"stock": True})
    registry = called(grid)
    node = next(n for n, c in grid.contexts.items() if c.node_config["i"] == 1)
    assert registry.names == ["a", f"node-{node}"]


REFUSES = {"refused": "data: labels out of range"}


@pytest.mark.parametrize("fit", [0, 1])
def test_where_most_nodes_cannot_take_part_the_run_ends_before_it_begins(fit: int) -> None:
    grid = hosts(*[{"clients": {"a": 1}}][:fit], REFUSES)
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"^node \d+ cannot take part: data: labels out of range$"):
        called(grid, min_nodes=fit + 1, timeout_s=30)
    assert time.monotonic() - began < 5
    if fit:
        registry = ClientRegistry(0.3, 1)
        RegistrationPhase(registry, 5).run(grid)
        assert registry.names == ["a"]


def test_nodes_that_refuse_for_one_reason_are_one_sentence() -> None:
    with pytest.raises(ConfigError) as caught:
        called(hosts(*[REFUSES] * 8, {"refused": "data: no such file"}))
    assert str(caught.value).count("labels out of range") == 1
    assert "and 3 more cannot take part: data: labels out of range; node" in str(caught.value)


@pytest.mark.parametrize("min_nodes", [1, 2, 3])
@pytest.mark.parametrize(
    "odd",
    [
        REFUSES,
        {"error": RuntimeError("x"), "policy": True},
        {"error": MemoryError("--max-memory: this task needs more than 512M")},
        {"content": lambda: lies(share=[0, 0])},
        owner("ward-3", shape=(5,)),
        owner("ward-3", classes=4),
    ],
    ids=[
        "refuses",
        "another app",
        "runs out of memory",
        "lies",
        "another shape",
        "another number of classes",
    ],
)
def test_one_of_three_nodes_vetoes_no_run(
    odd: dict[str, Any], min_nodes: int, caplog: pytest.LogCaptureFixture
) -> None:
    grid = hosts(owner("ward-1", name="ward-1"), owner("ward-2", name="ward-2"), odd | {"name": "ward-3"})
    began = time.monotonic()
    registry = called(grid, min_nodes=min_nodes, timeout_s=30)
    assert registry.shape_of_data() == ((4,), 3)
    RegistrationPhase(registry, 1, clients=2).run(grid)
    assert registry.names == ["ward-1", "ward-2"]
    assert time.monotonic() - began < 5
    (left,) = registry.left_out()
    assert (left["node"], left["name"]) == (str(grid.node(2)), "ward-3")
    assert f"node ward-3 {left['reason']}" in caplog.text
    assert len(caplog.messages) == 1


def test_a_silent_node_holds_the_first_round_up_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(timing, "SILENT_NODES_S", 1.0)
    grid = hosts(*(owner(f"ward-{i}", name=f"ward-{i}") for i in (1, 2, 3)))
    grid.die(2)
    began = time.monotonic()
    registry = called(grid, min_nodes=2, timeout_s=30)
    assert 1.0 <= time.monotonic() - began < 5
    assert registry.names == ["ward-1", "ward-2"]
    (left,) = registry.left_out()
    assert (left["name"], left["reason"]) == ("ward-3", "has not registered")
    assert "no registration yet from node" in caplog.text
    grid.back(2)
    RegistrationPhase(registry, 1).run(grid)
    assert registry.names == ["ward-1", "ward-2", "ward-3"]
    assert registry.left_out() == []


def test_the_first_round_waits_for_slow_nodes_while_others_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five nodes, one every 0.4 s: more than the grace after the majority, but never so long a silence."""
    monkeypatch.setattr(timing, "SILENT_NODES_S", 0.8)
    grid = hosts(*(owner(f"ward-{i}") for i in range(5)))
    held: dict[str, Message] = {}
    push, pull = grid.push_messages, grid.pull_messages
    began = time.monotonic()

    def pushed(messages: Any) -> list[str]:
        ids = list(push(messages))
        held.update({i: grid.replies.pop(i) for i in ids if i in grid.replies})
        return ids

    def pulled(message_ids: Any) -> Any:
        for i, message_id in enumerate(sorted(held, key=int)):
            if time.monotonic() - began > 0.4 * (i + 1) and message_id in held:
                grid.replies[message_id] = held.pop(message_id)
                break
        return pull(message_ids)

    grid.push_messages, grid.pull_messages = pushed, pulled  # type: ignore[method-assign,assignment]
    assert len(called(grid, min_nodes=1, timeout_s=30).names) == 5


def test_the_shape_that_the_run_began_with_stays_though_its_nodes_leave() -> None:
    grid = hosts(owner("ward-1"), owner("ward-2"), owner("ward-3", shape=(5,)))
    registry = called(grid)
    registry.shape_of_data()
    grid.leave(0)
    grid.leave(1)
    RegistrationPhase(registry, 2).run(grid)
    assert registry.names == []
    grid.back(0)
    RegistrationPhase(registry, 3).run(grid)
    assert registry.names == ["ward-1"]


def test_a_node_without_clients_has_no_say_in_the_shape() -> None:
    empty = {"content": lambda: lies(clients=[], counts=[5], shape=[9])}
    registry = called(hosts(owner("ward-1"), empty, empty))
    assert registry.shape_of_data() == ((4,), 3)


def test_a_refusal_without_a_reason_says_so() -> None:
    with pytest.raises(ConfigError, match="no reason given"):
        registration.read_registration(registration.refusal_content(" \n "))


def test_garbage_for_a_registration_is_no_crash() -> None:
    app = ClientApp()

    @app.query(registration.REGISTER)
    def register(message: Message, context: Context) -> Message:
        return Message(RecordDict(), reply_to=message)

    grid = LocalGrid(app, [{}])
    assert called(grid).names == [f"node-{next(iter(grid.contexts))}"]


# ------------------------------------------------------------------------ claims and assignment


def test_a_client_that_several_pools_claim_is_trained_by_the_node_whose_share_it_is() -> None:
    """Three machines, each with the whole data set and a disk of its own: client i is node i mod 3's."""
    clients = {f"client-{i}": 10 for i in range(7)}
    shares = [(2, 3), (0, 3), (1, 3)]  # not in the order of pools or ids
    grid = hosts(*({"clients": clients, "share": share} for share in shares))
    registry = called(grid)
    assert registry.names == sorted(clients)  # once each
    plan = by_index(grid, registry.assign(registry.names, dict.fromkeys(clients, 1.0)))
    assert plan == {
        1: ["client-0", "client-3", "client-6"], 2: ["client-1", "client-4"], 0: ["client-2", "client-5"],
    }  # fmt: skip


def test_a_client_stays_at_its_node_when_others_join_late() -> None:
    """Its state is there: at another node it would silently start over."""
    clients = {f"client-{i}": 5 for i in range(6)}
    grid = hosts(*({"clients": clients, "share": (i, 3)} for i in range(3)))
    registry = ClientRegistry(1.0, 3)
    registry.follow(read_config({"arrive.share": 0.5, "arrive.round": 2, "num-clients": 6}))
    plans = []
    for server_round in (1, 2):
        registry.at(server_round)
        RegistrationPhase(registry, server_round).run(grid)
        cost = registry.num_examples(registry.names)
        plan = registry.assign(cost, cost)
        plans.append({client: node for node, mine in plan.items() for client in mine})
    assert [len(plan) for plan in plans] == [3, 6]
    assert plans[0].items() <= plans[1].items()


def test_doubly_claimed_clients_cost_no_search_each() -> None:
    """With K clients on every machine, one linear search per client would be K^2: minutes at 100,000."""
    searches = []

    class Clients(tuple[str, ...]):
        def __contains__(self, name: object) -> bool:
            searches.append(name)
            return super().__contains__(name)

    registry = ClientRegistry(1.0, 1)
    names = Clients(f"client-{i:03d}" for i in range(300))
    for i in range(2):
        registry._answers[i] = registration.Registration(names, np.ones(300, np.int64), f"pool-{i}", (i, 2))
    registry._index()
    plan = registry.assign(registry.names, dict.fromkeys(names, 1.0))
    assert [len(clients) for clients in plan.values()] == [150, 150]
    assert len(searches) < 30


def test_a_million_clients_are_not_listed() -> None:
    """Two machines that can each train all of a partition; memory and time go with the cohort."""
    registry = ClientRegistry(1.0, 1)
    counts = np.broadcast_to(np.int64(5), 10**6)
    tracemalloc.start()
    for i in range(2):
        registry._answers[i] = registration.Registration(ClientNames(10**6), counts, f"pool-{i}", (i, 2))
    registry._index()
    cohort = registry.draw(1e-5, np.random.default_rng(1))
    plan = registry.assign(cohort, registry.num_examples(cohort))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(cohort) == 10
    assert all(int(c.removeprefix("client-")) % 2 == node for node, clients in plan.items() for c in clients)
    assert sorted(c for clients in plan.values() for c in clients) == cohort
    assert peak < 1e6


def test_a_partition_and_a_client_of_another_name_are_one_population() -> None:
    registry = ClientRegistry(1.0, 1)
    registry._answers[1] = registration.Registration(ClientNames(3), np.array([1, 2, 3]), "disk")
    registry._answers[2] = registration.Registration(("alone", "client-1"), np.array([8, 9]), "ward", (1, 2))
    registry._answers[3] = registration.Registration((), np.zeros(0, np.int64), "none")
    registry._index()
    assert registry.names == ["alone", "client-0", "client-1", "client-2"]
    assert registry.num_examples(["alone", "client-2"]) == {"alone": 8, "client-2": 3}
    plan = registry.assign(registry.names, dict.fromkeys(registry.names, 1.0))
    # client-1, number 2 of all, is claimed twice; 2 mod 1 = 0, so that it is the first pool's
    assert plan == {2: ["alone"], 1: ["client-0", "client-1", "client-2"]}


def test_of_a_pool_that_claims_all_the_nodes_work_evenly_costliest_first() -> None:
    # d 50 -> the lower id; c 30 -> the other; b 20 -> the other (30 < 50); a 10 -> 50 = 50, the lower id
    clients = {"a": 10, "b": 20, "c": 30, "d": 50}
    grid = hosts(*({"clients": clients, "pool": "disk"} for _ in range(2)))
    plan = called(grid).assign(clients, {c: float(n) for c, n in clients.items()})
    low, high = sorted(grid.contexts)
    assert plan == {low: ["a", "d"], high: ["b", "c"]}


def test_where_no_shape_of_data_is_that_of_most_nodes_all_sides_are_named() -> None:
    grid = hosts({"clients": {"ward-1": 1}}, {"clients": {"ward-2": 1}, "shape": (5,)})
    with pytest.raises(ConfigError, match=r"ward-[12]: shape \[[45]\], 3 classes; ward-[12]: shape"):
        called(grid).shape_of_data()
    same = called(hosts({"clients": {"ward-1": 1}}, {"clients": {"ward-2": 1}}))
    assert same.shape_of_data() == ((4,), 3)


# ------------------------------------------------------------------- claims, come-backs and strangers


def join(grid: FaultyGrid, i: int, told: int, name: str = "") -> int:
    """Let a node join under a new id, as the i-th, that answers as the node of number `told` does."""
    return grid.join(i, {"i": told}, name)


def test_two_that_bring_one_client_at_the_start_are_for_somebody_to_look_at() -> None:
    grid = hosts(owner("ward-1", disk="x"), owner("ward-1", disk="y"), owner("ward-2"))
    with pytest.raises(ConfigError, match=r"node \d+ and node \d+ bring their own data as client 'ward-1'"):
        called(grid)


def test_one_that_comes_later_is_refused_by_name_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    grid = hosts(owner("ward-1", disk="x"), owner("ward-2"), owner("ward-1", disk="y"))
    late = grid.node(2)
    context = grid.contexts.pop(late)
    registry = called(grid)
    grid.contexts[late] = context
    for t in range(1, 4):
        RegistrationPhase(registry, t).run(grid)
    plan = registry.assign(registry.names, dict.fromkeys(registry.names, 1.0))
    assert by_index(grid, plan) == {0: ["ward-1"], 1: ["ward-2"]}
    line = f"node {late} is refused: it says that it is client 'ward-1', which node {grid.node(0)} is"
    assert caplog.text.count(line) == 1
    grid.leave(0)
    RegistrationPhase(registry, 4).run(grid)  # the one that held the name has gone
    plan = registry.assign(registry.names, dict.fromkeys(registry.names, 1.0))
    assert by_index(grid, plan)[2] == ["ward-1"]


def test_somebody_elses_app_on_an_enrolled_node_has_its_name() -> None:
    grid = hosts({"stock": True, "name": "lab-7"})
    assert called(grid).names == ["lab-7"]


def test_a_ghost_gives_way_to_the_node_that_took_its_place(caplog: pytest.LogCaptureFixture) -> None:
    grid = hosts(owner("ward-1"), owner("ward-2"))
    registry = called(grid)
    ghost = grid.node(0)
    grid.die(0)
    new = join(grid, 0, 0)
    RegistrationPhase(registry, 2).run(grid)
    assert ghost in grid.contexts
    assert registry.names == ["ward-1", "ward-2"]
    assert registry.assign(["ward-1"], {"ward-1": 1.0}) == {new: ["ward-1"]}
    assert f"node {new} replaces node {ghost} as client 'ward-1'" in caplog.text


def test_a_renamed_node_is_another_client() -> None:
    grid = hosts(owner("ward-1"), owner("ward-2"), owner("ward-9"))
    grid.contexts.pop(grid.node(2))
    registry = called(grid)
    grid.leave(0)
    join(grid, 0, 2)
    RegistrationPhase(registry, 2).run(grid)
    assert registry.names == ["ward-2", "ward-9"]


def test_a_node_that_is_back_under_its_id_is_asked_again() -> None:
    grid = hosts(owner("ward-1"), owner("ward-2"))
    registry = called(grid)
    asked = len(grid.sent)
    grid.leave(0)
    RegistrationPhase(registry, 1).run(grid)
    assert registry.names == ["ward-2"]
    grid.back(0)
    RegistrationPhase(registry, 2).run(grid)
    assert registry.names == ["ward-1", "ward-2"]
    grid.back(1)  # so quickly that nobody saw it leave
    RegistrationPhase(registry, 3).run(grid)
    assert len(grid.sent) == asked + 2


def test_a_node_whose_partition_differs_is_left_out_by_majority() -> None:
    one = {"clients": {"x": 5}, "numbered": 3, "pool": "a"}
    other = {"clients": {"x": 5}, "numbered": 10**7, "pool": "b"}
    with pytest.raises(ConfigError, match=r"got node \d+: 3; node \d+: 10000000. Their data sets or"):
        called(hosts(one, other))
    grid = hosts(one, one, other)
    tracemalloc.start()
    registry = called(grid)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(registry.names) == 3
    assert peak < 5e6
    assert "has 10000000 clients in the partition; others have 3" in registry.left_out()[0]["reason"]
    grid.leave(0)
    grid.leave(1)
    RegistrationPhase(registry, 2).run(grid)
    assert len(registry.names) == 0  # the number that the run began with stays


def test_a_node_that_is_silent_costs_the_round_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "NEW_NODE_S", 1.0)
    grid = hosts(owner("ward-1"), owner("ward-2"))
    registry = ClientRegistry(30.0, 1)
    RegistrationPhase(registry, 1).run(grid)
    join(grid, 2, 1)
    grid.die(2)
    began = time.monotonic()
    for t in range(2, 12):
        RegistrationPhase(registry, t).run(grid)
    assert 1.0 < time.monotonic() - began < 4  # once, and not in each of ten rounds
    assert registry.names == ["ward-1", "ward-2"]


def lies(**changes: Any) -> RecordDict:
    """Return a registration with some of its parts replaced."""
    whole = registration.registration_content(
        registration.Registration(("eve",), np.array([5]), "disk/eve", shape=(4,), classes=3)
    )
    counts = changes.pop("counts", [5])
    whole["roll_call"] = ConfigRecord(
        {k: v for k, v in {**whole["roll_call"], **changes}.items() if v is not None}
    )
    whole["metrics"] = MetricRecord({"num-examples": counts})
    return whole


LIES: dict[str, dict[str, Any]] = {
    "too many clients": {"clients": 10**15},
    "no client": {"clients": 0},
    "fewer than none": {"clients": -1},
    "a truth": {"clients": True},
    "a fraction": {"clients": 1.5},
    "no list": {"clients": "eve"},
    "twice": {"clients": ["eve", "eve"], "counts": [5]},
    "bytes": {"clients": [b"eve"]},
    "an empty name": {"clients": [""]},
    "a name that does not print": {"clients": ["eve\x1b[2J"]},
    "a name without end": {"clients": ["e" * 10**5]},
    "no counts": {"counts": []},
    "a negative count": {"counts": [-5]},
    "a huge count": {"counts": [2**62]},
    "a count that is none": {"counts": [float("nan")]},
    "a share of nothing": {"share": [0, 0]},
    "a negative share": {"share": [-1, 2]},
    "a share beyond": {"share": [2, 2]},
    "half a share": {"share": [1]},
    "no share": {"share": None},
    "a shape of many": {"shape": [1] * 1000},
    "a negative shape": {"shape": [-4]},
    "a shape of parts": {"shape": [0.5]},
    "classes that are none": {"classes": -1},
    "no classes": {"classes": None},
}


@pytest.mark.parametrize("kind", sorted(LIES))
def test_a_registration_that_lies_leaves_its_node_out(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    grid = hosts(owner("ward-1"), {"content": lambda: lies(**LIES[kind])})
    registry = called(grid)
    assert registry.names == ["ward-1"]
    assert f"node {grid.node(1)} cannot take part" in caplog.text
    assert all(line.isprintable() for line in caplog.messages)
