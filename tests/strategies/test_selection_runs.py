"""Selection policies in whole runs: what is sent, weights, resume, spread over nodes, simulated seconds."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from strategies.selection.policies import SELECTORS
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.entry import MODEL_DOWN
from task.wire import messages as wire
from tests.support.alike import the_same_on_any_nodes_and_resumed
from tests.support.federation import (
    SIZES,
    Data,
    Keep,
    Model,
    owners_config,
    play,
    read_by,
    write_owners,
)
from tests.support.grid import LocalGrid
from tests.test_catalogue import NAMES
from tests.test_privacy import Recording

POLICIES: dict[str, dict[str, Any]] = {
    "fedcs": {"select.deadline": 0.3, "devices.spread": 0.5},
    "oort": {"select.penalty": 0.5, "select.pacer-window": 1},
    "power-of-choice": {"select.candidates": 4},
    "power-of-choice, last": {"select.candidates": 4, "select.losses": "last"},
    "proportional": {},
    "uniform": {},
}


def keys(owners: Path, policy: str, **more: Any) -> dict[str, Any]:
    of = owners_config(owners, fraction_train=0.4, num_server_rounds=6, local_epochs=2, learning_rate=0.05)
    selection = policy.partition(",")[0]
    return (
        of | {"selection": selection} | POLICIES[policy] | {k.replace("_", "-"): v for k, v in more.items()}
    )


def losses_of(data: Data, model: Model) -> dict[str, np.ndarray]:
    """Return the losses of a linear softmax model on each client's examples, in float64."""
    out = {}
    for name, (x, y) in data.items():
        z = x.astype(np.float64) @ model[0] + model[1]
        z -= z.max(1, keepdims=True)
        out[name] = np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y]
    return out


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
def test_a_run_selects_and_remembers_the_same_on_any_nodes_and_resumed(
    policy: str, algorithm: str, owners: Path
) -> None:
    whole = the_same_on_any_nodes_and_resumed(read_by(keys(owners, policy, algorithm=algorithm)))
    rows = whole.rows
    assert len({str(r["selected"]) for r in rows[1:]}) > 1
    assert all(r["answered"] == len(r["selected"]) <= 2 for r in rows[1:])
    assert all((r["simulated_seconds"] > 0) == bool(r["selected"]) for r in rows)
    assert [r["population"] for r in rows] == [0] + [5] * 6
    remembers = policy in ("oort", "power-of-choice, last")
    assert any(k.startswith("selection/") for k in whole.keep.snapshots[-1].arrays) == remembers


@pytest.mark.parametrize("policy", ["fedcs", "oort"])
def test_what_codes_save_is_in_the_seconds_and_depends_on_no_spread(policy: str, owners: Path) -> None:
    """One byte of four for each number, beside the codes' heads and scales; training takes no time."""
    slow = {"devices.spread": 0.0, "devices.speed": 1e6, "devices.bandwidth": 0.00048}
    of = read_by(keys(owners, policy) | slow | {"model": "2nn"})
    of |= {"select.deadline": 1e6} if policy == "fedcs" else {}
    coded = {"codec.up": "int8", "codec.down": "int8"}
    whole, one = play(of, nodes=1), the_same_on_any_nodes_and_resumed(of | coded)
    for t, row in enumerate(one.rows[2:], start=2):  # the first message has the whole model
        assert row["simulated_seconds"] == pytest.approx(whole.rows[t]["simulated_seconds"] / 4, rel=0.02)


def test_forgetting_would_change_who_is_selected(owners: Path) -> None:
    """The test of resuming can fail: without the memory the cohorts differ."""
    for policy in ("oort", "power-of-choice, last"):
        of = keys(owners, policy)
        whole = play(of)
        taken = whole.keep.snapshots[3]
        for key in [k for k in taken.arrays if k.startswith("selection/")]:
            del taken.arrays[key]
        assert [r["selected"] for r in play(of, journal=Keep(taken)).rows] != whole.selected()[3:]


# ----------------------------------------------------------------------------- what is sent and told


def test_a_query_sends_the_model_down_and_one_loss_up(owners: Path) -> None:
    of = keys(owners, "power-of-choice", num_server_rounds=2)
    for nodes in (5, 1):
        played = play(of, nodes=nodes, grid_type=Recording)
        queries = played.messages("evaluate.candidates")
        asked = [
            sum(len(m.content["config"]["clients"]) for m in queries if m.metadata.group_id == t)
            for t in "12"
        ]  # type: ignore[arg-type]
        assert asked == [4, 4]
        for m in queries:
            assert set(m.content.array_records) == {"arrays"}
            assert set(m.content["config"]) == {"server-round", "run", "clients", "epochs"}
        for kind, content in played.grid.up:  # type: ignore[attr-defined]
            if kind == "evaluate.candidates":
                assert dict(content.array_records) == {}
                assert {k: set(r) for k, r in content.metric_records.items()} == {
                    "metrics": {"loss", "num-examples"}
                }
        sent = [*queries, *played.messages()]
        down = sum(wire.payload_bytes(m.content) for m in sent)
        up = [(k, wire.payload_bytes(c)) for k, c in played.grid.up if not k.startswith("query")]  # type: ignore[attr-defined]
        assert down == sum(r["bytes_down"] for r in played.rows)
        assert sum(b for _, b in up) == sum(r["bytes_up"] for r in played.rows)


def test_the_candidates_with_the_largest_loss_of_the_received_model_train(
    owners: Path, tmp_path: Path
) -> None:
    data = write_owners(tmp_path / "again.npz")
    played = play(keys(owners, "power-of-choice"), nodes=1)
    for t in range(1, 7):
        (query,) = (m for m in played.messages("evaluate.candidates") if m.metadata.group_id == str(t))
        asked = list(query.content["config"]["clients"])  # type: ignore[arg-type, call-overload]
        mean = {c: loss.mean() for c, loss in losses_of(data, played.linear(t - 1)).items()}
        assert played.rows[t]["selected"] == sorted(sorted(asked, key=lambda c: -mean[c])[:2])


def test_oort_is_told_the_rms_loss_of_the_received_model(owners: Path, tmp_path: Path) -> None:
    data = write_owners(tmp_path / "again.npz")
    played = play(keys(owners, "oort"))
    lines = [c for c in played.keep.clients if c["phase"] == "train"]
    for line in lines:
        loss = losses_of(data, played.linear(line["round"] - 1))[line["name"]]
        assert line["metrics"]["loss-rms"] == pytest.approx(math.sqrt((loss**2).mean()), rel=1e-5)
    taken = played.keep.snapshots[-1].arrays
    names = json.loads(taken["selection/names"].tobytes())
    last = {c["name"]: c for c in lines}
    assert names == sorted(last)
    assert taken["selection/last"].tolist() == [last[n]["round"] for n in names]
    want = [last[n]["examples"] * last[n]["metrics"]["loss-rms"] for n in names]
    assert taken["selection/utility"].tolist() == want


@pytest.mark.parametrize("policy", ["uniform", "proportional", "power-of-choice"])
@pytest.mark.parametrize("nodes", [5, 2])
def test_who_is_drawn_by_size_is_not_weighted_by_size_again(policy: str, nodes: int, owners: Path) -> None:
    """With everybody in the cohort the new model is the mean of the locals, by n_k or plain."""
    of = keys(owners, policy, num_server_rounds=1, fraction_train=1.0) | {"select.candidates": 0}
    locals_ = {}
    for played in [play(of | {"selection": "uniform"}, nodes=5, grid_type=Recording)]:
        for kind, content in played.grid.up:  # type: ignore[attr-defined]
            if kind == "train":
                locals_[int(content["metrics"]["num-examples"])] = wire.read_arrays(content["arrays"])
    weights = {n: n if policy == "uniform" else 1 for n in SIZES.values()}
    got = play(of, nodes=nodes).arrays(1)
    for name, a in got.items():
        mean = sum(weights[n] * m[name].astype(np.float64) for n, m in locals_.items()) / sum(
            weights.values()
        )
        np.testing.assert_allclose(a, mean, rtol=3e-7, atol=1e-9)


def test_a_candidate_whose_answer_is_bad_is_quarantined_and_not_drawn(owners: Path) -> None:
    seen: list[str] = []

    class Spoilt(LocalGrid):
        def _deliver(self, message: Message) -> Message | None:
            reply = super()._deliver(message)
            if message.metadata.message_type == "evaluate.candidates" and reply is not None:
                client = message.content["config"]["clients"][0]  # type: ignore[index, call-overload]
                if client == "cleo":
                    reply.content["metrics"]["loss"] = math.nan  # type: ignore[index, call-overload]
                    seen.append(client)
            return reply

    played = play(keys(owners, "power-of-choice"), nodes=5, grid_type=Spoilt)
    assert seen
    assert all("cleo" not in r["selected"] for r in played.rows)
    lines = [q for r in played.rows for q in r["quarantined"]]
    assert {(q["client"], q["field"], q["got"]) for q in lines} == {("cleo", "loss", "nan")}
    assert len(lines) == len(seen)


def test_without_any_answer_to_the_query_the_round_is_skipped(owners: Path) -> None:
    of = keys(owners, "power-of-choice", num_server_rounds=2, round_timeout=2.0)
    played = play(of, tamper=lambda i, reply: None if reply.metadata.group_id == "1" else reply)
    assert not played.rows[2]["skipped"]
    assert played.rows[1]["skipped"]
    assert played.rows[1]["selected"] == []
    assert played.rows[1]["model_sha256"] == played.rows[0]["model_sha256"]


def test_a_round_in_which_nobody_is_fast_enough_is_skipped(owners: Path) -> None:
    of = keys(owners, "fedcs", num_server_rounds=12, fraction_train=0.2) | {"devices.spread": 1.5}
    rows = play(of | {"select.deadline": 0.2}).rows[1:]
    assert {r["skipped"] for r in rows} == {True, False}
    for r in rows:
        assert r["skipped"] == (r["selected"] == [])
        assert r["simulated_seconds"] <= 0.2


# ------------------------------------------------------------------------------ simulated seconds


def test_simulated_seconds_by_hand(owners: Path) -> None:
    """logistic, 4 x 3 + 3 float32 = 60 bytes; 0.00048 Mbit/s = 60 B/s; 10 examples/s; E = 2."""
    same = {"devices.spread": 0.0, "devices.speed": 10.0, "devices.bandwidth": 0.00048}
    for policy, forward in (("uniform", 0.0), ("oort", 1 / 3)):
        rows = play(keys(owners, policy) | same).rows[1:]
        for r in rows:
            slowest = max(SIZES[c] for c in r["selected"])
            assert r["simulated_seconds"] == pytest.approx(1 + (2 + forward) * slowest / 10 + 1)
    shared = play(keys(owners, "uniform") | same | {"devices.uplink": "shared"}).rows[1:]
    for r in shared:
        first, second = sorted(2 * SIZES[c] / 10 for c in r["selected"])
        assert r["simulated_seconds"] == pytest.approx(max(1 + first + 1, 1 + second) + 1)
    played = play(keys(owners, "power-of-choice") | same, nodes=1)
    for m, r in zip(played.messages("evaluate.candidates"), played.rows[1:], strict=True):
        asked = max(SIZES[c] for c in m.content["config"]["clients"])  # type: ignore[index, call-overload, union-attr]
        slowest = max(SIZES[c] for c in r["selected"])
        assert r["simulated_seconds"] == pytest.approx(1 + asked / 30 + 1 + 2 * slowest / 10 + 1)


def test_stragglers_take_the_time_of_what_they_do(owners: Path) -> None:
    of = keys(owners, "uniform", stragglers=1.0, local_epochs=9, fraction_train=1.0)
    of |= {"devices.spread": 0.0, "devices.speed": 1.0, "devices.bandwidth": 1e6}
    played = play(of)
    for t, r in enumerate(played.rows[1:], start=1):
        work = {c: SIZES[c] * e for (s, c), e in played.epochs().items() if s == t}
        assert r["simulated_seconds"] == pytest.approx(max(work.values()))
    dropped = play(of | {"drop-stragglers": True, "num-server-rounds": 1})
    assert dropped.rows[1]["simulated_seconds"] == 0.0


def test_every_policy_is_played_here() -> None:
    ring = {"cycle"}  # see test_rounds_of_phases
    assert {p.partition(",")[0] for p in POLICIES} | ring == SELECTORS.keys()


# It counts features with weights n_k, which equal weights would contradict.
REFUSED = {("fsvrg-sparse", "power-of-choice")}
# A loss of the received model needs a model that is sent whole.
REFUSED |= {
    (name, policy)
    for name in NAMES
    for policy in ("oort", "power-of-choice")
    if ALGORITHMS[name].private or MODEL_DOWN not in ALGORITHMS[name].down
}
