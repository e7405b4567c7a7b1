"""Updates in the order in which they really arrive, and the same bytes again from what is written down."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message

from strategies.channels.arrival_log import ArrivalLog
from strategies.engine.exchange import Exchange, Terms
from strategies.engine.journal import Snapshot
from strategies.membership.membership import Membership
from strategies.transport.pull import FetchedReplies
from task import timing
from task.errors import StateError
from task.numerics.arrays import sha256
from task.wire import messages as wire
from tests.strategies.test_exchange import Slow
from tests.support.federation import Keep, Played, play
from tests.support.grid import LocalGrid
from tests.support.personal import keys_of

ROUNDS = 6


class Written(Keep):
    """Keeps the order of arrival, and follows what is there; `closed` runs on nothing else."""

    def __init__(
        self, events: Iterable[dict[str, Any]] = (), restore: Snapshot | None = None, closed: bool = False
    ) -> None:
        super().__init__(restore)
        self.events = list(events)
        self.logs.append(ArrivalLog(self.events, self.events.append, closed=closed))  # type: ignore[arg-type]


class Crossing(LocalGrid):
    """Hands replies to training out one by one, in an order of its own."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        training = [i for i in self.replies if self._trains(i)]
        wanted = [i for i in message_ids if i in self.replies]
        if not training or not set(wanted) & set(training):
            return super().pull_messages(wanted)
        chosen = self.random.choice(sorted(training))
        return super().pull_messages([chosen]) if chosen in wanted else []

    def _trains(self, message_id: str) -> bool:
        sent = next(m for m in self.sent if m.metadata.message_id == message_id)
        return sent.metadata.message_type == "train"


def keys(folder: Path, name: str, **more: Any) -> dict[str, Any]:
    settings = {"fraction_evaluate": 0.0, "order_of_arrival": "real", "num_server_rounds": ROUNDS}
    return keys_of(folder, name, **settings | more)


def hashes(played: Played) -> list[str]:
    return [sha256(played.arrays(i)) for i in range(len(played.keep.snapshots))]


# --------------------------------------------------------------------------------------- in runs


@pytest.mark.parametrize("name", ["fedbuff", "fedasync"])
def test_a_run_in_any_order_is_done_again_from_its_order_to_the_same_bytes(name: str, tmp_path: Path) -> None:
    config, seen = keys(tmp_path, name), set[str]()
    for seed in range(3):
        journal = Written()
        run = play(config, journal=journal, seed=seed, grid_type=Crossing)
        again = play(config, journal=Written(journal.events, closed=True), seed=seed + 7, nodes=3)
        assert hashes(again) == hashes(run)
        assert [row["metrics"] for row in again.rows] == [row["metrics"] for row in run.rows]
        assert [row["selected"] for row in again.rows] == [row["selected"] for row in run.rows]
        seen.add(hashes(run)[-1])
        steps = [e for e in journal.events if e["event"] == "step"]
        assert [s["updates"] for s in steps] == [row["selected"] for row in run.rows[1:]]
    assert len(seen) > 1  # the orders were not the same


def test_a_start_trains_in_its_own_round_and_no_version_is_held_that_nobody_is_at_work_on(
    tmp_path: Path,
) -> None:
    journal = Written()
    run = play(keys(tmp_path, "fedasync"), journal=journal, seed=2, grid_type=Crossing)
    begun = [(e["client"], e["round"]) for e in journal.events if e["event"] == "start"]
    asked = [
        (c, int(m.content["config"]["server-round"]))  # type: ignore[index]
        for m in run.messages()
        for c in wire.clients_of(m)
    ]
    assert sorted(asked) == sorted(begun)
    for taken in run.keep.snapshots[1:]:
        flight = {int(a[1]) for k, a in taken.arrays.items() if k.startswith("flight/")}
        held = {int(k.split("/")[1]) for k in taken.arrays if k.startswith("versions/")}
        assert held == flight - {taken.numbers["version"]}
    arrivals = [e for e in journal.events if e["event"] == "arrival"]
    assert max(e["staleness"] for e in arrivals) > 0
    for e in arrivals:
        assert e["weight"] == pytest.approx(0.6 * (1 + e["staleness"]) ** -0.5)


@pytest.mark.parametrize(
    ("event", "entry", "value"),
    [
        ("start", "version", 9),
        ("start", "lr", 9.0),
        ("arrival", "version", 9),
        ("arrival", "staleness", 9),
        ("arrival", "weight", 9.0),
        ("step", "updates", []),
        ("step", "updates", ["client-9"]),
    ],
)
def test_an_order_that_was_edited_is_refused_when_it_is_done_again(
    event: str, entry: str, value: Any, tmp_path: Path
) -> None:
    config, journal = keys(tmp_path, "fedasync", num_server_rounds=2), Written()
    play(config, journal=journal, seed=1, grid_type=Crossing)
    at = max(i for i, e in enumerate(journal.events) if e["event"] == event)
    edited = [{**e, entry: value} if i == at else e for i, e in enumerate(journal.events)]
    with pytest.raises(StateError, match="the order of arrival has"):
        play(config, journal=Written(edited, closed=True))


@pytest.mark.parametrize("left", [3, *(pytest.param(n, marks=pytest.mark.full) for n in (0, 2, 4, 6, 8, 10))])
def test_a_server_killed_after_any_event_goes_on_from_it(left: int, tmp_path: Path) -> None:
    """Of round 3 so many events were on the disk; no update that is written down is lost or taken twice."""
    config, journal = keys(tmp_path, "fedbuff", fedbuff__buffer=2), Written()
    run = play(config, journal=journal, seed=4, grid_type=Crossing)
    before = [e for e in journal.events if e["round"] <= 2]
    kept = before + [e for e in journal.events if e["round"] == 3][:left]
    resumed = Written(kept, restore=run.keep.snapshots[2])
    on = play(config, journal=resumed, seed=left + 20, nodes=3, grid_type=Crossing)
    assert resumed.events[: len(kept)] == kept
    taken = [(e["client"], e["began"]) for e in resumed.events if e["event"] == "arrival"]
    assert len(taken) == len(set(taken))
    again = play(config, journal=Written(resumed.events, closed=True))
    assert hashes(again)[4:] == hashes(on)[1:]
    if left >= len([e for e in journal.events if e["round"] == 3]):
        assert hashes(on)[0] == hashes(run)[3]


def test_what_does_not_come_is_given_up_and_what_is_refused_is_left_out_here_and_again(
    tmp_path: Path,
) -> None:
    def tamper(node: int, reply: Message) -> Message | None:
        if reply.has_error() or reply.metadata.message_type != "train":
            return reply
        losses.append(1)
        if len(losses) == 2:
            record = cast(ArrayRecord, reply.content["arrays"])
            record.pop(next(iter(record)))
        return reply

    losses: list[int] = []
    config, journal = keys(tmp_path, "fedbuff", fedbuff__buffer=2), Written()

    class Failing(Crossing):
        def _deliver(self, message: Message) -> Message | None:
            if message.metadata.message_type == "train" and wire.clients_of(message) == ["dora"]:
                message.content["config"]["clients"] = ["nobody"]  # type: ignore[index]
                message.content["config"]["epochs"] = [0, 0]  # type: ignore[index]
            return super()._deliver(message)

    run = play(config, journal=journal, seed=3, grid_type=Failing, tamper=tamper)
    lost = [e for e in journal.events if e["event"] == "lost"]
    refused = [r for e in journal.events if e["event"] == "step" for r in e["refused"]]
    assert {e["client"] for e in lost} == {"dora"}
    assert len(refused) == 1
    again = play(config, journal=Written(journal.events, closed=True))
    assert hashes(again) == hashes(run)
    assert [row["quarantined"] for row in again.rows] == [row["quarantined"] for row in run.rows]
    assert sum(len(row["quarantined"]) for row in run.rows) == len(lost) + len(refused)


def test_with_too_few_events_a_replay_says_so(tmp_path: Path) -> None:
    config, journal = keys(tmp_path, "fedasync"), Written()
    play(config, journal=journal)
    with pytest.raises(StateError, match="expected all events of round 5"):
        play(config, journal=Written([e for e in journal.events if e["round"] < 5], closed=True))


# --------------------------------------------------------------------------------------- the log

START = {"event": "start", "round": 1, "client": "a", "version": 0, "lr": 0.1}
ARRIVAL = {"event": "arrival", "round": 1, "client": "a", "began": 1, "version": 0, "staleness": 0}
ARRIVAL |= {"weight": 0.6}
STEP = {"event": "step", "round": 1, "updates": ["a"], "refused": []}
LOST = {"event": "lost", "round": 1, "client": "a", "began": 1, "why": "gone"}


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([ARRIVAL], "event 1: expected a at work since round 1"),
        ([START, START], "event 2: expected one start of a in a round"),
        ([START, ARRIVAL, ARRIVAL], "event 3: expected a at work"),
        ([START, ARRIVAL, STEP, START | {"client": "b"}], "event 4: expected a round after 1"),
        ([START | {"round": 2}, START], "event 2: expected a round after 1"),
        ([START, ARRIVAL | {"began": "1"}], "'began'"),
        ([START, {"event": "stop", "round": 1}], "one of the events start, arrival, lost, step"),
    ],
)
def test_events_in_a_wrong_order_are_refused(lines: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(StateError, match=says):
        ArrivalLog(lines, where="arrivals.jsonl", closed=True)


def test_an_update_that_cannot_be_had_again_is_lost_though_it_had_arrived() -> None:
    log = ArrivalLog([START, ARRIVAL, STEP, LOST])
    assert (log.lost("a", 1), log.steps(), log.num_lost(1)) == ("gone", 1, 1)
    log.turn_to(1)
    assert [log.follow()["event"] for _ in range(3)] == ["start", "arrival", "step"]
    assert log.ahead() == ""


# --------------------------------------------------------------------------------- the exchanges


def test_a_reply_for_orders_that_last_is_not_lost_while_another_exchange_asks() -> None:
    inbox = FetchedReplies()
    inbox.kept.add("1")
    inbox.put(("1", ValueError("kept")))
    inbox.put(("2", ValueError("late")))
    assert inbox.take(lambda i: i == "3", 0.0) == []
    assert [i for i, _ in inbox.take(lambda i: True, 0.0)] == ["1"]


def test_each_order_that_lasts_has_a_time_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "COME_BACK_S", 60.0)

    class Numbered(Slow):
        count = 0

        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            ids = []
            for message in messages:
                self.count += 1
                message.metadata.__dict__["_message_id"] = str(self.count)
                ids.append(str(self.count))
                if self.count == 2:
                    self.answer(message)
            return ids

    grid = Numbered(0.0)
    exchange = Exchange(grid, (), 5.0, Terms(Membership(60.0), lasting=True))  # type: ignore[arg-type]
    requests = [wire.message(wire.RecordDict(), 1, "train", 1, 60.0) for _ in range(2)]
    exchange.send(requests[:1], 0.4)
    exchange.send(requests[1:], 60.0)
    replies: list[Message] = []
    while len(replies) < 2:
        replies += exchange.wait()
    exchange.close()
    assert [r.metadata.reply_to_message_id for r in replies] == ["2", "1"]
    assert "no reply in time" in replies[1].error.reason
    assert np.isfinite(exchange.deadline)
