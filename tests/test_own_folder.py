"""`tests.own_folder` says where the runs of one algorithm differ."""

from __future__ import annotations

import pytest

from tests.own_folder import WAYS, Found, line

ONE: Found = ("a" * 64, "numbers")


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        (ONE, "same"),
        (("b" * 64, "numbers"), "models differ"),
        (("a" * 64, ""), "numbers differ"),
        ((), "failed"),
    ],
)
def test_a_difference_in_one_way_is_named(other: Found, verdict: str) -> None:
    same, words = line("krum", dict(zip(WAYS, (ONE, other, ONE), strict=True)))
    assert same is (verdict == "same")
    assert words.endswith(f"  {verdict}")
