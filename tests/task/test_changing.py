"""Data that change: n_k(r), windows, late clients and schedules of a drift by hand, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from task.config.data_sections import ArriveConfig, DriftConfig, StreamConfig
from task.config.knobs import Config
from task.datasets.drift import changes, client_rounds, share_at
from task.datasets.skew import load_partitioned
from task.datasets.stream import DataStream
from task.errors import ConfigError
from task.features.changing_data import check_own_data
from task.resolve.read import read_config
from task.resolve.validate import check_names

KEYS: dict[str, Any] = {"num-clients": 4, "local-test-fraction": 0.2}


def stream(late: float = 0.0, joins: int = 2, **keys: Any) -> DataStream:
    return DataStream(StreamConfig(**keys), ArriveConfig(share=late, round=joins), 1)


def of(**keys: Any) -> Config:
    return read_config(KEYS | {k.replace("_", "-").replace("--", "."): v for k, v in keys.items()})


def test_the_number_that_has_arrived_is_the_closed_form() -> None:
    assert stream(start=0.25, per_round=0.25).sizes(10, 6) == [3, 5, 8, 10, 10, 10]  # ceil of 2.5, 5, 7.5
    assert stream(start=0.1, per_round=0.1).sizes(10, 4) == [
        1,
        2,
        3,
        4,
    ]  # of 0.1 * 3 = 0.30000000000000004, too
    assert stream(start=0.5).sizes(7, 3) == [4, 4, 4]
    assert stream(start=0.001).sizes(1, 1) == [1]  # a client that has joined has an example
    assert [stream(start=0.2, per_round=0.2, window=3).count(10, age) for age in range(5)] == [0, 2, 3, 3, 3]


def test_rows_are_a_prefix_of_one_order_of_which_a_window_keeps_the_end() -> None:
    rows, grows = np.arange(100, 120), stream(start=0.2, per_round=0.2)
    order = grows.order("anna", rows)
    assert sorted(order) == rows.tolist() != order.tolist()
    for age, n in enumerate(grows.sizes(20, 6), 1):
        assert grows.rows("anna", rows, age).tolist() == sorted(order[:n])
        last = stream(start=0.2, per_round=0.2, window=5).rows("anna", rows, age)
        assert last.tolist() == sorted(order[max(n - 5, 0) : n])
    assert grows.order("ben", rows).tolist() != order.tolist()
    assert stream(start=0.2, order="rows").rows("anna", rows, 1).tolist() == rows[:4].tolist()
    assert grows.rows("anna", rows, 9) is rows  # all there: today's array


def test_late_clients_are_a_share_drawn_by_name_and_begin_their_own_stream() -> None:
    names = [f"client-{i}" for i in range(10)]
    late = stream(late=0.3, joins=5)
    assert len(late.late(names)) == 3
    assert late.late(names[::-1]) == late.late(names)
    assert replace(late, seed=2).late(names) != late.late(names)
    assert len(stream(late=0.99).late(names[:3])) == 2  # one begins
    assert [late.age(True, r) for r in (4, 5, 6)] == [0, 1, 2]
    dataset, partition = load_partitioned(
        of(arrive__share=0.5, arrive__round=3, stream__start=0.5, stream__per_round=0.5)
    )
    whole = partition.num_train()
    seen = np.array([partition.at(r).num_train() for r in range(1, 5)])
    assert sorted((seen[1] == 0).tolist()) == [False, False, True, True]
    for k, n in enumerate(whole):
        half, begins = math.ceil(n / 2), 0 if seen[0][k] else 2
        assert seen[:, k].tolist() == [0] * begins + [half, *[n] * (3 - begins)]
        assert [len(partition.at(r).train(k)) for r in range(1, 5)] == seen[:, k].tolist()
    assert partition.train(0).size == whole[0]  # in no round, as at registration
    assert dataset.at(3) is dataset


def test_schedules_of_the_new_concept() -> None:
    def shares(**keys: Any) -> list[float]:
        return [share_at(DriftConfig(kind="invert", round=3, **keys), t) for t in range(1, 8)]

    assert shares() == [0, 0, 1, 1, 1, 1, 1]
    assert shares(pattern="gradual", span=4) == [0, 0, 0.25, 0.5, 0.75, 1, 1]
    assert shares(pattern="recurring", span=2) == [0, 0, 1, 1, 0, 0, 1]
    assert changes(DriftConfig(kind="invert", round=3, pattern="recurring", span=2), 7) == [3, 5, 7]
    assert changes(DriftConfig(kind="invert", round=3, pattern="gradual"), 7) == [3]
    assert changes(DriftConfig(kind="invert", round=8), 7) == changes(DriftConfig(), 99) == []


def test_labels_change_for_all_rows_at_once_or_one_by_one() -> None:
    dataset, _ = load_partitioned(of(drift__kind="labels-rotate", drift__round=3))
    everything, y = slice(0, len(dataset.y)), torch.from_numpy(dataset.y.copy())
    assert torch.equal(dataset.at(2).targets(everything), y)
    assert torch.equal(dataset.at(3).targets(everything), (y + 1) % 10)
    assert torch.equal(dataset.at(3).inputs(slice(0, 5)), dataset.inputs(slice(0, 5)))
    more = {"drift__kind": "labels-swap", "drift__round": 3, "drift__pattern": "gradual", "drift__span": 4}
    dataset, _ = load_partitioned(of(**more))
    changed = [dataset.at(t).targets(everything) != y for t in range(2, 7)]
    assert [round(float(c.float().mean()), 2) for c in changed] == [0, 0.25, 0.5, 0.75, 1]
    assert all(bool((a <= b).all()) for a, b in pairwise(changed))  # each once
    assert torch.equal(dataset.at(6).targets(everything), y ^ 1)
    some = np.array([9, 700, 33])
    assert torch.equal(dataset.at(4).targets(some), dataset.at(4).targets(everything)[some])


def test_the_last_class_of_an_odd_number_stays() -> None:
    dataset, _ = load_partitioned(of(dataset="synthetic", drift__kind="labels-swap", drift__round=1))
    odd = replace(dataset, drift=replace(dataset.drift, classes=9))  # type: ignore[type-var]
    assert odd.drift is not None
    assert odd.drift.targets(torch.arange(9), np.arange(9), 1).tolist() == [1, 0, 3, 2, 5, 4, 7, 6, 8]


def test_images_change_for_a_share_of_the_clients_and_their_part_of_the_test_set() -> None:
    dataset, partition = load_partitioned(of(drift__kind="invert", drift__round=2, drift__clients=0.5))
    moved = []
    for k in range(4):
        for rows in (partition.train(k), partition.test(k)):
            before, now = dataset.at(1).inputs(rows), dataset.at(2).inputs(rows)
            moved.append(torch.equal(now, 1 - before))
            assert moved[-1] or torch.equal(now, before)
    assert moved[::2] == moved[1::2]
    assert sum(moved[::2]) == 2
    tests = dataset.test_rows
    same = (dataset.at(2).inputs(tests) == dataset.inputs(tests)).flatten(1).all(1)
    assert float(same.float().mean()) == pytest.approx(0.5, abs=0.01)
    whole, _ = load_partitioned(of(drift__kind="rotate", drift__round=2, feature_skew="invert"))
    turned = torch.rot90(whole.inputs(tests), 1, (2, 3))  # on top of the clients' skew
    assert torch.equal(whole.at(2).inputs(tests), turned)


def test_old_examples_keep_the_concept_in_which_they_arrived() -> None:
    keys = {"stream__start": 0.25, "stream__per_round": 0.25, "drift__examples": "new"}
    dataset, partition = load_partitioned(of(drift__kind="labels-rotate", drift__round=3, **keys))
    y = torch.from_numpy(dataset.y.copy())
    for k in range(4):
        for t in range(1, 5):
            rows = partition.at(t).train(k)
            old = partition.at(min(t, 2)).train(k)
            was, new = y[torch.tensor(rows)], torch.from_numpy(~np.isin(rows, old))
            assert torch.equal(dataset.at(t).targets(rows), torch.where(new, (was + 1) % 10, was))
        tests = torch.tensor(partition.test(k))
        assert torch.equal(dataset.at(3).targets(tests.numpy()), (y[tests] + 1) % 10)
    assert torch.equal(dataset.at(3).targets(dataset.test_rows), (y[dataset.test_rows] + 1) % 10)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"stream.own-data": True}, "nothing in this run reads it"),
        ({"drift.round": 3}, "nothing in this run reads it"),
        ({"stream.per-round": 0.1}, "nothing in this run reads it"),
    ],
)
def test_what_would_not_follow_the_data_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_names(read_config(keys))


def test_clients_change_one_after_another() -> None:
    """Four of five clients, t_0 = 3, S = 6: in rounds 3, 4, 6 and 7, each with all that it has."""
    more = {"drift__round": 3, "drift__pattern": "staggered", "drift__span": 6, "drift__clients": 0.8}
    config = of(num_clients=5, drift__kind="labels-swap", **more)
    dataset, partition = load_partitioned(config)
    rounds = client_rounds(config.drift, partition.names, config.seeds.data)
    assert list(rounds.values()) == [3, 4, 6, 7]
    for k, name in enumerate(partition.names):
        rows = np.concatenate([partition.train(k), partition.test(k)])
        begin = rounds.get(name, 99)
        for t in (2, 3, 4, 5, 6, 7, 20):
            changed = dataset.at(t).targets(rows) != dataset.targets(rows)
            assert bool(changed.all() if t >= begin else not changed.any()), (name, t)
    test = dataset.test_rows
    shares = [(dataset.at(t).targets(test) != dataset.targets(test)).double().mean() for t in (2, 3, 4, 7)]
    assert shares == pytest.approx([0.0, 0.2, 0.4, 0.8], abs=0.01)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"drift.kind": "invert", "dataset": "synthetic"}, "changes images"),
        ({"drift.kind": "invert", "drift.clients": 0.5, "partition": "bootstrap"}, "do not overlap"),
    ],
)
def test_what_cannot_drift_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_partitioned(read_config(KEYS | keys))


def test_a_nodes_own_data_are_used_as_they_are() -> None:
    for keys in ({"stream.window": 5}, {"drift.kind": "invert"}, {"arrive.share": 0.5}):
        with pytest.raises(ConfigError, match="brings its own data"):
            check_own_data(read_config(keys))
    check_own_data(read_config({"stream.own-data": True, "dataset": "csv"}))
