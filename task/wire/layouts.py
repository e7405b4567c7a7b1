"""The arrays of a record for a run's model: their form, and what they are relative to."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from task.catalogue.record import SUB_MODEL, Layout, Record
from task.errors import WireError
from task.numerics.arrays import Arrays, NamedArrays, only
from task.numerics.moments import columns_like
from task.wire.checks import short

ROWS = "rows"  # name of the one array of a record with a phase's rows


@dataclass(frozen=True)
class Forms:
    """The forms of records for one model."""

    shared: Arrays  # the model's shared part: parameters and buffers
    parameters: tuple[str, ...]  # names of its parameters, in the model's order
    clients: int = 0  # number of clients that are online
    columns: int = 0  # number of columns of a table, as a model reads them
    # Of the records that have a row for each of a phase's rows: how many and how wide, by name.
    rows: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # Others by name: the parts that only a client knows, ``private``, ``whole`` and ``top``, and what comes
    # with the run's metrics, ``sums``, and ``shared-table``, what the server has in place of a model.
    others: Mapping[str, Arrays] = field(default_factory=dict)
    # Returns the form of a client's part of the model; "" = of the largest.
    part: Callable[[str], Arrays] | None = None

    def like(self, layout: Layout, client: str = "") -> Arrays:
        """Return arrays of the names, shapes and dtypes of a layout; of this client's, where they differ.

        Raises:
            KeyError: The layout is free, has a phase's rows, or is a part that is unknown here.
        """
        if layout.kind == "table":
            return columns_like(layout.of, self.columns)
        if layout.kind == "vector":
            sizes = {"columns": self._columns(), "clients": self.clients, "one": 1}
            sizes["features"] = self._features()
            size = sizes[layout.of]
            return {layout.of: np.zeros(size, np.float32)} if size is not None else {}
        if layout.of == "shared":
            return self.shared
        if layout.of == "parameters":
            return only(self.shared, self.parameters)
        if layout.of == "buffers":
            parameters = frozenset(self.parameters)
            return {n: a for n, a in self.shared.items() if n not in parameters}
        if layout == SUB_MODEL and self.part:
            return self.part(client)
        return self.others[layout.of]

    def _columns(self) -> int | None:
        """Return the inputs of the first layer; None if it is not linear."""
        first = self.shared[self.parameters[0]] if self.parameters else np.zeros(0)
        return first.shape[1] if first.ndim == 2 else None

    def _features(self) -> int | None:
        """Return the inputs of the last matrix of the model; None if it has none."""
        widths = [a.shape[1] for n in self.parameters if (a := self.shared[n]).ndim == 2]
        return widths[-1] if widths else None

    def of(self, records: Iterable[Record]) -> dict[str, Arrays]:
        """Return the arrays of several records by name; those of a free layout are left out."""
        return {r.name: self.of_record(r) for r in records if r.layout.kind != "free"}

    def of_record(self, record: Record, client: str = "") -> Arrays:
        """Return the arrays of a record, of this client's; raises what `like` does."""
        if record.layout.kind == "rows":
            return {ROWS: np.broadcast_to(np.zeros((), record.layout.of), self.rows[record.name])}
        like = self.like(record.layout, client)
        if not record.integers:
            return like
        return {n: as_integers(a, np.int32 if record.clipped else np.int64) for n, a in like.items()}


def row_entries(rows: Mapping[str, tuple[int, int]]) -> dict[str, list[int]]:
    """Return what a message says of `Forms.rows`."""
    return {f"{ROWS}:{name}": list(size) for name, size in rows.items()}


def rows_in(config: Mapping[str, object]) -> dict[str, tuple[int, int]]:
    """Return what `row_entries` made, from all entries of a message.

    Raises:
        WireError: It is not two whole numbers.
    """
    found: dict[str, tuple[int, int]] = {}
    for key, size in config.items():
        head, _, name = key.partition(":")
        if head != ROWS:
            continue
        if not isinstance(size, list) or len(size) != 2 or not all(type(n) is int and n >= 0 for n in size):
            raise WireError(f"training message: expected rows and width of {name!r}; got {short(size)}", name)
        found[name] = size[0], size[1]
    return found


def as_integers(a: np.ndarray, dtype: type) -> np.ndarray:
    """Return integers of a's shape that take no memory, for the form."""
    return np.broadcast_to(np.zeros((), dtype), a.shape)


def base_of(
    record: Record, received: Mapping[str, NamedArrays], parameters: Collection[str]
) -> Arrays | None:
    """Return, by array, what a record's arrays are relative to; an array without is a change itself.

    None means that the record is relative to one that is not among `received`.
    """
    if not record.base:
        return {}
    if record.base not in received:
        return None
    base = received[record.base]
    return {n: a for n, a in base.items() if not (record.per and n in parameters)}
