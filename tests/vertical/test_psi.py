"""Private set intersection: the very intersection, points on the curve, and nothing else to see."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from task.errors import WireError
from task.vertical import psi


def intersect(*sets: list[str]) -> list[list[str]]:
    """Return what each party finds that all have, by the steps of the protocol."""
    size, secrets = max(map(len, sets)), [psi.new_secret() for _ in sets]
    made = [psi.own_points(ids, size, b"salt", s) for ids, s in zip(sets, secrets, strict=True)]
    masked = [points for points, _ in made]
    for owner in range(len(sets)):
        for other in range(len(sets)):
            if other != owner:
                masked[owner] = psi.masked((row.tobytes() for row in masked[owner]), secrets[other])
    places = psi.common_places(masked)
    numbers = [made[k][1][found] for k, found in enumerate(places)]
    return [sorted(ids[i] for i in found if i >= 0) for ids, found in zip(sets, numbers, strict=True)]


@pytest.mark.parametrize(
    "sets",
    [
        (["a", "b", "c"], ["d", "c", "a", "e"]),
        (["a"], ["b"]),
        (["Zoë", "Ωmega", "x"], ["x", "Zoë"], ["Zoë", "y", "Ωmega"]),
        (["1", "2"], ["2", "1"], ["1", "2"]),
    ],
)
def test_all_parties_find_the_very_intersection(sets: tuple[list[str], ...]) -> None:
    want = sorted(set.intersection(*map(set, sets)))
    assert intersect(*sets) == [want] * len(sets)


def test_points_lie_on_the_curve_and_masks_commute() -> None:
    """A digest taken as it comes is on the twist half of the time, which masking does not hide."""
    points = [psi.point_of(str(i).encode(), b"s") for i in range(60)]
    assert len(set(points)) == 60
    numbers = [int.from_bytes(p, "little") for p in points]
    assert all(psi.on_curve(u) and u < psi.P for u in numbers)
    assert not all(psi.on_curve(u) for u in range(2, 60))
    first, *rest = [psi.new_secret() for _ in range(3)]
    found = set()
    for order in permutations([first, *rest]):
        a = psi.masked(points[:3], order[0])
        for secret in order[1:]:
            a = psi.masked((row.tobytes() for row in a), secret)
        found.add(a.tobytes())
    assert len(found) == 1
    assert all(psi.on_curve(int.from_bytes(row.tobytes(), "little")) for row in psi.masked(points, first))


def test_a_set_is_filled_up_shuffled_and_another_one_with_each_secret() -> None:
    ids = [str(i) for i in range(9)]
    one, numbers = psi.own_points(ids, 12, b"s", psi.new_secret())
    other, _ = psi.own_points(ids, 12, b"s", psi.new_secret())
    assert one.shape == (12, 32)
    assert sorted(numbers.tolist()) == [-1, -1, -1, *range(9)]
    assert not {row.tobytes() for row in one} & {row.tobytes() for row in other}


def test_a_point_of_low_order_is_refused() -> None:
    with pytest.raises(WireError, match="low order"):
        psi.masked([bytes(32)], psi.new_secret())


def test_common_places_are_by_set() -> None:
    a = np.arange(96, dtype=np.uint8).reshape(3, 32)
    places = psi.common_places([a, a[[2, 0]]])
    assert [found.tolist() for found in places] == [[0, 2], [0, 1]]


@pytest.mark.parametrize("more", [0, psi.P, 1 << 255])  # each u has other bytes, too
def test_points_that_any_exponent_takes_to_zero_are_known(more: int) -> None:
    for u in psi._LOW_ORDER:
        if u + more < 1 << 256 and (more != psi.P or u < 19):
            point = (u + more).to_bytes(32, "little")
            with pytest.raises(WireError, match="low order"):
                psi.masked([point], psi.new_secret())
            assert psi.has_low_order(np.frombuffer(point, np.uint8).reshape(1, 32))
    ids = psi.masked([psi.point_of(b"anna", b"salt")], psi.new_secret())
    assert not psi.has_low_order(ids)
