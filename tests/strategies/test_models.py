"""Rules whose server holds each client's model: the state that they share, and how their runs behave."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from client_app.solvers import SOLVERS
from client_app.solvers.sgd import Finished, Solver
from strategies.engine.state import AggregatedReplies
from strategies.rules.client_models import ModelsState, known_clients, models_of, take_in
from task import timing
from task.numerics.arrays import Arrays, sha256
from task.numerics.collect import Collect
from tests.support.federation import Played, play, write_owners
from tests.support.joining import joining
from tests.support.kept import kept_by
from tests.support.personal import close, keys_of
from tests.support.rules import w

RULES = ["apple", "ensemble", "fedamp", "fedfomo"]
ACTIVE: dict[str, dict[str, Any]] = {
    "apple": {"apple__dr_lr": 0.05},
    "d-psgd": {},
    "ensemble": {},
    "fedamp": {"fedamp__sigma": 1.0},
    "fedfomo": {"fedfomo__download": 2},
}


def held(played: Played, t: int) -> dict[str, Arrays]:
    """Return the models at the server after a round, by client."""
    taken, found = played.keep.snapshots[t].arrays, dict[str, Arrays]()
    for key in (k.removeprefix("models/") for k in taken if k.startswith("models/")):
        client, _, name = key.rpartition("/")
        found.setdefault(client, {})[name] = taken[f"models/{key}"]
    return found


def replies(models: Mapping[str, Arrays], spool: int | None = None, **more: Any) -> AggregatedReplies:
    """Return a round's replies, stacked."""
    stack = Collect(next(iter(models.values())), spool)
    for client, arrays in models.items():
        stack.add(arrays, 1, client)
    counts = np.ones(len(models), np.int64)
    arrays = {"arrays": stack.result()}
    return AggregatedReplies(
        arrays | more.pop("arrays", {}), tuple(sorted(models)), counts, trainable=("w",), **more
    )


# ------------------------------------------------------------------------------------ the server


@pytest.mark.parametrize("spool", [0, 1 << 30])  # 0: the replies lie in a file
def test_last_models_and_their_mean_by_hand(spool: int) -> None:
    """n: (1 + 4) / 2 = 2.5 is rounded up; ward/7 is not in round 2 and stays."""

    def model(value: float, n: int) -> Arrays:
        return w(value) | {"n": np.array(n, np.int64), "s": np.array(value, np.float32)}

    state = ModelsState(model(9.0, 9))
    assert known_clients(state) == []
    one = take_in(state, replies({"ward/7": model(3.0, 4), "b": model(1.0, 1)}, spool))
    assert known_clients(one) == ["b", "ward/7"]
    assert {k: a.tolist() for k, a in one.arrays.items()} == {"w": [2.0], "n": 3, "s": 2.0}
    two = take_in(one, replies({"b": model(5.0, 4), "a": model(1.0, 1)}, spool))
    assert {c: {k: v.tolist() for k, v in m.items()} for c, m in models_of(two, ["ward/7", "b"]).items()} == {
        "b": {"w": [5.0], "n": 4, "s": 5.0}, "ward/7": {"w": [3.0], "n": 4, "s": 3.0}
    }  # fmt: skip
    assert {k: a.tolist() for k, a in two.arrays.items()} == {"w": [3.0], "n": 3, "s": 3.0}
    assert [a.dtype for a in two.arrays.values()] == [np.float32, np.int64, np.float32]
    assert one.models["b/w"].tolist() == [1.0]  # states are never written to
    assert not np.shares_memory(two.models["b/w"], one.models["b/w"])


def test_the_mean_is_rounded_once_from_float64() -> None:
    models = {"a": w(2.0**24), "b": w(2.0), "c": w(-(2.0**24))}
    assert take_in(ModelsState(w(0)), replies(models)).arrays["w"].tolist() == [np.float32(2 / 3)]


# ---------------------------------------------------------------------------------------- in runs


@pytest.mark.parametrize("name", RULES)
def test_of_a_lost_reply_the_last_model_stands_and_the_client_goes_on_from_its_own(
    name: str, tmp_path: Path
) -> None:
    keys = keys_of(tmp_path, name, fraction_train=1.0, fraction_evaluate=0.0, **ACTIVE[name])
    sent = {"train": 0}

    def tamper(node: int, reply: Message) -> Message:
        sent["train"] += node == 0
        if node == 0 and sent["train"] == 2:
            reply.content.clear()
        return reply

    played = play(keys, nodes=5, tamper=tamper)
    (lost,) = [q["client"] for q in played.rows[2]["quarantined"]]
    assert played.rows[3]["quarantined"] == []
    for client in played.names:
        one, two, three = (sha256(held(played, t)[client]) for t in (1, 2, 3))
        assert (one == two) == (client == lost)
        assert three not in (one, two)
    ends = kept_by(keys, played, "personal")
    undisturbed = keys | {"state-dir": str(tmp_path / "other")}
    whole = kept_by(undisturbed, play(undisturbed, nodes=5), "personal")
    # who begins with its own model does not notice; else what the server knows of it matters
    assert close(ends[lost], whole[lost], 1e-7) == (name in ("ensemble", "fedfomo"))


@pytest.mark.parametrize("name", RULES)
def test_a_reply_that_is_refused_changes_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = SOLVERS[name]

    def finish(self: Solver, task: Any, stats: Any) -> Finished:
        finished = good.finish(self, task, stats)
        if self.order is not None and self.order.round == 2:
            for i in [i for i, c in enumerate(self.order.clients) if c == "ben"]:
                finished[i][0].arrays["arrays"]["3.bias"] = np.full(3, np.nan, np.float32)
        return finished

    monkeypatch.setitem(SOLVERS, name, type("Diverging", (good,), {"finish": finish}))
    keys = keys_of(tmp_path, name, fraction_train=1.0, fraction_evaluate=0.0, **ACTIVE[name])
    played = play(keys)
    refused = [[q["client"] for q in row["quarantined"]] for row in played.rows]
    assert refused == [[], [], ["ben"], []]
    assert sha256(held(played, 2)["ben"]) == sha256(held(played, 1)["ben"]) != sha256(held(played, 3)["ben"])


@pytest.mark.parametrize("name", [*RULES, "d-psgd"])
def test_who_comes_late_is_taken_in_and_who_leaves_is_sent_to_nobody(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """emil comes for round 2, ben is away in round 3 and back in round 4."""
    monkeypatch.setattr(timing, "COME_BACK_S", 0.0)
    data = write_owners(tmp_path / "owners.npz")

    def online(client: str, t: int) -> bool:
        return not (client == "emil" and t < 2) and not (client == "ben" and t == 3)

    keys = keys_of(
        tmp_path, name, num_classes=3, fraction_train=1.0, num_server_rounds=4, local_test_fraction=0.0,
        fraction_evaluate=0.0, **ACTIVE[name] | ({"fedfomo__download": 0} if name == "fedfomo" else {}),
    )  # fmt: skip
    played = play(keys, grid_type=joining(tmp_path, data, online))
    everybody = sorted(data)
    without = {"": everybody, "ben": [c for c in everybody if c != "ben"], "emil": everybody[:-1]}
    assert played.selected() == [without["emil"], everybody, without["ben"], everybody]
    assert [row["quarantined"] for row in played.rows] == [[]] * 5
    assert [sorted(held(played, t)) for t in range(5)] == [[], without["emil"], *[everybody] * 3]
    # the model of who is away stays, and he begins with his own when he is back
    assert sha256(held(played, 3)["ben"]) == sha256(held(played, 2)["ben"]) != sha256(held(played, 4)["ben"])
    records = {
        t: {r for m in played.messages() if int(m.metadata.group_id) == t for r in m.content.array_records}
        for t in (1, 2, 3, 4)
    }
    # APPLE mixes the models of all clients that the run has known, as its ratios are over them.
    sent = everybody if name == "apple" else without["ben"]
    assert any(r.endswith(".ben") for r in records[3]) is (name == "apple")
    if name in ("apple", "fedfomo"):
        assert records[2] - {"start-ratios"} == {f"models.{c}" for c in without["emil"]}
        assert records[3] - {"start-ratios"} == {f"models.{c}" for c in sent}
        assert records[4] - {"start-ratios"} == {f"models.{c}" for c in everybody}
