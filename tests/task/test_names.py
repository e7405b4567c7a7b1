"""Names by pattern: like a list of them, without the list."""

from __future__ import annotations

import pytest

from task.population import ClientNames, numbering


@pytest.mark.parametrize(
    ("count", "first", "last"), [(1, "client-0", "client-0"), (11, "client-00", "client-10")]
)
def test_they_are_a_sorted_sequence(count: int, first: str, last: str) -> None:
    names = ClientNames(count)
    assert (len(names), names[0], names[-1]) == (count, first, last)
    assert list(names) == sorted(set(names)) == names[:]
    assert names == ClientNames(count)
    assert hash(names) == hash(ClientNames(count))
    assert names != ClientNames(count + 1)
    with pytest.raises(IndexError):
        names[count]


@pytest.mark.parametrize("names", [ClientNames(100), tuple(ClientNames(100))], ids=["pattern", "listed"])
def test_a_name_tells_its_number(names: ClientNames | tuple[str, ...]) -> None:
    number = numbering(names)
    assert [number(name) for name in names] == list(range(100))
    for wrong in ("client-100", "client-7", "client-007", "client-", "ward-07", "client-٣٣", "client--1", ""):
        assert number(wrong) is None
        assert wrong not in names
