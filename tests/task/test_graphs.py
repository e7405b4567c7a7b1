"""The graphs of peer-to-peer training: links by hand, weights in whole numbers, and published spectra."""

from __future__ import annotations

import math

import numpy as np
import pytest

from task.numerics.graphs import (
    DIRECTED,
    MOST_PARTS,
    ROUTES,
    Graph,
    connected,
    links,
    matrix,
    mixing,
    why_not,
)

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 31)


def graph(route: str, n: int, t: int = 1) -> Graph:
    return links(route, n, 4, t, np.random.default_rng(1))


def weights(route: str, n: int) -> np.ndarray:
    return matrix(*mixing(graph(route, n), range(n), directed=route in DIRECTED))


@pytest.mark.parametrize(
    ("route", "n", "want"),
    [
        ("ring", 2, ((1,), (0,))),
        ("star", 3, ((1, 2), (0,), (0,))),
        ("torus", 6, ((1, 2, 3), (0, 2, 4), (0, 1, 5), (0, 4, 5), (1, 3, 5), (2, 3, 4))),
        ("hypercube", 4, ((1, 2), (0, 3), (0, 3), (1, 2))),
        ("directed-ring", 3, ((1,), (2,), (0,))),
        ("exponential", 5, ((1, 2, 4), (0, 2, 3), (1, 3, 4), (0, 2, 4), (0, 1, 3))),
        ("complete", 1, ((),)),
    ],
)
def test_links_by_hand(route: str, n: int, want: Graph) -> None:
    assert links(route, n) == want


def test_one_peer_takes_another_link_each_round_and_agrees_after_log2_n() -> None:
    assert [links("one-peer", 8, t=t)[0] for t in (1, 2, 3, 4)] == [(1,), (2,), (4,), (1,)]
    product = np.eye(8)
    for t in (1, 2, 3):
        product = matrix(*mixing(links("one-peer", 8, t=t), range(8), directed=True)) @ product
    assert product == pytest.approx(np.full((8, 8), 1 / 8))


@pytest.mark.parametrize("route", ROUTES)
def test_weights_conserve_the_sum_and_undirected_ones_are_symmetric(route: str) -> None:
    rng = np.random.default_rng(3)
    for n in (n for n in SIZES if not why_not(route, n, 4)):
        there = [range(n), *(np.flatnonzero(rng.random(n) < 0.6).tolist() for _ in range(3))]
        for present in there:
            rows, D = mixing(graph(route, n), present, directed=route in DIRECTED)
            columns = [sum(row.get(j, 0) for row in rows) for j in range(n)]
            assert columns == [D] * n
            away = set(range(n)) - set(present)
            assert all(rows[i] == {i: D} for i in away)
            assert not any(j in away for i, row in enumerate(rows) for j in row if j != i)
            if route not in DIRECTED:
                assert all(rows[j][i] == c for i, row in enumerate(rows) for j, c in row.items())


@pytest.mark.parametrize(
    ("route", "n", "second", "last"),
    [
        ("complete", 8, 0, 0), ("hypercube", 8, 0.5, -0.5), ("ring", 8, 0.804738, -1 / 3),
        ("star", 8, 0.875, 0), ("ring", 16, 1 - 0.050747, None), ("torus", 16, 0.6, None),
        ("torus", 32, 1 - 0.117157, None), ("hypercube", 32, 1 - 1 / 3, None),
        ("ring", 32, 1 - 0.012810, None), ("star", 32, 1 - 0.03125, None),
    ],
)  # fmt: skip
def test_spectra(route: str, n: int, second: float, last: float | None) -> None:
    found = np.sort(np.linalg.eigvalsh(weights(route, n)))
    assert found[-1] == pytest.approx(1)
    assert found[-2] == pytest.approx(second, abs=1e-6)
    if last is not None:
        assert found[0] == pytest.approx(last, abs=1e-6)


def test_metropolis_weights_by_hand() -> None:
    """A path of three has degrees 1, 2, 1: each link weighs 1 / 3."""
    assert mixing(((1,), (0, 2), (1,)), range(3), directed=False) == (
        ({0: 2, 1: 1}, {0: 1, 1: 1, 2: 1}, {1: 1, 2: 2}), 3,
    )  # fmt: skip
    # a star of 8: the spokes 1 / 8, a leaf keeps 7 / 8
    assert mixing(links("star", 8), range(8), directed=False)[0][3] == {0: 1, 3: 7}


def test_weights_without_a_small_common_denominator_are_rounded_down_and_stay_symmetric() -> None:
    """Stars of 2, 3, ... leaves in a chain of hubs have degrees whose least common multiple is huge."""
    to: list[set[int]] = []
    hubs: list[int] = []
    for leaves in range(2, 24):
        hubs.append(len(to))
        to += [set() for _ in range(leaves + 1)]
        for leaf in range(hubs[-1] + 1, len(to)):
            to[leaf].add(hubs[-1])
            to[hubs[-1]].add(leaf)
    rows, D = mixing(tuple(tuple(sorted(s)) for s in to), range(len(to)), directed=False)
    assert D == MOST_PARTS
    assert all(rows[j][i] == c > 0 for i, row in enumerate(rows) for j, c in row.items())
    assert {sum(row.values()) for row in rows} == {D}


@pytest.mark.parametrize("n", [6, 9, 20])
def test_a_regular_graph_is_connected_and_the_seeds(n: int) -> None:
    drawn = [links("regular", n, 4, rng=np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert {len(to) for g in drawn for to in g} == {4}
    assert all(connected(g) and i not in to for g in drawn for i, to in enumerate(g))
    assert drawn[0] == drawn[1]
    assert n == 6 or drawn[0] != drawn[2]
    assert not connected(((1,), (0,), (3,), (2,)))


@pytest.mark.parametrize(
    ("route", "n", "degree", "why"),
    [
        ("torus", 7, 0, "nearest to 7: 6 or 8"), ("torus", 2, 0, "nearest to 2: 4"),
        ("hypercube", 10, 0, "nearest to 10: 8 or 16"), ("regular", 5, 3, "nearest to 5: 4 or 6"),
        ("regular", 3, 4, "nearest to 3: 5"), ("regular", 10, 1, "expected 2 or more"),
    ],
)  # fmt: skip
def test_an_impossible_size_is_named_with_the_nearest_that_work(
    route: str, n: int, degree: int, why: str
) -> None:
    assert why in why_not(route, n, degree)


@pytest.mark.parametrize("route", sorted(set(ROUTES) - {"torus", "hypercube", "regular"}))
def test_the_other_routes_take_any_number_of_clients(route: str) -> None:
    assert not any(why_not(route, n) for n in SIZES)
    assert all(math.isclose(float(weights(route, n).sum()), n) for n in SIZES)
