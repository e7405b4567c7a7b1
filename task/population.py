"""Names of clients that follow a pattern, so that a population of a million takes no memory."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import overload

_PREFIX = "client-"
LONGEST_NAME = 200  # letters of a client's name


def is_name(name: object) -> bool:
    """Return whether a client can be called so: 1 to `LONGEST_NAME` letters that print."""
    return isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable()


class ClientNames(Sequence[str]):
    """``client-0`` .. ``client-9`` and the like, padded with zeros and so sorted, made when asked for."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._digits = len(str(count - 1))

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClientNames) and other._count == self._count

    def __hash__(self) -> int:
        return hash((ClientNames, self._count))

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._name(i) for i in range(self._count)[index]]
        return self._name(range(self._count)[index])

    def __iter__(self) -> Iterator[str]:
        return map(self._name, range(self._count))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.number(name) is not None

    def number(self, name: str) -> int | None:
        """Return the position of a name, None if it is not one of these."""
        digits = name.removeprefix(_PREFIX)
        padded = name.startswith(_PREFIX) and len(digits) == self._digits and digits.isascii()
        return int(digits) if padded and digits.isdigit() and int(digits) < self._count else None

    def _name(self, i: int) -> str:
        return f"{_PREFIX}{i:0{self._digits}d}"


def numbering(names: Sequence[str]) -> Callable[[str], int | None]:
    """Return what tells a name's position, or None, without a search."""
    return names.number if isinstance(names, ClientNames) else {n: i for i, n in enumerate(names)}.get


def listed(text: str) -> tuple[str, ...]:
    """Return the names in a text such as ``ward-1,ward-3``, each once; none for an empty text."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(","))) if text.strip() else ()


def some(names: Iterable[object]) -> str:
    """Return names as a line has them: the first five, and how many more there are."""
    listed = [str(name) for name in names]
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
