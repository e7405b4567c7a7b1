"""The mean by coverage: of each coordinate over the clients whose part of the model has it.

w_j <- w_j + sum_{k holds j} n_k Delta_kj / sum_{k holds j} n_k
     = sum_{k holds j} n_k w_kj / sum_{k holds j} n_k

A coordinate that no client holds is unchanged. To divide by all clients' n_k would shrink updates: where a
share r of the units is kept, those of the weights between two such layers by r^2.

=================  =============================  ==========================================
symbol             variable                       shape, dtype
=================  =============================  ==========================================
w_j                ``models.model``               as the model
w_kj               arrays of `add`                as the client's part
sum n_k w_kj       `Sum`                          exact, two int64 each
sum n_k            ``_coverage``                  int64, exact
=================  =============================  ==========================================

Both sums are of integers, so that neither order nor nodes change a bit; if all clients hold everything, the
result is `Mean`'s to the bit. The coverage needs no wire: who holds what follows from seeds,
names and registered widths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from task.numerics.arrays import Arrays, NamedArrays
from task.numerics.collect import Collect
from task.numerics.held import Foldable, dense
from task.numerics.reduce import Sum

if TYPE_CHECKING:
    from task.models.family import SubModels


class CollectPadded(Collect):
    """All clients' parts of a model side by side, with zeros for what a client does not have."""

    def __init__(self, models: SubModels) -> None:
        super().__init__(models.model)
        self._models = models

    def add(
        self, arrays: Foldable, weight: int, client: str, checked: Mapping[str, float] | None = None
    ) -> None:
        """Keep one client's part; raises what `Collect.add` does."""
        part, whole = self._models.of(client), dict[str, np.ndarray]()
        for name, a in arrays.items():
            like = self._models.model[name]
            whole[name] = np.zeros(like.shape, like.dtype)
            whole[name][part.index(name)] = dense(a)
        super().add(whole, weight, client, checked)


class CoverageMean(Sum):
    """Weighted mean of parts of a model, by coordinate; the model itself where there is none."""

    name: ClassVar[str] = "mean"

    def __init__(self, models: SubModels) -> None:
        super().__init__(models.model)
        self._models = models
        self._coverage = {name: np.zeros(a.shape, np.int64) for name, a in models.model.items()}

    def add(
        self, arrays: Foldable, weight: int, client: str, checked: Mapping[str, float] | None = None
    ) -> None:
        """Fold in one client's part; raises what `Sum.add` does."""
        peaks = checked or self.check(arrays, weight, client)
        part, whole = self._models.of(client), dict[str, np.ndarray]()
        for name, a in arrays.items():
            held, index = self._coverage[name], part.index(name)
            whole[name] = np.zeros(held.shape, self._dtype[name])
            whole[name][index] = dense(a)
            held[index] += weight
        super().add(whole, weight, client, peaks)

    def partial(self, *, last: bool = False) -> dict[str, Arrays]:
        """Return the exact sum and its coverage."""
        return {**super().partial(last=last), "held": self._coverage}

    def merge(
        self, records: Mapping[str, NamedArrays], weight: int, count: int, checked: Mapping[str, float]
    ) -> None:
        """Fold in another `partial`."""
        super().merge(records, weight, count, checked)
        for name, held in self._coverage.items():
            held += records["held"][name]

    def result(self) -> Arrays:
        """Return the means in the dtypes of the model."""
        model = self._models.model
        return {
            name: np.where(held > 0, self._value(name, np.maximum(held, 1)), model[name])
            for name, held in self._coverage.items()
        }
