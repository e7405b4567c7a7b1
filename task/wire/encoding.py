"""How the records of a contract travel: as they are, unless a feature encodes them."""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from task.catalogue.entry import Algorithm
from task.catalogue.record import Record
from task.numerics.arrays import Arrays, NamedArrays
from task.numerics.held import Foldable
from task.wire.messages import ClientUpdate

SUM_BYTES = 12  # of a number in the sum over a node's clients: an int64 and an int32


class OwnReduction(Protocol):
    """A reduction that an encoding brings; its methods are those of `task.numerics.reduce`."""

    name: ClassVar[str]

    def check(
        self, arrays: Foldable, weight: int, client: str, peaks: Mapping[str, float] | None = None
    ) -> Any:
        """Check a client's arrays."""

    def add(self, arrays: Foldable, weight: int, client: str, peaks: Any = None) -> None:
        """Add a client's arrays."""

    def check_merge(self, records: Mapping[str, NamedArrays], count: int) -> Any:
        """Check a node's partial of this number of clients."""

    def merge(self, records: Mapping[str, NamedArrays], weight: int, count: int, checked: Any) -> None:
        """Add a node's partial."""

    def partial(self) -> dict[str, Arrays]:
        """Return the reduction so far, as it travels."""

    def result(self) -> Arrays:
        """Return the reduced arrays."""


class Encoding:
    """The records travel as they are; the base of every other encoding."""

    opaque: ClassVar[bool] = False  # whether the server cannot read the sums of a node's clients

    def forwarding(self, entry: Algorithm, clients: int) -> Algorithm:
        """Return the contract of a node's reply for this number of clients."""
        return entry

    def on_wire(self, record: Record, upload: ClientUpdate) -> Arrays:
        """Return a client's record in its form on the wire."""
        return upload.arrays[record.name]

    def decode(self, client: str, record: Record, arrays: Arrays) -> Arrays:
        """Return a record as its client meant it, given its form on the wire.

        Raises:
            FieldError: It is not of that form.
        """
        return arrays

    def check_sum(self, record: Record, partial: Mapping[str, NamedArrays], clients: int) -> None:
        """Check a node's sum over this number of clients.

        Raises:
            FieldError: Such clients cannot have it.
        """

    def reduction(self, record: Record, like: NamedArrays) -> OwnReduction | None:
        """Return a reduction for records of this form; None = the one that the contract names."""
        return None

    def most_bytes(self, record: Record, like: NamedArrays) -> int:
        """Return the bytes that a client's record of this form has at most."""
        return sum(a.nbytes for a in like.values())

    def most_sum_bytes(self, record: Record, like: NamedArrays) -> int:
        """Return the bytes that a node's sum of records of this form has at most."""
        return sum(max(a.nbytes, SUM_BYTES * a.size) for a in like.values())


PLAIN = Encoding()
