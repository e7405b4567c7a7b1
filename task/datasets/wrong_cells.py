"""Everything that is wrong in the cells of a table, for one error that reports it at once."""

from collections import Counter
from collections.abc import Collection

from task.errors import local

SHOWN = 5  # columns with the same remedy


class WrongCells:
    """By remedy and column, the first wrong cell and the number of all; the counts stay on this machine."""

    def __init__(self) -> None:
        self._first: dict[str, dict[str, str]] = {}
        self._count: Counter[tuple[str, str]] = Counter()

    def __bool__(self) -> bool:
        return bool(self._first)

    def add(self, column: str, said: str, todo: str) -> None:
        """Note a cell; `said` has its place, what was expected and what was found."""
        self._first.setdefault(todo, {}).setdefault(column, said)
        self._count[todo, column] += 1

    def has(self, todo: str) -> bool:
        """Return whether a cell has this remedy."""
        return todo in self._first

    def pop(self, todo: str, columns: Collection[str]) -> str:
        """Forget these columns' cells with a remedy; return what was said of the first, or ""."""
        found = self._first.get(todo, {})
        gone = [found.pop(name) for name in list(found) if name in columns]
        if not found:
            self._first.pop(todo, None)
        return gone[0] if gone else ""

    def __str__(self) -> str:
        return " ".join(f"{self._cells(todo)}. {todo}." for todo in self._first)

    def _cells(self, todo: str) -> str:
        columns = self._first[todo]
        said = []
        for column, first in list(columns.items())[:SHOWN]:
            more = self._count[todo, column] - 1
            said.append(first + (local(f" (and {more} more)") if more else ""))
        if len(columns) > SHOWN:
            said.append(f"and {len(columns) - SHOWN} more columns")
        return "; ".join(said)
