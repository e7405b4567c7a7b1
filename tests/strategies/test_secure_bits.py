"""Sums of 64 and 32 bits: one model wherever clients train, with masks or without, near the exact one."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from task.errors import ConfigError, FieldError
from task.resolve.read import read_config
from task.resolve.validate import check_names
from task.secagg.fixed_point import MOST, exponent, rounded
from task.secagg.vector import Vector
from task.wire import messages as wire
from tests.strategies.test_secure import TEN, Losing, hashes, losing
from tests.support.federation import owners_config, play, write_owners

C = 5.0
# An algorithm for each form of what goes up: by examples, by clients, two records, a phase more, a part.
FORMS = (("fedavg", 32), ("fedavg", 64), ("feddyn", 64), ("scaffold", 32), ("fsvrg", 64), ("fedper", 32))


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("owners") / "owners.npz"
    write_owners(path, TEN)
    return path


def keys_of(owners: Path, bits: int, **more: Any) -> dict[str, Any]:
    return owners_config(owners, secagg=True, secagg_bits=bits, max_update_norm=C, **more)


@pytest.mark.parametrize(("name", "bits"), FORMS)
def test_the_models_do_not_depend_on_nodes_or_masks(
    name: str, bits: int, owners: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of(owners, bits, algorithm=name, num_server_rounds=2)
    three, ten = play(keys, nodes=3), play(keys, nodes=10)
    assert [row["answered"] for row in three.rows[1:]] == [len(TEN)] * 2
    assert hashes(ten.rows) == hashes(three.rows)
    monkeypatch.setattr(Vector, "mask", lambda self, masks: None)
    assert hashes(play(keys, nodes=3).rows) == hashes(three.rows)


@pytest.mark.parametrize(("bits", "name"), [(32, "fedavg"), (32, "feddyn"), (64, "fedavg")])
def test_a_round_is_off_by_no_more_than_is_said(bits: int, name: str, owners: Path) -> None:
    """Each client is rounded by half a unit; both models are rounded to float32 besides."""
    more = {"algorithm": name, "num_server_rounds": 1}
    exact, near = play(keys_of(owners, 96, **more), nodes=3), play(keys_of(owners, bits, **more), nodes=3)
    weight = sum(TEN.values()) if name == "fedavg" else len(TEN)
    error = len(TEN) / weight * 2.0 ** -(exponent(bits, len(TEN), weight, C) + 1)
    assert error < C * len(TEN) * 2.0 ** -min(bits - 1, 54)
    largest = 0.0
    for one, other in zip(exact.arrays(1).values(), near.arrays(1).values(), strict=True):
        off = np.abs(one.astype(np.float64) - other)
        assert (off <= error + np.spacing(np.abs(one))).all()
        largest = max(largest, float(off.max()))
    assert (largest > 0) == (bits == 32)  # of 64 bits nothing is left in float32 here


@pytest.mark.parametrize("stage", ["query.secagg_shares", "train", "query.secagg_unmask"])
def test_a_node_that_is_lost_is_left_out_of_the_sum(
    stage: str, owners: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of(owners, 32, num_server_rounds=2, round_timeout=2.0)
    lost: Callable[[int, str, int], bool] = lambda node, kind, t: node == 1 and kind == stage and t == 2  # noqa: E731
    masked = play(keys, nodes=4, grid_type=losing(lost))
    assert not masked.rows[2]["skipped"]
    monkeypatch.setattr(Vector, "mask", lambda self, masks: None)
    silent: Callable[[int, str, int], bool] = lambda node, kind, t: node == 1 and kind == "train" and t == 2  # noqa: E731
    out = stage != "query.secagg_unmask"
    plain = play(keys, nodes=4, grid_type=losing(silent) if out else losing(lost))
    assert hashes(masked.rows) == hashes(plain.rows)
    assert bool(masked.rows[2]["quarantined"]) == out


def test_a_sum_takes_a_third_and_two_thirds_of_the_bytes(owners: Path) -> None:
    sizes = {}
    for bits in (96, 64, 32):
        played: Any = play(keys_of(owners, bits, num_server_rounds=1, model="mlp"), nodes=3, grid_type=Losing)
        (size,) = {
            sum(a.nbytes for a in wire.read_arrays(content["masked"]).values())
            for kind, _, content in played.grid.up
            if kind == "train"
        }
        sizes[bits] = size
    numbers = sum(a.size for a in played.arrays(1).values())
    assert sizes == {bits: numbers * bits // 8 for bits in (96, 64, 32)}


def test_the_grid_is_the_finest_on_which_no_sum_wraps() -> None:
    # 2^31 / (60,000 * 10) = 3579 = 2^11.8; 2^55 / 600,000 = 2^35.8.
    assert exponent(32, 10, 60_000, 10.0) == 11
    assert exponent(64, 10, 60_000, 10.0) == 35
    assert exponent(32, 3, 3, 0.75) == 29  # 2^31 / 2.25 = 2^29.83
    for bits, (weights, bound) in (
        (32, ([1, 7, 500], 3.0)),
        (64, ([2**20] * 5, 1e-3)),
        (32, ([1] * 1000, 1.0)),
    ):
        g = exponent(bits, len(weights), sum(weights), bound)
        worst = {"w": np.array([bound, -bound])}
        total = sum(rounded("r", worst, w, g, bits)["w"].astype(object) for w in weights)
        assert MOST[bits] / 2.0001 - len(weights) < total[0] == -total[1] <= MOST[bits]


def test_each_client_is_rounded_once_halves_to_even() -> None:
    change = {"w": np.array([0.1, -0.1, 2.5 / 12, 0.625 / 3, 1.25, -1.25, 1.75, 0.0])}
    got = rounded("r", change, 2, 2, 32)["w"]
    want = [round(Fraction(float(x)) * 8) for x in change["w"]]  # Python's round is to even, too
    assert got.tolist() == want == [1, -1, 2, 2, 10, -10, 14, 0]
    assert rounded("r", {"w": np.array([0.625, 0.875, -0.625])}, 1, 2, 32)["w"].tolist() == [2, 4, -2]
    assert got.dtype == np.int64
    with pytest.raises(FieldError, match="fit 32 bits"):
        rounded("r", {"w": np.array([2.0**30])}, 1, 2, 32)


def test_so_many_clients_that_the_grid_would_be_too_coarse_are_refused() -> None:
    assert exponent(64, 2**20, 2**20, 1.0)
    with pytest.raises(ConfigError, match=r"1,048,576 clients .* fit 32 bits .* may be off by 0.00049"):
        exponent(32, 2**20, 2**20, 1.0)


def test_a_node_that_counts_more_than_was_registered_voids_the_round(
    owners: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Larger weights than the grid was made for could have wrapped the sum."""
    from strategies.channels.sum_grid import SumGrid

    monkeypatch.setattr(SumGrid, "_weight", lambda self, contract, asked: sum(TEN.values()) - 1)
    rows = play(keys_of(owners, 32, num_server_rounds=1), nodes=3).rows
    assert rows[1]["skipped"]
    assert "weights of 184 at most" in rows[1]["quarantined"][0]["expected"]


def test_a_client_beyond_the_bound_is_left_out(owners: Path) -> None:
    keys = owners_config(owners, num_server_rounds=1, secagg=True) | {"max-update-norm": 1e-3}
    exact, near = play(keys, nodes=3).rows[1], play(keys | {"secagg-bits": 64}, nodes=3).rows[1]
    assert near["model_sha256"] == exact["model_sha256"]
    assert [q["client"] for q in near["quarantined"]] == [q["client"] for q in exact["quarantined"]] != []


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"secagg-bits": 48}, "Expected one of 32, 64, 96"),
        ({"secagg": False}, "secagg"),
    ],
    ids=str,
)
def test_what_has_no_bound_is_refused(more: dict[str, Any], why: str, owners: Path) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        check_names(read_config(keys_of(owners, 32) | more))
    assert '"secagg-bits"' in str(refused.value)


def test_a_model_with_counters_is_refused(owners: Path) -> None:
    with pytest.raises(ConfigError, match=r"tensors of integers, such as '2\.num_batches_tracked'"):
        play(keys_of(owners, 32, model="tests.support.personal:small_bn", num_server_rounds=1), nodes=3)
