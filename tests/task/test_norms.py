"""The bound on a client's update: what it measures, on the node and on the server, for every algorithm."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.record import MODEL_UP, PARAMETERS, Record
from task.config.read import defaults
from task.errors import FieldError
from task.numerics.arrays import Arrays
from task.numerics.reduce import Sum
from task.resolve.effective import unmet
from task.wire.layouts import Forms
from task.wire.norms import NormBound
from tests.support.federation import SIZES, owners_config, play, read_by, write_owners
from tests.support.liar import liar, times
from tests.support.shapes import by_shape
from tests.test_catalogue import ACTIVE

MODEL: Arrays = {
    "w": np.array([1.0, 2.0], np.float32),
    "running": np.array([5.0], np.float32),
    "seen": np.array(3, np.int64),
}
BOUND = NormBound(5.0, MODEL, frozenset({"w"}))
UPDATE = ALGORITHMS["fednova"].up[0]
GRADIENT = Record("gradient", PARAMETERS, "g")


def arrays(w: tuple[float, float], running: float = 5.0, seen: int = 3) -> Arrays:
    return {
        "w": np.array(w, np.float32),
        "running": np.array([running], np.float32),
        "seen": np.array(seen, np.int64),
    }


@pytest.mark.parametrize(
    ("field", "good", "bad", "norm"),
    [
        (MODEL_UP, arrays((4.0, 6.0)), arrays((4.0, 6.1)), "5.08"),  # |(3, 4)| = 5
        (MODEL_UP, arrays((1.0, 2.0), 10.0), arrays((1.0, 2.0), 10.1), "5.1"),
        (MODEL_UP, arrays((1.0, 2.0), 5.0, 10**9), arrays((-3.0, 6.0)), "5.65"),
        (GRADIENT, {"w": np.array([3.0, 4.0])}, {"w": np.array([3.0, 4.1])}, "5.08"),
        (UPDATE, arrays((1.5, 2.0)), arrays((1.5, 2.05)), "5.08"),  # times a step-weight of 2
    ],
)
def test_norms_by_hand(field: Record, good: Arrays, bad: Arrays, norm: str) -> None:
    row = {"num-examples": 7, "step-weight": 2.0}
    BOUND.check(field, good, [row])
    with pytest.raises(FieldError, match=f'"max-update-norm".*got {norm}') as caught:
        BOUND.check(field, bad, [row])
    assert caught.value.field == field.name
    NormBound(0.0, MODEL, frozenset({"w"})).check(field, bad, [row])  # 0 = no bound


def check_sum(field: Record, total: Sum, weights: list[int], rows: list[dict[str, float]]) -> None:
    sent = total.partial()
    BOUND.check(field, sent["high"], rows, weights, sent["low"])


def moved(field: Record, step: np.ndarray, row: dict[str, Any]) -> Arrays:
    """Return what a client sends whose parameters moved by a step."""
    w = step / row["step-weight"] if field is UPDATE else step
    sent = {"w": w} if field is GRADIENT else arrays((0, 0)) | {"w": w}
    if field is MODEL_UP:
        sent["w"] = MODEL["w"] + w
    return sent | {"w": sent["w"].astype(np.float32)}


@pytest.mark.parametrize("field", [MODEL_UP, UPDATE, GRADIENT], ids=lambda f: f.name)
@pytest.mark.parametrize(("length", "good"), [(4.99, True), (5.05, False)])
def test_clients_that_move_alike_have_their_own_bound_in_a_sum(
    field: Record, length: float, good: bool
) -> None:
    rows = [{"num-examples": n, "step-weight": a} for n, a in ((1, 2.0), (3, 1.0), (2, 4.0))]
    total = Sum({"w": MODEL["w"]} if field is GRADIENT else MODEL)
    for row in rows:
        total.add(moved(field, np.array([0.6, 0.8]) * length, row), row["num-examples"], "")
    with nullcontext() if good else pytest.raises(FieldError, match=r"got 5\.05"):
        check_sum(field, total, [row["num-examples"] for row in rows], rows)


@pytest.mark.parametrize("field", [MODEL_UP, UPDATE, GRADIENT], ids=lambda f: f.name)
def test_what_keeps_the_bound_one_by_one_keeps_it_merged(field: Record) -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        rows = [
            {"num-examples": int(n), "step-weight": float(a)}
            for n, a in zip(rng.integers(1, 50, 4), rng.integers(1, 9, 4), strict=True)
        ]
        like = {"w": MODEL["w"]} if field is GRADIENT else MODEL
        total = Sum(like)
        for row in rows:
            step = rng.normal(size=2)
            step *= 5.0 / np.linalg.norm(step)  # at the bound
            total.add(moved(field, step, row), row["num-examples"], "")
        weights = [row["num-examples"] for row in rows]
        check_sum(field, total, weights, rows)
        total.add({n: a + 10 * a.dtype.type(5) * sum(weights) for n, a in like.items()}, weights[0], "")
        with pytest.raises(FieldError, match="max-update-norm"):
            check_sum(field, total, [*weights, weights[0]], [*rows, rows[0]])


@pytest.fixture
def owners(tmp_path: Path) -> Path:
    write_owners(tmp_path / "owners.npz")
    return tmp_path / "owners.npz"


def keys(owners: Path, name: str, **more: Any) -> dict[str, Any]:
    model = "mlp" if ALGORITHMS[name].personal else "logistic"
    given = {"num_server_rounds": 3, "model": model, "max_update_norm": 1e3, "local_test_fraction": 0.25}
    return read_by(owners_config(owners, algorithm=name, **given, **more) | ACTIVE[name])


# Whatever a client that votes by signs sends, its vote is +1 or -1.
VOTES = {n for n, a in ALGORITHMS.items() if any(r.code for r in a.up)}


BOUNDED = {n for n in ALGORITHMS if unmet("max-update-norm", {**defaults(), "algorithm": n}) is None}
# Not of clients that train several times in a round, or when they are there: each time another node may have
# a client.
ONCE = {n for n in BOUNDED if not ((a := ALGORITHMS[n]).pooled or a.repeats or a.asynchronous)}


@pytest.mark.parametrize("name", sorted(BOUNDED))
def test_each_record_that_is_summed_or_a_model_is_held_to_the_bound(name: str) -> None:
    """A record that no norm bounds would let one client move the others' sum as far as it likes."""
    entry = ALGORITHMS[name]
    assert entry.up
    for contract in (entry, *entry.phases.values()):
        received = dict.fromkeys((r.name for r in contract.down), MODEL)
        bound = NormBound(5.0, MODEL, frozenset({"w"}), others=received)
        for r in contract.up:
            if r.reduce == "collect" and r.layout.kind != "part":
                continue  # as FedFomo's affinities, by which a client chooses what it gets itself
            sent = {n: a + a.dtype.type(100) for n, a in Forms(MODEL, ("w",)).of_record(r).items()}
            with pytest.raises(FieldError, match="max-update-norm"):
                bound.check(r, sent, [{"num-examples": 1, r.per: 1.0}])


@pytest.mark.parametrize("name", by_shape((n,) for n in sorted(ONCE - VOTES)))
def test_an_update_beyond_the_bound_is_its_senders_own_fault(name: str, owners: Path) -> None:
    played = play(keys(owners, name), nodes=len(SIZES), tamper=liar(arrays=times(1e6), rounds=[2]))
    first, second, third = played.rows[1:]
    assert (first["quarantined"], third["quarantined"]) == ([], [])
    (line,) = second["quarantined"]
    assert "max-update-norm" in line["expected"]
    assert [row["answered"] for row in (first, second, third)] == [5, 4, 5]
    assert all(np.abs(a).max() < 1e3 for a in played.arrays(3).values() if a.size)


@pytest.mark.parametrize("name", ["fedavg", "fednova", "fedsgd", "median"])
def test_a_node_of_several_clients_leaves_the_one_out(name: str, owners: Path) -> None:
    attack = {"attack__kind": "scale", "attack__scale": 1e6, "attack__fraction": 0.2}
    row = play(keys(owners, name, **attack), nodes=1).rows[1]
    (line,) = row["quarantined"]
    assert "max-update-norm" in line["expected"]
    assert row["answered"] == 4


def test_a_merged_sum_beyond_the_bound_is_refused_by_the_server(owners: Path) -> None:
    def swell(a: Arrays) -> Arrays:
        return {n: np.full_like(x, 2**30) for n, x in a.items()}  # 1024, of all its clients

    given = keys(owners, "fedavg") | {"max-update-norm": 50.0}
    played = play(given, nodes=2, tamper=liar(arrays=swell, rounds=[2]))
    lines = played.rows[2]["quarantined"]
    assert lines
    assert all("max-update-norm" in line["expected"] for line in lines)
    assert 0 < played.rows[2]["answered"] == 5 - len(lines)


def test_a_bound_that_nobody_reaches_changes_no_bit(owners: Path) -> None:
    with_it, without = (
        play(keys(owners, "fedavg") | {"max-update-norm": most}, nodes=nodes)
        for most, nodes in ((1e3, 2), (0.0, 3))
    )
    hashes = [[row["model_sha256"] for row in played.rows] for played in (with_it, without)]
    assert hashes[0] == hashes[1]
