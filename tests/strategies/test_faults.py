"""Nodes that die, come back, linger or never answer: the round neither waits for ever nor loses the work."""

from __future__ import annotations

import logging
import re
import threading
import time
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from strategies import FedAvg
from strategies.engine.journal import Journal
from strategies.transport import pull
from task import timing
from task.errors import AbsentError, NodesError
from task.wire import messages as wire
from task.wire import registration
from task.wire.error_codes import ErrorCode
from tests.support.apps import adds, named_app
from tests.support.faults import FaultyGrid
from tests.support.federation import Keep

WARDS = {"ward-1": 10, "ward-2": 20, "ward-3": 30}
AMOUNTS = {"ward-1": 0.5, "ward-2": -0.25, "ward-3": 1.0}
CONFIGS: list[dict[str, Any]] = [{"client-name": ward} for ward in WARDS]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "ONLINE_LOOK_S", 0.02)
    monkeypatch.setattr(timing, "COME_BACK_S", 0.5)
    monkeypatch.setattr(timing, "NEW_NODE_S", 1.0)


def app_of(pooled: bool = False) -> ClientApp:
    """Return an app whose node brings the data of one ward, or hosts all of them as one of a pool."""
    trains = named_app(lambda context: WARDS, adds(AMOUNTS, WARDS))
    app = ClientApp()

    @app.query(registration.REGISTER)
    def register(message: Message, context: Context) -> Message:
        names = tuple(WARDS) if pooled else (str(context.node_config["client-name"]),)
        disk = str(context.node_config.get("disk", "disk"))
        pool = disk if pooled else f"{disk}/{names[0]}"
        answer = registration.Registration(names, np.array([WARDS.get(n, 1) for n in names]), pool)
        return Message(registration.registration_content(answer), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return trains(message, context)

    return app


def wards(*, pooled: bool = False, **more: Any) -> FaultyGrid:
    return FaultyGrid(app_of(pooled), CONFIGS, **more)


class Strict(Keep):
    """As a journal is."""

    nothing_trained = Journal.nothing_trained


def run(grid: FaultyGrid, rounds: int = 2, timeout: float = 20.0, **knobs: Any) -> Keep:
    keep = Keep()
    initial = wire.pack_arrays({"w": np.array([0.0, 1.0], np.float32)})
    knobs = {"roll_call_timeout": 5.0, **knobs}
    keep.result = FedAvg(**knobs).start(grid, initial, num_rounds=rounds, timeout=timeout, journal=keep)  # type: ignore[attr-defined]
    return keep


def hashes(keep: Keep) -> list[str]:
    return [row["model_sha256"] for row in keep.rows]


@pytest.fixture(scope="module")
def undisturbed() -> list[str]:
    return hashes(run(wards()))


def trained(grid: FaultyGrid) -> list[tuple[str, list[str]]]:
    """Return by training message its round and clients."""
    sent = [m for m in grid.sent if m.metadata.message_type == "train"]
    return [(m.metadata.group_id, wire.clients_of(m)) for m in sent]


# ------------------------------------------------------------------------------------ sent again


def test_an_order_that_died_with_its_node_goes_out_again_when_the_node_is_back(
    undisturbed: list[str],
) -> None:
    """A node with a key: the SuperLink says that it is offline, and later lets it in under the same id."""
    grid = wards()
    grid.on(0, lambda: (grid.leave(0), grid.later(0.2, lambda: grid.back(0))))
    keep = run(grid)
    assert hashes(keep) == undisturbed
    assert [row["quarantined"] for row in keep.rows] == [[], [], []]
    assert trained(grid).count(("1", ["ward-1"])) == 2


def test_it_goes_out_again_though_the_superlink_never_noticed(undisturbed: list[str]) -> None:
    """The node was admitted again before its heartbeat lapsed: no error ever comes, only the time differs."""
    grid = wards()

    def restart() -> None:
        grid.die(1)
        grid.later(0.1, lambda: grid.back(1))

    grid.on(1, restart)
    began = time.monotonic()
    assert hashes(run(grid)) == undisturbed
    assert time.monotonic() - began < 10


def test_a_node_without_a_key_is_back_under_a_new_id_and_its_ghost_is_not_asked(
    undisturbed: list[str],
) -> None:
    grid = wards()
    grid.on(2, lambda: (grid.die(2), grid.later(0.1, lambda: grid.join(2))))
    ghost = grid.node(2)
    keep = run(grid, rounds=3)
    assert hashes(keep)[:3] == undisturbed
    assert ghost in grid.contexts  # the SuperLink lists it to the end
    orders = [m.metadata.message_id for m in grid.sent if m.metadata.message_type == "train"]
    assert [grid.pulled[order] for order in orders].count(ghost) == 1
    assert [row["population"] for row in keep.rows[1:]] == [3, 3, 3]


def test_another_node_of_the_pool_takes_over(undisturbed: list[str]) -> None:
    grid = wards(pooled=True)
    grid.on(1, lambda: grid.leave(1))
    keep = run(grid)
    assert hashes(keep) == undisturbed
    assert [row["answered"] for row in keep.rows[1:]] == [3, 3]


def test_it_goes_out_once_for_each_time_the_node_is_back(undisturbed: list[str]) -> None:
    grid = wards()
    for nth in (1, 2, 3):
        grid.on(0, lambda: (grid.leave(0), grid.later(0.1, lambda: grid.back(0))), nth=nth)
    assert hashes(run(grid)) == undisturbed
    assert trained(grid).count(("1", ["ward-1"])) == 4


def test_of_two_answers_to_one_order_one_counts(undisturbed: list[str]) -> None:
    """The node was only cut off: it answers the first order after it has answered the second."""
    grid = wards()
    kept: list[str] = []

    def cut() -> None:
        grid.die(0)
        kept.append(str(grid._next))
        grid.later(0.1, lambda: grid.back(0))
        grid.later(0.1, lambda: late(kept[0]))

    def late(message_id: str) -> None:
        request = next(m for m in grid.sent if m.metadata.message_id == message_id)
        grid.replies[message_id] = grid.app(request, grid.contexts[grid.node(0)])

    grid.on(0, cut)
    keep = run(grid)
    assert hashes(keep) == undisturbed
    assert [len(row["quarantined"]) for row in keep.rows] == [0, 0, 0]


def test_a_process_that_died_or_an_answer_that_was_lost_is_tried_once_more(undisturbed: list[str]) -> None:
    for code in (ErrorCode.CLIENT_APP_CRASHED, ErrorCode.MESSAGE_UNAVAILABLE):
        grid = wards()

        def crash(grid: FaultyGrid = grid, code: int = code) -> None:
            node, message_id = grid.node(0), str(grid._next)
            grid.deaf.add(node)
            grid.later(0.05, lambda: grid.deaf.discard(node))
            grid.later(0.05, lambda: grid.replies.update({message_id: grid.lost(message_id, code)}))

        grid.on(0, crash)
        assert hashes(run(grid)) == undisturbed
        grid = wards()
        for nth in (1, 2):
            grid.on(0, lambda grid=grid, crash=crash: crash(grid), nth=nth)
        keep = run(grid)
        (line,) = keep.rows[1]["quarantined"]
        assert line["client"] == "ward-1"


def test_bytes_of_what_goes_out_again_are_counted() -> None:
    plain, grid = run(wards()), wards()
    grid.on(0, lambda: (grid.leave(0), grid.later(0.05, lambda: grid.back(0))))
    again = run(grid)
    one = plain.rows[1]["bytes_down"] / 3
    assert again.rows[1]["bytes_down"] == pytest.approx(plain.rows[1]["bytes_down"] + one, rel=0.05)
    assert again.rows[2]["bytes_down"] == plain.rows[2]["bytes_down"]


# -------------------------------------------------------------------------------- not waited for


def test_a_node_that_stays_away_is_named_and_the_round_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    grid = wards(names=WARDS)
    grid.on(0, lambda: grid.leave(0))
    began = time.monotonic()
    with caplog.at_level(logging.WARNING, "flwr"):
        keep = run(grid)
    assert time.monotonic() - began < 10  # of a round timeout of 20 s
    (line,) = keep.rows[1]["quarantined"]
    assert line["client"] == "ward-1"
    assert re.search(r"node ward-1\b.*went offline", line["got"])
    assert "Node 1 " not in line["got"]
    assert keep.rows[1]["answered"] == 2
    assert (keep.rows[2]["population"], keep.rows[2]["answered"]) == (2, 2)
    assert "node ward-1, so the order for ward-1 stays open: it went offline" in caplog.text


def test_min_replies_makes_a_round_wait_for_its_nodes(undisturbed: list[str]) -> None:
    """Longer than for a round that has enough, and so the run ends in the bytes of an undisturbed one."""
    grid = wards()
    grid.on(0, lambda: (grid.leave(0), grid.later(1.2, lambda: grid.back(0))))
    assert hashes(run(grid, min_replies=3)) == undisturbed


def test_a_straggler_is_named_its_late_answer_is_ignored_and_it_is_back_in_the_next_round() -> None:
    grid = wards()
    first: list[str] = []
    late: list[Message] = []

    def slow() -> None:
        grid.deaf.add(grid.node(1))
        first.append(str(grid._next))

    def arrives() -> None:
        if not late:
            node = grid.node(1)
            grid.deaf.discard(node)
            late.append(next(m for m in grid.sent if m.metadata.message_id == first[0]))
            grid.replies[first[0]] = grid.app(late[0], grid.contexts[node])

    grid.on(1, slow)
    for i in range(3):
        grid.on(i, arrives, nth=2)
    keep = run(grid, timeout=0.6)
    (line,) = keep.rows[1]["quarantined"]
    assert (line["client"], line["expected"]) == ("ward-2", "a reply within 0.6 s")
    assert line["got"] == f"none from node {grid.node(1)}"
    assert late
    assert (keep.rows[2]["answered"], keep.rows[2]["quarantined"]) == (3, [])


def test_what_goes_out_again_lives_as_long_as_the_round_and_no_longer() -> None:
    grid = wards()
    grid.on(0, lambda: (grid.leave(0), grid.later(0.5, lambda: grid.back(0))))
    run(grid, timeout=8.0, min_replies=3)
    first, *_, again = [
        m for m in grid.sent if wire.clients_of(m) == ["ward-1"] and m.metadata.group_id == "1"
    ]
    assert first.metadata.ttl == 8.0
    assert 5.0 < again.metadata.ttl < 7.6


def test_an_error_that_a_node_made_up_is_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that says of itself that it is offline does not make the round wait."""

    def tamper(node: int, reply: Message) -> Message:
        return (
            grid.lost(reply.metadata.reply_to_message_id, ErrorCode.NODE_UNAVAILABLE) if node == 0 else reply
        )

    grid = wards(tamper=tamper)
    monkeypatch.setattr(timing, "COME_BACK_S", 30.0)
    began = time.monotonic()
    keep = run(grid)
    assert time.monotonic() - began < 10
    assert [q["client"] for q in keep.rows[1]["quarantined"]] == ["ward-1"]


# ------------------------------------------------------------------------------- too few are left


def test_no_node_at_all_ends_the_run_with_a_clear_error_and_keeps_what_is_written() -> None:
    grid = wards()
    for i in range(3):
        grid.on(i, lambda i=i: grid.leave(i), nth=2)  # type: ignore[misc]
    keep = Keep()
    began = time.monotonic()
    with pytest.raises(NodesError, match=r"expected .*within 0.4 s.*\n?.*got (0|none).*"):
        FedAvg(roll_call_timeout=0.4).start(
            grid, wire.pack_arrays({"w": np.zeros(2, np.float32)}), 5, timeout=60.0, journal=keep
        )
    assert time.monotonic() - began < 15
    assert [row["round"] for row in keep.rows] == [0, 1]


def test_a_round_waits_for_the_clients_that_min_replies_asks_for(
    undisturbed: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "NEW_NODE_S", 0.1)
    grid = wards()

    class Leaves(Keep):
        def round_done(self, row: Any, clients: Any, snapshot: Any, clock: Any) -> None:
            super().round_done(row, clients, snapshot, clock)
            if row["round"] == 1:
                grid.leave(0)
                grid.later(0.6, lambda: grid.back(0))

    keep = Leaves()
    initial = wire.pack_arrays({"w": np.array([0.0, 1.0], np.float32)})
    with caplog.at_level(logging.WARNING, "flwr"):
        FedAvg(min_replies=3, roll_call_timeout=5.0).start(grid, initial, 2, timeout=20.0, journal=keep)
    assert hashes(keep) == undisturbed
    if "waits" in caplog.text:  # the node left between two rounds, or in one
        assert "with 2 clients, of 3 or more" in caplog.text


def test_a_round_that_lacks_a_needed_node_is_done_again_when_it_is_back(undisturbed: list[str]) -> None:
    grid = wards(names=WARDS)
    grid.on(0, lambda: grid.leave(0), nth=2)
    keep = Keep()
    initial = wire.pack_arrays({"w": np.array([0.0, 1.0], np.float32)})
    why = r"round 2: expected the nodes of ward-1 back within 0.6 s.*ward-1.*: it went offline.*again"
    with pytest.raises(AbsentError, match=why):
        FedAvg(min_replies=3, roll_call_timeout=0.6).start(grid, initial, 2, timeout=20.0, journal=keep)
    assert [row["round"] for row in keep.rows] == [0, 1]
    rest = Keep(restore=keep.snapshots[-1])
    FedAvg(min_replies=3, roll_call_timeout=0.6).start(wards(), initial, 2, timeout=20.0, journal=rest)
    assert hashes(keep) + hashes(rest) == undisturbed


def test_too_few_clients_for_too_long_end_the_run() -> None:
    grid = wards()
    grid.contexts.pop(grid.node(2))
    with pytest.raises(
        NodesError,
        match=r"round 1: expected at least 3 clients online within 0.3 s.*got 2 on 2 nodes: ward-1, ward-2",
    ):
        run(grid, min_replies=3, roll_call_timeout=0.3)


def test_a_run_in_which_no_round_trained_is_an_error_and_its_last_round_is_done_again() -> None:
    grid = wards(tamper=lambda node, reply: None)
    keep = Strict()
    initial = wire.pack_arrays({"w": np.zeros(2, np.float32)})
    with pytest.raises(NodesError, match=r"rounds 1 to 3: expected 1 or more usable replies"):
        FedAvg().start(grid, initial, 3, timeout=0.1, journal=keep)
    assert [row["round"] for row in keep.rows] == [0, 1, 2]
    assert [row["skipped"] for row in keep.rows[1:]] == [True, True]
    rest = Strict(restore=keep.snapshots[-1])
    FedAvg().start(wards(), initial, 3, timeout=5.0, journal=rest)
    assert [(row["round"], row["answered"]) for row in rest.rows] == [(3, 3)]


def test_a_resumed_run_that_had_trained_may_end_with_a_round_that_was_skipped() -> None:
    first = run(wards())

    class Trained(Strict):
        def trained(self) -> bool:
            return True

    rest = Trained(restore=first.snapshots[-1])
    initial = wire.pack_arrays({"w": np.zeros(2, np.float32)})
    FedAvg().start(wards(tamper=lambda n, r: None), initial, 3, timeout=0.1, journal=rest)
    assert [row["skipped"] for row in rest.rows] == [True]
    assert not Journal().trained()


# ---------------------------------------------------------------- fetching a reply that is broken


@pytest.mark.parametrize(
    "error", [ValueError("odd bytes"), RecursionError("deep"), MemoryError(), KeyError("x")]
)
def test_a_reply_that_cannot_be_fetched_is_its_nodes_own(error: Exception) -> None:
    grid = wards()

    def broken() -> None:
        raise error

    trains = grid.node(1)

    def only_training() -> None:
        if any(m.metadata.message_type == "train" for m in grid.sent):
            broken()

    grid.on_pull[trains] = only_training
    keep = run(grid)
    assert [[q["client"] for q in row["quarantined"]] for row in keep.rows] == [[], ["ward-2"], ["ward-2"]]
    assert str(trains) in keep.rows[1]["quarantined"][0]["got"]


def test_a_reply_whose_upload_does_not_end_holds_up_nobody() -> None:
    grid = wards()
    released = threading.Event()
    stuck = []

    def endless() -> None:
        if any(m.metadata.message_type == "train" for m in grid.sent) and not stuck:
            stuck.append(1)
            released.wait(30)

    grid.on_pull[grid.node(1)] = endless
    keep = run(grid, rounds=1, timeout=4.0)
    released.set()
    assert stuck
    assert keep.rows[1]["answered"] == 2
    (line,) = keep.rows[1]["quarantined"]
    assert (line["client"], line["expected"]) == ("ward-2", "a reply within 4 s")


def test_after_a_superlink_was_away_it_is_asked_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that waited for it says nothing of how busy it is: the next one comes without a long rest."""
    monkeypatch.setattr(timing, "FETCH_S", 0.2)
    grid = wards()
    (sent,) = grid.push_messages([wire.message(RecordDict(), grid.node(0), "query.roll_call", 1, 60.0)])
    take, looks = grid.pull_messages, list[float]()

    def pulled(ids: Any) -> Any:
        looks.append(time.monotonic())
        if len(looks) == 1:
            time.sleep(2.0)
            return []
        return take(ids)

    grid.pull_messages = pulled  # type: ignore[method-assign]
    fetch = pull.OneByOne(grid, time.monotonic() + 60.0, 1 << 20, pull.FetchedReplies())
    fetch.add([sent])
    assert [message_id for message_id, _ in fetch.get(60.0)] == [sent]
    assert looks[1] - looks[0] < 4.0  # a rest of four times the look would end after 10 s
    fetch.close()


class Status(Exception):  # noqa: N818
    """As httpx has it."""

    def __init__(self, code: int) -> None:
        super().__init__(f"HTTP {code}")
        self.response = type("Response", (), {"status_code": code})


def test_a_superlink_in_trouble_for_a_while_costs_no_reply(undisturbed: list[str]) -> None:
    grid = wards()
    until = [0.0]

    def down() -> None:
        if time.monotonic() < until[0]:
            raise Status(500)

    grid.down = down
    grid.on(0, lambda: until.__setitem__(0, time.monotonic() + 0.5))
    assert hashes(run(grid)) == undisturbed


def test_one_that_stays_in_trouble_ends_the_run() -> None:
    grid = wards()
    grid.down = lambda: (_ for _ in ()).throw(Status(500))
    with pytest.raises(Status):
        run(grid, roll_call_timeout=0.3)


@pytest.mark.parametrize("how", ["answers HTTP 500", "answers late"])
def test_after_a_superlink_in_trouble_a_round_waits_for_whoever_it_could_not_hear(
    how: str, undisturbed: list[str]
) -> None:
    """It holds a node for offline that it did not hear, until the node calls again; no order is open then."""
    grid = wards()
    until: list[float] = []

    def down() -> None:
        if not until and len(trained(grid)) == 3 and not grid.replies:  # round 1 has all that it needs
            until.append(time.monotonic() + 0.3)
            grid.leave(2)
            grid.later(0.6, lambda: grid.back(2))
        if until and (left := until[0] - time.monotonic()) > 0:
            if how == "answers HTTP 500":
                raise Status(500)
            time.sleep(left)

    grid.down = down
    assert hashes(run(grid)) == undisturbed
    assert until


@pytest.mark.parametrize(("how", "noticed"), [("answers HTTP 500", 1.5), ("answers late", 1.0)])
def test_an_outage_is_not_counted_as_a_lost_nodes_absence(
    how: str, noticed: float, undisturbed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its order is open while the SuperLink is away for longer than a round waits for a node."""
    monkeypatch.setattr(timing, "TROUBLE_S", 0.1)
    grid = wards()
    until: list[float] = []

    answer = grid.lost

    def lost(message_id: str, code: int) -> Message:
        """Go down for a second as soon as it has said that the node is offline."""
        if not until:
            until.append(time.monotonic() + 1.0)
            grid.later(noticed + 0.2, lambda: grid.back(2))
        return answer(message_id, code)

    def down() -> None:
        if until and (left := until[0] - time.monotonic()) > 0:
            if how == "answers HTTP 500":
                raise Status(500)
            time.sleep(left)

    grid.lost = lost  # type: ignore[method-assign]
    grid.on(2, lambda: grid.leave(2))
    grid.down = down
    assert hashes(run(grid)) == undisturbed
    assert until


def leaves_after_round_1(grid: FaultyGrid) -> None:
    """Let the third node leave when round 1 has all that it needs."""

    def down() -> None:
        if len(trained(grid)) == 3 and not grid.replies and grid.node(2) in grid.contexts:
            grid.leave(2)

    grid.down = down


def test_a_node_that_was_there_a_moment_ago_is_of_the_round_if_it_is_back_soon(
    undisturbed: list[str],
) -> None:
    grid = wards()
    leaves_after_round_1(grid)
    grid.on(0, lambda: grid.later(0.3, lambda: grid.back(2)), nth=2)
    keep = run(grid)
    assert hashes(keep) == undisturbed
    assert [order for order in trained(grid)[3:] if order[1] == ["ward-3"]] == [("2", ["ward-3"])] * 2


def test_one_that_does_not_come_back_costs_the_wait_once() -> None:
    grid = wards()
    leaves_after_round_1(grid)
    began = time.monotonic()
    keep = run(grid, rounds=20)
    assert time.monotonic() - began < 10
    assert [row["population"] for row in keep.rows[1:]] == [3, 3, *[2] * 18]
    assert [len(row["quarantined"]) for row in keep.rows[1:]] == [0, 1, *[0] * 18]
