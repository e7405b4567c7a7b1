"""Model families: which part of the model a client trains, as its width or its kind says.

A model's hidden *units* (outputs of dense layers, filters of convolutions) come in groups, one for each
layer. A sub-model keeps some units of each group; its arrays are slices of the model's, with all that a unit
has: its row of weights and its bias, its parameters and statistics in a normalisation, and the columns that
read it. A family says which units a client keeps in a round. `task.models.units` finds a module's groups.

A client has a *level*, whose width r is the share of each group's U units that it keeps. Which ones, says the
scheme:

=========  =======================================================  ==================  ======================
scheme     units of a group in round t                              how many            source
=========  =======================================================  ==================  ======================
nested     0, ..., u - 1                                            u = ceil(r U)       HeteroFL, Diao et al.
                                                                                        2021, arXiv 2010.01264
rolling    (t - 1 + i) mod U for i = 0, ..., u - 1                  u = ceil(r U)       FedRolex, Alam et al.
                                                                                        2022, arXiv 2212.01548
random     drawn without replacement for each client and round      u = floor(r U),     federated dropout,
                                                                    at least 1          Caldas et al. 2018,
                                                                                        arXiv 1812.07210
=========  =======================================================  ==================  ======================

========  =====================  ==========================================
symbol    variable               meaning
========  =====================  ==========================================
r         `Levels.values`        share of the units that are kept
U, u      `UnitGroup.size`, `count`  units of a group, and how many are kept
========  =====================  ==========================================

Where clients have models of several *kinds*, the server's model is all of them side by side, each array under
the name of its kind, and a client's part is the model of its kind.

None of it needs the wire: it follows from seeds, round, client name and, where a client's node says its width
itself, its registration.

>>> units = Units((UnitGroup(3),), {"0.weight": (Axis(0), None), "2.weight": (None, Axis(0))})
>>> part = SubModel(units, (np.array([0, 2]),))
>>> part.take({"0.weight": np.array([[1, 2], [3, 4], [5, 6]]), "2.weight": np.array([[7, 8, 9]])})
{'0.weight': array([[1, 2],
       [5, 6]]), '2.weight': array([[7, 9]])}
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

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

    def count(self, width: float, *, up: bool = False) -> int:
        """Return u for a share `width` of the units, rounded `up` or down."""
        share = width * (self.size // self.blocks)
        # 0.29 * 100 is below 29 in floating point, and 0.07 * 100 above 7.
        return self.blocks * max(1, math.ceil(share - 1e-9) if up else math.floor(share + 1e-9))


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


class Part(Protocol):
    """A part of a model."""

    @property
    def size(self) -> tuple[int | str, ...]:
        """What parts of one form, and no others, have in common."""

    def index(self, name: str) -> Any:
        """Return what selects the part's entries of a tensor that it has, for NumPy's brackets."""

    def take(self, model: NamedArrays) -> Arrays:
        """Return the part's arrays."""


@dataclass(frozen=True)
class Kind:
    """One of several models that stand side by side.

    >>> Kind("net.parts:Small").take({"net_parts:Small/0.bias": np.zeros(2), "mlp/1.bias": np.zeros(3)})
    {'net_parts:Small/0.bias': array([0., 0.])}
    """

    name: str

    @property
    def prefix(self) -> str:
        """What the names of its arrays begin with; a dot would end the name of a module."""
        return f"{self.name.replace('.', '_')}/"

    @property
    def size(self) -> tuple[str]:
        """Its name."""
        return (self.name,)

    def index(self, name: str) -> Any:
        """Return what selects a tensor whole."""
        return ...

    def take(self, model: NamedArrays) -> Arrays:
        """Return the arrays of this model."""
        return {n: a for n, a in model.items() if n.startswith(self.prefix)}


@dataclass(frozen=True, eq=False)
class SubModel:
    """A part of a model: some units of each group."""

    units: Units
    kept: tuple[Indices, ...]  # by group, in rising order

    @property
    def size(self) -> tuple[int, ...]:
        """How many units it has of each group."""
        return tuple(map(len, self.kept))

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

    def of(self, server_round: int, client: str) -> Part:
        """Return a client's part in a round."""

    def first(self, client: str = "") -> Part:
        """Return a part of the size that a client trains; without a name, of the largest size there is."""


Given = Callable[[str], float]  # returns the width that a client's node said; 0 = none
Named = Callable[[str], str | None]  # returns the model that a client's node said; None = none
T = TypeVar("T", float, str)


@dataclass(frozen=True)
class Levels(Generic[T]):
    """Who has which level: what a client's node said, else dealt by its name."""

    values: tuple[T, ...]  # widths r, the widest first, or names of models
    shares: tuple[float, ...] = (1.0,)  # of the clients, by level; they add up to 1
    seed: int = 0  # the run's for data
    given: Callable[[str], T | None] = lambda client: None

    def of(self, client: str) -> T:
        """Return a client's level."""
        said = self.given(client)
        if said is not None and said in self.values:
            return said
        if len(self.values) == 1:
            return self.values[0]
        below = np.cumsum(self.shares)[:-1]
        return self.values[int(np.searchsorted(below, _draw(self.seed, client), side="right"))]


@lru_cache(maxsize=1 << 16)  # a round asks several times
def _draw(seed: int, client: str) -> float:
    return float(seeds.rng_for(seed, seeds.WIDTHS, 0, client).random())


@dataclass(frozen=True)
class Widths:
    """Parts of a model that have a share of the units of each group."""

    units: Units
    levels: Levels[float]
    scheme: str  # nested, rolling or random
    seed: int = 0  # the run's for training

    def of(self, server_round: int, client: str) -> SubModel:
        """Return a client's part in a round."""
        return self.part(self.levels.of(client), server_round, client)

    def part(self, width: float, server_round: int, client: str = "") -> SubModel:
        """Return the part of a width that a client, or one without a name, has in a round."""
        if self.scheme == "random":
            rng = seeds.rng_for(self.seed, seeds.DROPOUT, server_round, client)
            return SubModel(self.units, tuple(self._draw(rng, g, width) for g in self.units.groups))
        start = server_round - 1 if self.scheme == "rolling" else 0
        return SubModel(self.units, tuple(self._window(start, g, width) for g in self.units.groups))

    def _count(self, group: UnitGroup, width: float) -> int:
        return group.count(width, up=self.scheme != "random")

    def _draw(self, rng: np.random.Generator, group: UnitGroup, width: float) -> Indices:
        size, count = group.size // group.blocks, self._count(group, width) // group.blocks
        drawn = [b * size + rng.choice(size, count, replace=False) for b in range(group.blocks)]
        return np.sort(np.concatenate(drawn))

    def _window(self, start: int, group: UnitGroup, width: float) -> Indices:
        size, count = group.size // group.blocks, self._count(group, width) // group.blocks
        kept = np.sort((start + np.arange(count)) % size)
        return np.concatenate([b * size + kept for b in range(group.blocks)])

    def first(self, client: str = "") -> SubModel:
        """Return the part of the first units of each group."""
        return self.sized(self.levels.of(client) if client else self.levels.values[0])

    def sized(self, width: float) -> SubModel:
        """Return the part of a width that has the first units of each group."""
        kept = tuple(np.arange(self._count(g, width)) for g in self.units.groups)
        return SubModel(self.units, kept)


@dataclass(frozen=True)
class Kinds:
    """Models of several kinds side by side; each client has one of them."""

    levels: Levels[str]
    largest: str  # the kind whose model has the most numbers

    def of(self, server_round: int, client: str) -> Kind:
        """Return a client's model."""
        return Kind(self.levels.of(client))

    def first(self, client: str = "") -> Kind:
        """Return a client's model; without a name, the largest."""
        return Kind(self.levels.of(client) if client else self.largest)

    def groups(self, clients: Sequence[str]) -> dict[Kind, list[int]]:
        """Return by kind which of some clients have its model, as positions in the order given."""
        mine = {
            name: [k for k, c in enumerate(clients) if self.levels.of(c) == name]
            for name in self.levels.values
        }
        return {Kind(name): rows for name, rows in mine.items()}


def form_of(part: Part, model: NamedArrays) -> Arrays:
    """Return arrays of the names, shapes and dtypes of a part of a model, which take no memory."""
    return {n: _form(a) for n, a in part.take({n: _form(a) for n, a in model.items()}).items()}


def _form(a: np.ndarray) -> np.ndarray:
    return np.broadcast_to(np.zeros((), a.dtype), a.shape)


@dataclass(frozen=True)
class SubModels:
    """The clients' parts of one model in a round."""

    family: ModelFamily
    round: int
    model: Arrays  # w^t
    _forms: dict[tuple[int | str, ...], Arrays] = field(default_factory=dict, compare=False)  # by size

    def of(self, client: str) -> Part:
        """Return a client's part."""
        return self.family.of(self.round, client)

    def received(self, client: str) -> Arrays:
        """Return what a client receives."""
        return self.of(client).take(self.model)

    def form(self, client: str = "") -> Arrays:
        """Return arrays of the form of a client's part, which take no memory; see `ModelFamily.first`."""
        part = self.family.first(client)
        if part.size not in self._forms:
            self._forms[part.size] = form_of(part, self.model)
        return self._forms[part.size]
