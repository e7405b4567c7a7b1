"""The mean by coverage, by hand and against the plain mean."""

from __future__ import annotations

import numpy as np
import pytest

from task.errors import FieldError
from task.models.coverage import CoverageMean
from task.models.family import Axis, Levels, SubModel, SubModels, UnitGroup, Units, Widths
from task.numerics.arrays import Arrays, sha256
from task.numerics.reduce import Mean
from tests.task.test_reduce import merge

UNITS = Units((UnitGroup(3),), {"in": (Axis(0),), "out": (None, Axis(0))})
KEPT = {"a": [0, 1], "b": [1], "c": [0, 1]}
MODEL = {
    "in": np.array([1, 2, 3], np.float32),
    "out": np.array([[4, 5, 6]], np.float32),
    "bias": np.array([7], np.float32),
    "seen": np.array(8, np.int64),
}


class Table:
    """A family that is a table."""

    def __init__(self, kept: dict[str, list[int]], units: Units = UNITS) -> None:
        self.kept, self.units = kept, units

    def of(self, server_round: int, client: str) -> SubModel:
        return SubModel(self.units, (np.array(self.kept[client]),))

    def first(self, client: str = "") -> SubModel:
        raise NotImplementedError


def upload(client: str, value: float) -> Arrays:
    part = SubModels(Table(KEPT), 1, MODEL).received(client)
    return {name: np.full(a.shape, value, a.dtype) for name, a in part.items()}


def test_three_clients_by_hand() -> None:
    mean = CoverageMean(SubModels(Table(KEPT), 1, MODEL))
    for client, value, n in (("a", 10, 1), ("b", 20, 2), ("c", 30, 4)):
        mean.add(upload(client, value), n, client)
    got = mean.result()
    # unit 0: (1 * 10 + 4 * 30) / 5; unit 1: (10 + 2 * 20 + 4 * 30) / 7; nobody holds unit 2
    assert got["in"].tolist() == [26, np.float32(170 / 7), 3]
    assert got["out"].tolist() == [[26, np.float32(170 / 7), 6]]
    assert got["bias"].tolist() == [np.float32(170 / 7)]
    assert got["seen"].tolist() == 24  # 170 / 7 = 24.3, to the nearest
    assert {name: a.dtype for name, a in got.items()} == {name: a.dtype for name, a in MODEL.items()}


CLIENTS = {f"c{i}": i + 1 for i in range(6)}


def models(scale: float) -> dict[str, Arrays]:
    rng = np.random.default_rng(4)
    return {
        c: {n: (scale * rng.normal(size=a.shape)).astype(a.dtype) for n, a in MODEL.items()} for c in CLIENTS
    }


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e6])
def test_where_all_hold_everything_it_is_the_mean_bit_for_bit(scale: float) -> None:
    whole = {client: [0, 1, 2] for client in CLIENTS}
    covered, plain = CoverageMean(SubModels(Table(whole), 1, MODEL)), Mean(MODEL)
    for client, arrays in models(scale).items():
        covered.add(arrays, CLIENTS[client], client)
        plain.add(arrays, CLIENTS[client], client)
    assert sha256(covered.result()) == sha256(plain.result())


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e6])
def test_neither_order_nor_the_spread_over_partial_sums_changes_a_bit(scale: float) -> None:
    kept = {client: sorted({i % 3, (i * i) % 3}) for i, client in enumerate(CLIENTS)}
    parts = SubModels(Table(kept), 1, MODEL)
    uploads = {c: parts.of(c).take(arrays) for c, arrays in models(scale).items()}
    hashes = set()
    for groups in (["c0 c1 c2 c3 c4 c5"], ["c5 c0", "c3 c2 c4 c1"], ["c4", "c3", "c0", "c1", "c5", "c2"]):
        total = CoverageMean(parts)
        for group in groups:
            some = CoverageMean(parts)
            for client in group.split():
                some.add(uploads[client], CLIENTS[client], client)
            merge(total, some)
        hashes.add(sha256(total.result()))
    assert len(hashes) == 1


def test_a_term_beyond_the_exact_range_is_refused_and_leaves_no_coverage() -> None:
    mean = CoverageMean(SubModels(Table(KEPT), 1, MODEL))
    mean.add(upload("b", 1), 1, "b")
    with pytest.raises(FieldError, match="diverged"):
        mean.add(upload("a", 2.0**30), 4, "a")
    assert mean.result()["in"].tolist() == [1, 1, 3]


def test_nested_widths_by_hand() -> None:
    """Of four units a wide client has all, a middle one the first two, a narrow one the first."""
    units = Units((UnitGroup(4),), {"in": (Axis(0),), "out": (None, Axis(0))})
    model = {"in": np.array([1, 2, 3, 4], np.float32), "out": np.array([[5, 6, 7, 8]], np.float32)}
    width = {"wide": 1.0, "middle": 0.5, "narrow": 0.25}
    parts = SubModels(Widths(units, Levels((1.0, 0.5, 0.25), given=width.__getitem__), "nested"), 1, model)
    sent = {
        "wide": {"in": [10, 20, 30, 40], "out": [[1, 2, 3, 4]]},
        "middle": {"in": [13, 26], "out": [[4, 8]]},
        "narrow": {"in": [16], "out": [[7]]},
    }

    def mean(clients: dict[str, int]) -> dict[str, list[float]]:
        made = CoverageMean(parts)
        for client, n in clients.items():
            made.add({k: np.array(v, np.float32) for k, v in sent[client].items()}, n, client)
        return {name: a.tolist() for name, a in made.result().items()}

    # (10 + 2 * 13 + 3 * 16) / 6 = 14, (20 + 2 * 26) / 3 = 24; of the last two units the wide one's
    assert mean({"wide": 1, "middle": 2, "narrow": 3}) == {"in": [14, 24, 30, 40], "out": [[5, 6, 3, 4]]}
    # without the wide client the last two units stay
    assert mean({"middle": 1, "narrow": 1}) == {"in": [14.5, 26, 3, 4], "out": [[5.5, 8, 7, 8]]}
