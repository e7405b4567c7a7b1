"""Model families: which part of the model a client trains; here the random parts of federated dropout.

A model's hidden *units* (outputs of dense layers, filters of convolutions) come in groups, one for each
layer. A sub-model keeps some units of each group; its arrays are slices of the model's, with all that a unit
has: its row of weights and its bias, its parameters and statistics in a normalisation, and the columns that
read it. A family says which units a client keeps in a round. `task.models.units` finds a module's groups.

Federated dropout: Caldas, Konecny, McMahan, Talwalkar 2018, arXiv 1812.07210. Each client keeps
u = max(1, floor(r U)) of the U units of each group, drawn without replacement for each client and round.

========  =====================  ==========================================
symbol    variable               meaning
========  =====================  ==========================================
r         ``dropout-width``      share of the units that are kept
U, u      `UnitGroup.size`, `count`  units of a group, and how many are kept
========  =====================  ==========================================

The draw needs no wire: it follows from (train seed, round, client name).

>>> units = Units((UnitGroup(3),), {"0.weight": (Axis(0), None), "2.weight": (None, Axis(0))})
>>> part = SubModel(units, (np.array([0, 2]),))
>>> part.take({"0.weight": np.array([[1, 2], [3, 4], [5, 6]]), "2.weight": np.array([[7, 8, 9]])})
{'0.weight': array([[1, 2],
       [5, 6]]), '2.weight': array([[7, 9]])}
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from task.numerics import seeds
from task.numerics.arrays import Arrays, NamedArrays

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class UnitGroup:
    """Units of one layer that can be left out."""

    size: int  # U
    # As many of each block of consecutive units are kept: a group normalisation's groups stay alike.
    blocks: int = 1

    def count(self, width: float) -> int:
        """Return u for a share `width` of the units."""
        # 0.29 * 100 is below 29 in floating point.
        return self.blocks * max(1, math.floor(width * (self.size // self.blocks) + 1e-9))


@dataclass(frozen=True)
class Axis:
    """An axis of a tensor that runs over the units of a group."""

    group: int
    repeat: int = 1  # consecutive positions for each unit: the pixels of a channel that was flattened


@dataclass(frozen=True)
class Units:
    """Which units of a model can be left out, and which tensors have them."""

    groups: tuple[UnitGroup, ...]
    # By tensor, the groups of its first two axes; None = whole, as are tensors that are not named.
    axes: Mapping[str, tuple[Axis | None, ...]]


@dataclass(frozen=True, eq=False)
class SubModel:
    """A part of a model: some units of each group."""

    units: Units
    kept: tuple[Indices, ...]  # by group, in rising order

    def index(self, name: str) -> Any:
        """Return what selects the part's entries of a tensor, for NumPy's brackets."""
        axes = self.units.axes.get(name, ())
        found = iter(np.ix_(*(self._positions(axis) for axis in axes if axis)))
        return tuple(next(found) if axis else slice(None) for axis in axes) or ...

    def _positions(self, axis: Axis) -> Indices:
        kept = self.kept[axis.group]
        return (kept[:, None] * axis.repeat + np.arange(axis.repeat)).reshape(-1)

    def take(self, model: NamedArrays) -> Arrays:
        """Return the part's arrays."""
        return {name: a[self.index(name)] for name, a in model.items()}


class ModelFamily(Protocol):
    """Which part of the model each client trains."""

    def of(self, server_round: int, client: str) -> SubModel:
        """Return a client's part in a round."""

    def first(self) -> SubModel:
        """Return a part of the size that clients train."""


@dataclass(frozen=True)
class FederatedDropout:
    """Parts of one size, drawn for each client and round."""

    units: Units
    width: float  # r
    seed: int  # the run's for training

    def of(self, server_round: int, client: str) -> SubModel:
        """Draw a client's part in a round."""
        rng = seeds.rng_for(self.seed, seeds.DROPOUT, server_round, client)
        return SubModel(self.units, tuple(self._draw(rng, group) for group in self.units.groups))

    def _draw(self, rng: np.random.Generator, group: UnitGroup) -> Indices:
        size, count = group.size // group.blocks, group.count(self.width) // group.blocks
        drawn = [b * size + rng.choice(size, count, replace=False) for b in range(group.blocks)]
        return np.sort(np.concatenate(drawn))

    def first(self) -> SubModel:
        """Return the part of the first units of each group."""
        return SubModel(self.units, tuple(np.arange(g.count(self.width)) for g in self.units.groups))


def form_of(family: ModelFamily, model: NamedArrays) -> Arrays:
    """Return arrays of the names, shapes and dtypes of the clients' parts, which take no memory."""
    parts = family.first().take({n: _form(a) for n, a in model.items()})
    return {n: _form(a) for n, a in parts.items()}


def _form(a: np.ndarray) -> np.ndarray:
    return np.broadcast_to(np.zeros((), a.dtype), a.shape)


@dataclass(frozen=True)
class SubModels:
    """The clients' parts of one model in a round."""

    family: ModelFamily
    round: int
    model: Arrays  # w^t

    def of(self, client: str) -> SubModel:
        """Return a client's part."""
        return self.family.of(self.round, client)

    def received(self, client: str) -> Arrays:
        """Return what a client receives."""
        return self.of(client).take(self.model)
