"""Meamed, DnC, centered clipping, FLTrust, and what stands in front of a rule: by hand on four vectors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strategies.engine.state import AggregatedReplies, ServerState, too_few
from strategies.rules import centered_clipping, dnc, fltrust, meamed
from strategies.rules.pre_aggregation import before, buckets, neighbours
from task import timing
from task.catalogue.algorithms import ALGORITHMS
from task.config.algorithm_sections import CenteredClippingConfig, DnCConfig, RobustConfig
from task.config.knobs import Config
from task.errors import AbsentError, ConfigError
from task.resolve.read import read_config
from tests.reference import robust as reference
from tests.support.alike import the_same_on_any_nodes_and_resumed
from tests.support.federation import Keep, owners_config, play, write_owners
from tests.support.joining import joining

FOUR = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [10.0, 10.0]])  # the last one is malicious
HONEST = [2 / 3, 1.0]


def replies(stack: np.ndarray = FOUR, **more: Any) -> AggregatedReplies:
    names = tuple("abcdefghijklmnop"[: len(stack)])
    return AggregatedReplies(
        {"arrays": {"w": stack}}, names, np.ones(len(stack), np.int64), trainable=("w",), **more
    )


def config(**robust: Any) -> Config:
    return Config(robust=RobustConfig(**{"byzantine": 1.0, **robust}))


def zero() -> dict[str, np.ndarray]:
    return {"w": np.zeros(2)}


def test_meamed_takes_the_numbers_nearest_to_the_median() -> None:
    state, _ = meamed.server_update(ServerState(zero()), replies(), config())
    assert state.arrays["w"] == pytest.approx(reference.meamed(list(FOUR), 1))
    assert state.arrays["w"][0] == pytest.approx(2 / 3)


def test_dnc_finds_the_outlier_and_intersects() -> None:
    assert dnc.outliers(FOUR) == pytest.approx([13.693, 9.127, 9.016, 94.560], abs=1e-3)
    assert dnc.outliers(FOUR) == pytest.approx(reference.dnc_scores(list(FOUR)))
    state, metrics = dnc.server_update(ServerState(zero()), replies(), config())
    assert state.arrays["w"] == pytest.approx(HONEST)
    assert metrics == {"byzantine": 1, "taken": 3}
    # each time one coordinate: b stands out in the second, d in both
    more = Config(robust=RobustConfig(byzantine=1.0), dnc=DnCConfig(coordinates=1, iterations=20))
    state, _ = dnc.server_update(ServerState(zero()), replies(), more)
    assert state.arrays["w"] == pytest.approx(HONEST)
    most = Config(robust=RobustConfig(byzantine=1.0), dnc=DnCConfig(filter=9.0))  # never everybody
    assert dnc.server_update(ServerState(zero()), replies(), most)[1]["taken"] == 1


def test_centered_clipping_three_rounds_by_hand() -> None:
    knobs = Config(robust=RobustConfig(byzantine=1.0), centered_clipping=CenteredClippingConfig(radius=1.0))
    state, path = centered_clipping.CenteredClippingState(zero(), zero()), []
    for _ in range(3):
        start = state.arrays["w"]
        state, _ = centered_clipping.server_update(state, replies(FOUR + start), knobs)
        path.append(state.arrays["w"] - start)
    want = [(0.603553, 0.603553), (0.879369, 0.958037), (0.955985, 1.096081)]
    assert np.array(path) == pytest.approx(np.array(want), abs=1e-6)
    thrice = Config(
        robust=RobustConfig(byzantine=1.0),
        centered_clipping=CenteredClippingConfig(radius=1.0, iterations=3),
    )
    state, _ = centered_clipping.server_update(
        centered_clipping.CenteredClippingState(zero(), zero()), replies(), thrice
    )
    assert state.v["w"] == pytest.approx(want[-1], abs=1e-6)


def test_centered_clipping_is_moved_by_nobody_infinitely_far() -> None:
    G = np.diag([1.0, np.inf])
    assert centered_clipping.coefficients(G, 9.0, 2).tolist() == [0.75, 0.0]  # half the way, twice


def test_fltrust_by_hand_and_where_nobody_is_trusted() -> None:
    root = {"w": np.array([1.0, 1.0])}
    scores, _ = fltrust.trust({"w": FOUR}, zero(), root, ("w",))
    assert scores == pytest.approx([math.sqrt(0.5), math.sqrt(0.5), 1, 1])
    state, metrics = fltrust.server_update(fltrust.FLTrustState(zero(), root), replies(), Config())
    assert state.arrays["w"] == pytest.approx([0.878680, 0.878680], abs=1e-6)
    assert state.arrays["w"] == pytest.approx(reference.fltrust(list(FOUR), root["w"]))
    assert (state.root, metrics["trusted"]) == ({}, 4)
    against = {"w": -root["w"]}
    state, metrics = fltrust.server_update(fltrust.FLTrustState(zero(), against), replies(), Config())
    assert (state.arrays["w"].tolist(), metrics["trusted"]) == ([0.0, 0.0], 0)
    still = replies(np.zeros((2, 2)))  # no direction at all
    assert fltrust.server_update(fltrust.FLTrustState(zero(), root), still, Config())[1]["trusted"] == 0


# ---------------------------------------------------------------------------------- pre-aggregation


def seen(stack: np.ndarray = FOUR, **robust: Any) -> np.ndarray:
    return before(ServerState(zero()), replies(stack), config(**robust))[0].arrays["arrays"]["w"]


def test_nothing_in_front_of_a_rule_is_nothing() -> None:
    came = replies()
    assert before(ServerState(zero()), came, config())[0] is came


def test_nearest_neighbours_by_hand() -> None:
    got = seen(nnm=True)
    assert got == pytest.approx(np.array([HONEST, HONEST, HONEST, [11 / 3, 13 / 3]]))
    assert got == pytest.approx(np.array(reference.nearest_neighbours(list(FOUR), 1)))
    assert np.median(got, axis=0) == pytest.approx(HONEST)
    assert seen(nnm=True, byzantine=0.0) == pytest.approx(np.tile(FOUR.mean(0), (4, 1)))  # neutral
    assert neighbours(np.zeros((3, 3)), 1).tolist() == [[0.5, 0.5, 0], [0.5, 0.5, 0], [0.5, 0, 0.5]]


def test_a_norm_bound_by_hand() -> None:
    got = seen(norm_bound=2.0)
    assert got == pytest.approx(np.array(reference.norm_bound(list(FOUR), 2.0)))
    assert got[3] == pytest.approx([math.sqrt(2)] * 2)
    state = ServerState({"w": np.array([10.0, 10.0])})  # relative to w^t, and buffers as they are
    stack = {"w": FOUR + 10, "b": np.array([[9.0]] * 4)}
    came = AggregatedReplies({"arrays": stack}, tuple("abcd"), np.ones(4, np.int64), trainable=("w",))
    seen_, metrics = before(ServerState(state.arrays | {"b": np.zeros(1)}), came, config(norm_bound=2.0))
    assert seen_.arrays["arrays"]["w"] == pytest.approx(got + 10)
    assert (seen_.arrays["arrays"]["b"].ravel().tolist(), metrics) == ([9.0] * 4, {"cut": 1})


def test_adaptive_clipping_by_hand() -> None:
    """f = 1 of 4: floor(2 * 3 / 4) = 1, so the largest is cut to the next norm, 2."""
    got = seen(arc=True)
    assert got[3] == pytest.approx([math.sqrt(2)] * 2)
    assert (got[:3] == FOUR[:3]).all()
    assert (seen(arc=True, byzantine=0.0) == FOUR).all()  # neutral
    assert seen(arc=True, norm_bound=1.0)[3] == pytest.approx(
        [math.sqrt(0.5)] * 2
    )  # the smaller bound counts


def test_buckets_are_drawn_by_round_and_all_clients_are_in_one() -> None:
    rng = np.random.default_rng
    assert sorted(np.concatenate(buckets(7, 2, rng(0)))) == list(range(7))
    assert [len(b) for b in buckets(7, 3, rng(0))] == [3, 3, 1]
    one, other = (before(ServerState(zero()), replies(round=t), config(bucket=2))[0] for t in (1, 2))
    assert len(one.clients) == len(other.clients) == 2
    assert one.num_examples.tolist() == [2, 2]
    assert one.arrays["arrays"]["w"].mean(0) == pytest.approx(FOUR.mean(0))
    assert sum((seen(bucket=2) == before(ServerState(zero()), replies(round=t), config(bucket=2))[0]
                .arrays["arrays"]["w"]).all() for t in range(12)) < 12  # fmt: skip


def test_whole_numbers_stay_whole() -> None:
    stack = {"w": FOUR, "n": np.array([[1], [2], [3], [4]])}
    came = AggregatedReplies({"arrays": stack}, tuple("abcd"), np.ones(4, np.int64), trainable=("w",))
    got = before(ServerState(zero() | {"n": np.array([0])}), came, config(bucket=4))[0].arrays["arrays"]
    assert (got["n"].tolist(), got["n"].dtype) == ([[3]], np.int64)  # 2.5, halves up


def test_buckets_must_be_enough_for_the_rule() -> None:
    entry = ALGORITHMS["median"]
    assert too_few(entry, config(bucket=2), 6, 6) == ""  # 3 buckets, f = 1
    assert "2 f + 1 = 3 buckets of 2" in too_few(entry, config(bucket=2), 4, 4)


def test_they_and_client_momentum_are_of_robust_rules_only() -> None:
    for key, value in (("robust.nnm", True), ("robust.bucket", 2), ("robust.client-momentum", 0.9)):
        with pytest.raises(ConfigError, match="nothing in this run reads it"):
            read_config({key: value})


# --------------------------------------------------------------------------------------- whole runs


def test_client_momentum_is_kept_and_sent(tmp_path: Path) -> None:
    """Of one client and the median, which is then the client's model: m^1 = D^1, m^2 = b m^1 + (1-b) D^2."""
    write_owners(tmp_path / "o.npz", {"anna": 8})
    keys = owners_config(tmp_path / "o.npz", algorithm="median", num_server_rounds=2, learning_rate=0.2)
    keys |= {"robust.byzantine": 0.0, "batch-size": 0}
    beta = 0.75
    plain = play(keys | {"state-dir": str(tmp_path / "0")}, nodes=1)
    sent = play(keys | {"state-dir": str(tmp_path / "1"), "robust.client-momentum": beta}, nodes=1)
    for name, w0 in plain.arrays(0).items():
        first = plain.arrays(1)[name].astype(np.float64) - w0
        second = plain.arrays(2)[name].astype(np.float64) - plain.arrays(1)[name]
        assert (sent.arrays(1)[name] == plain.arrays(1)[name]).all()
        want = plain.arrays(1)[name] + beta * first + (1 - beta) * second
        assert sent.arrays(2)[name] == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize("more", [{"robust.nnm": True}, {"robust.bucket": 2, "robust.norm-bound": 0.5}])
def test_neither_nodes_nor_their_order_change_a_byte(more: dict[str, Any], tmp_path: Path) -> None:
    write_owners(tmp_path / "o.npz", reference.SEVEN)
    keys = owners_config(tmp_path / "o.npz", algorithm="krum", num_server_rounds=2, fraction_train=1.0)
    keys |= {"robust.byzantine": 0.15, "robust.client-momentum": 0.5, **more}
    if "robust.bucket" in more:
        keys |= {"algorithm": "median"}
    the_same_on_any_nodes_and_resumed(keys)


def test_a_root_that_nobody_is_ends_the_run_before_round_1(tmp_path: Path) -> None:
    write_owners(tmp_path / "owners.npz")
    keys = owners_config(
        tmp_path / "owners.npz", algorithm="fltrust", fltrust__root="zoe", num_server_rounds=1
    )
    with pytest.raises(AbsentError, match=r'"fltrust\.root": .* got "zoe"; online are anna, ben'):
        play(keys)


def test_who_joins_later_does_not_become_the_root_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anna would be the first by name; she comes for round 2, and again after the run was resumed."""
    monkeypatch.setattr(timing, "COME_BACK_S", 0.0)
    data = write_owners(tmp_path / "owners.npz")
    keys = owners_config(tmp_path / "owners.npz", algorithm="fltrust", num_classes=3)
    keys |= {"fraction-train": 1.0, "batch-size": 4}
    first = play(
        keys | {"num-server-rounds": 2},
        grid_type=joining(tmp_path, data, lambda client, t: client != "anna" or t > 1),
    )
    rest = Keep(first.keep.snapshots[-1])
    both = first, play(keys, journal=rest, grid_type=joining(tmp_path, data, lambda client, t: True))
    for played in both:
        roots = [m.content["config"]["clients"] for m in played.messages("train.root")]
        assert roots == [["ben"]] * 2
    rows = [row for played in both for row in played.rows if row["round"]]
    assert ["anna" in row["selected"] for row in rows] == [False, True, True, True]
    # where it is away the round keeps the model, and nobody takes its place
    gone = play(
        keys | {"num-server-rounds": 3}, journal=Keep(first.keep.snapshots[-1]),
        grid_type=joining(tmp_path, data, lambda client, t: client != "ben"),
    )  # fmt: skip
    assert [row["skipped"] for row in gone.rows] == [True]


def test_fltrust_keeps_training_where_most_clients_lie(tmp_path: Path) -> None:
    """Five of eight turn their updates round: the mean goes up the loss, FLTrust follows its root down."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 4)).astype(np.float32)
    y, client = np.argmax(x @ rng.normal(size=(4, 3)), 1), np.repeat(list("abcdefgh"), 30)
    np.savez(tmp_path / "o.npz", x=x, y=y, client=client, x_test=x[:9], y_test=y[:9])
    keys = owners_config(tmp_path / "o.npz", num_server_rounds=3, fraction_train=1.0, fraction_evaluate=1.0)
    keys |= {"attack.kind": "sign-flip", "attack.fraction": 0.62, "local-test-fraction": 0.3}
    losses = {}
    for name in ("fedavg", "fltrust"):
        rows = play(keys | {"algorithm": name}, nodes=1).rows
        losses[name] = rows[-1]["client_loss"] - rows[1]["client_loss"]
    assert losses["fedavg"] > 0 > losses["fltrust"]
