"""Arrays of clients that train together, in the memory of their device: summed there, or copied on demand.

The integers of an exact sum are the same on every device: a float64 addition is rounded to the nearest, and
integer additions are exact in any order. So a sum that is made here has the bits of `task.numerics.reduce`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from task.numerics.arrays import blocks
from task.numerics.terms import HIGH_BITS, HIGH_GRID, LOW_BITS, LOW_GRID

if TYPE_CHECKING:  # importing torch takes seconds
    import torch

AT_ONCE = 1 << 22  # numbers that are float64 at the same time


class RowStack:
    """A floating tensor [K, ...] with a row for each client; it must not change any more."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach()
        self.shape = tuple(tensor.shape[1:])
        self.dtype = np.dtype(str(tensor.dtype).removeprefix("torch."))

    def __len__(self) -> int:
        """Return K."""
        return len(self.tensor)

    @cached_property
    def host(self) -> np.ndarray:
        """All rows, [K, ...], copied from the device."""
        copied: np.ndarray = self.tensor.cpu().numpy()
        return copied

    @cached_property
    def peaks(self) -> list[float]:
        """Each row's largest absolute value; NaN or infinity if any element is."""
        if not self.tensor.numel():
            return [0.0] * len(self)
        low, high = self.tensor.reshape(len(self), -1).aminmax(dim=1)
        return high.maximum(-low).tolist()  # both carry NaN through

    def units(self, weights: Sequence[int], *, wide: bool) -> tuple[np.ndarray | None, np.ndarray]:
        """Return sum_k weight_k x_k as int64 counts of the units of an exact sum, in the shape of a row.

        If `wide`, there are counts of the coarse units and of the fine ones, else of the fine ones alone,
        and no |x| may exceed 1. A row of weight 0 may hold anything.
        """
        try:
            high, low = self._units(self.tensor, weights, wide=wide)
        except RuntimeError:  # the device is short of memory
            high, low = self._units(self.tensor.cpu(), weights, wide=wide)
        return None if high is None else high.reshape(self.shape), low.reshape(self.shape)

    @staticmethod
    def _units(
        tensor: torch.Tensor, weights: Sequence[int], *, wide: bool
    ) -> tuple[np.ndarray | None, np.ndarray]:
        rows = tensor.reshape(len(tensor), -1)
        by = rows[:, :0].long().new_tensor(weights).unsqueeze(1)  # int64
        low, high = (by.new_empty(rows.shape[1]) for _ in range(2))
        for block in blocks(rows.shape[1], max(AT_ONCE // len(rows), 1)):
            # As in `task.numerics.reduce._fold`, but that the bits of the grids are taken off at once.
            x = rows[:, block].double()
            if wide:
                coarse = x + HIGH_GRID
                x = x + ((LOW_GRID + HIGH_GRID) - coarse)  # not in place: float64 rows are x itself
                high[block] = ((coarse.view(by.dtype) - HIGH_BITS) * by).sum(0)
            else:
                x = x + LOW_GRID
            low[block] = ((x.view(by.dtype) - LOW_BITS) * by).sum(0)
        return high.cpu().numpy() if wide else None, low.cpu().numpy()


@dataclass(frozen=True, eq=False)
class StackRow:
    """The array of client number k in a `RowStack`."""

    stack: RowStack
    k: int

    @property
    def shape(self) -> tuple[int, ...]:
        """That of `dense`."""
        return self.stack.shape

    @property
    def dtype(self) -> np.dtype:
        """That of `dense`."""
        return self.stack.dtype

    @property
    def size(self) -> int:
        """That of `dense`."""
        return int(np.prod(self.shape))

    @property
    def peak(self) -> float:
        """The largest absolute value; NaN or infinity if any element is."""
        return self.stack.peaks[self.k]

    def dense(self) -> np.ndarray:
        """Return the array, a part of the copy of all rows."""
        row: np.ndarray = self.stack.host[self.k]
        return row


def rows_of(tensors: dict[str, torch.Tensor]) -> list[dict[str, StackRow]]:
    """Return each client's rows of tensors [K, ...], by name."""
    stacks = {name: RowStack(t) for name, t in tensors.items()}
    clients = len(next(iter(stacks.values()))) if stacks else 0
    return [{name: StackRow(stack, k) for name, stack in stacks.items()} for k in range(clients)]
