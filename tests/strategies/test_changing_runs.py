"""Runs on data that change: weights are n_k(r), late clients are as nodes that come late, the rest stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from task.datasets.drift import client_rounds
from task.datasets.skew import load_partitioned
from task.datasets.stream import stream_of
from task.resolve.read import read_config
from tests.server_app.test_app import go
from tests.support.federation import loss_and_gradient, owners_config, play, read_by, write_owners
from tests.support.horizontal import HORIZONTAL
from tests.support.joining import joining
from tests.test_contract import config

GROWS: dict[str, Any] = {"stream__start": 0.3, "stream__per_round": 0.2}
LATE: dict[str, Any] = {"arrive__share": 0.4, "arrive__round": 3}
# Whoever keeps something at its clients, or has a record for each of them.
STATEFUL = [
    name for name, e in HORIZONTAL.items() if (e.keeps or e.individual or e.personal) and not e.pooled
]


def hashes(path: Path, nodes: int = 2, **keys: Any) -> list[str]:
    played = play(owners_config(path, **keys), nodes=nodes)
    assert not played.keep.lines
    return [row["model_sha256"] for row in played.rows]


def test_each_round_is_a_step_on_what_has_arrived_weighted_by_how_much(tmp_path: Path) -> None:
    data = write_owners(path := tmp_path / "owners.npz")
    keys = owners_config(path, learning_rate=0.5, batch_size=0, stream__window=8, **GROWS)
    played, (dataset, whole) = play(keys), load_partitioned(read_config(keys))
    for t in range(1, 5):
        w, now = played.linear(t - 1), whole.at(t)
        rows = [now.train(k) for k in range(len(data))]
        sent = {line["name"]: line["examples"] for line in played.keep.clients if line["round"] == t}
        expected = [min(8, -(-(3 + 2 * (t - 1)) * len(x) // 10), len(x)) for x, _ in data.values()]
        assert list(sent.values()) == [len(r) for r in rows] == expected
        # FedAvg of single full-batch steps is a step on all rows together.
        every = np.concatenate(rows)
        _, g = loss_and_gradient(w, dataset.x[every].astype(np.float64), dataset.y[every])
        after = played.linear(t)
        for a, b, slope in zip(after, w, g, strict=True):
            np.testing.assert_allclose(a, b - 0.5 * slope, atol=2e-6)


def test_what_changes_nothing_changes_no_byte_and_nodes_do_not_matter(tmp_path: Path) -> None:
    write_owners(path := tmp_path / "owners.npz")
    plain = hashes(path)
    drift = {"drift__kind": "labels-rotate", "drift__round": 5}
    assert hashes(path, stream__window=10**6, **drift) == plain  # a window over everything, a drift too late
    moved = hashes(path, **GROWS, **LATE, drift__kind="labels-rotate", drift__round=2, drift__clients=0.5)
    assert not set(moved[1:]) & set(plain)
    again = hashes(path, 3, **GROWS, **LATE, drift__kind="labels-rotate", drift__round=2, drift__clients=0.5)
    assert again == moved


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddc", "apple"])
def test_late_clients_are_as_nodes_that_register_late(name: str, tmp_path: Path) -> None:
    data = write_owners(path := tmp_path / "owners.npz")
    shared = {"algorithm": name, "num_classes": 3, "fraction_evaluate": 0.0}
    shared |= {"fraction_evaluate": 1.0, "local_test_fraction": 0.3} if HORIZONTAL[name].personal else {}
    keys = read_by(owners_config(path, **shared, **LATE))
    stream = stream_of(read_config(keys))
    assert stream is not None
    late = stream.late(sorted(data))
    assert len(late) == 2
    dealt = play(keys)
    own = read_by(owners_config(path, **shared) | {"data-path": ""})
    nodes = play(own, grid_type=joining(tmp_path, data, lambda c, t: c not in late or t >= 3))
    assert [row["population"] for row in dealt.rows[1:]] == [3, 3, 5, 5]
    for a, b in zip(dealt.rows, nodes.rows, strict=True):
        assert a["selected"] == b["selected"]
        assert a["model_sha256"] == b["model_sha256"]


@pytest.mark.full
@pytest.mark.parametrize("name", STATEFUL)
def test_whoever_keeps_state_starts_a_late_client_from_its_beginning(name: str, tmp_path: Path) -> None:
    write_owners(path := tmp_path / "owners.npz")
    one_by_one = HORIZONTAL[name].asynchronous  # a round is a step with the next that arrive
    keys = config(path, name, num_server_rounds=12 if one_by_one else 3, local_test_fraction=0.3)
    keys |= {"arrive.share": 0.4, "arrive.round": 2}
    if name != "fedfomo":
        keys |= {"stream.start": 0.5, "stream.per-round": 0.25}
    played = play(keys)
    assert not played.keep.lines
    assert [row["population"] for row in played.rows[1:4]] == [3, 5, 5]
    assert {client for row in played.rows for client in row["selected"]} == {*played.names}
    if not one_by_one:
        assert [len(row["selected"]) for row in played.rows[1:]] == [3, 5, 5]


def test_a_run_that_is_resumed_has_the_data_of_its_rounds(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"algorithm": "scaffold", "fraction_evaluate": 0.0, "stream.window": 60}
    keys |= {"stream.start": 0.2, "stream.per-round": 0.1, "arrive.share": 0.3, "arrive.round": 3}
    keys |= {"drift.kind": "rotate", "drift.round": 4, "drift.examples": "new", "fraction_train": 1.0}
    straight = go(tmp_path / "straight", num_server_rounds=5, **keys)
    go(tmp_path / "cut", num_server_rounds=2, **keys)
    resumed = go(tmp_path / "cut", num_server_rounds=5, resume=True, **keys)
    assert (resumed / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()


def test_the_test_set_follows_the_concept_and_the_result_says_what_it_cost(tmp_path: Path) -> None:
    keys = {"drift.kind": "labels-rotate", "drift.round": 6, "learning_rate": 0.3, "fraction_train": 1.0}
    folder = go(tmp_path, num_server_rounds=12, partition="iid", local_epochs=3, **keys)
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    accuracy = [row["accuracy"] for row in rows]
    result = json.loads((folder / "result.json").read_text())
    (drift,) = result["drift"]
    assert drift["round"] == 6
    assert drift["before"] == accuracy[5] > 0.85
    assert drift["after"] == accuracy[6] < 0.9 * accuracy[5]
    back = [t for t in range(6, 13) if accuracy[t] >= 0.95 * accuracy[5]]
    assert drift["recovery_rounds"] == (back[0] - 6 if back else None)
    own = {row["round"]: row["client_accuracy"] for row in rows[1:]}
    assert own[6] < own[5] - 0.05  # the clients' own test sets do, too
    assert "Drift in round 6" in (folder / "report.html").read_text()
    assert "new concept" in (folder / "plots" / "accuracy.svg").read_text()
    plain = go(tmp_path / "plain", num_server_rounds=1)
    assert "drift" not in json.loads((plain / "result.json").read_text())


def test_the_result_says_when_each_client_changes_as_it_was_dealt(tmp_path: Path) -> None:
    keys = {"drift.kind": "labels-rotate", "drift.round": 2, "drift.pattern": "staggered", "drift.span": 4}
    folder = go(tmp_path, num_server_rounds=1, **keys)
    given = read_config(json.loads((folder / "config.json").read_text())["run"])
    names = load_partitioned(given)[1].names
    found = json.loads((folder / "result.json").read_text())["drift_clients"]
    assert found == client_rounds(given.drift, names, given.seeds.data)
    assert next(iter(found.values())) == 2 < list(found.values())[-1]
