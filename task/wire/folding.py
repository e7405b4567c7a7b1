"""Check one client's upload and fold it in: the node does it with its clients', the server with lone ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from task.numerics.arrays import Arrays
from task.numerics.reduce import REDUCTIONS, Reduction
from task.spec.entry import Algorithm
from task.wire.checks import check_arrays
from task.wire.messages import NUM_EXAMPLES
from task.wire.norms import NormBound


class Folding:
    """The reductions of what goes up in one message.

    Args:
        entry: The message's contract.
        like: Per upward field, arrays of the expected names, shapes and dtypes.
        bound: On a client's update.
    """

    def __init__(
        self, entry: Algorithm, like: Mapping[str, Mapping[str, np.ndarray]], bound: NormBound
    ) -> None:
        self.entry, self.like, self.bound = entry, like, bound
        self.reductions: dict[str, Reduction] = {f.name: REDUCTIONS[f.reduce](like[f.name]) for f in entry.up}

    def weight(self, row: Mapping[str, float]) -> int:
        """Return the weight of a client with these scalars."""
        return int(row[NUM_EXAMPLES]) if self.entry.weight == "examples" else 1

    def checked(
        self, client: str, arrays: Mapping[str, Arrays], row: Mapping[str, float]
    ) -> Callable[[], None]:
        """Check an upload; return what folds it in, which cannot fail for the upload's sake.

        Args:
            client: Its name.
            arrays: By field, for every field of the contract.
            row: The client's scalars, which are checked already.

        Raises:
            FieldError: Something is not as expected; nothing was folded then.
        """
        found, weight = {}, self.weight(row)
        for f in self.entry.up:
            peaks = check_arrays(f.name, arrays[f.name], self.like[f.name])
            found[f.name] = self.reductions[f.name].check(arrays[f.name], weight, client, peaks)
            self.bound.check(f, arrays[f.name], row)

        def fold() -> None:
            for name, reduction in self.reductions.items():
                reduction.add(arrays[name], weight, client, found[name])

        return fold

    def results(self) -> dict[str, Arrays]:
        """Return the reduced arrays by field."""
        return {name: reduction.result() for name, reduction in self.reductions.items()}
