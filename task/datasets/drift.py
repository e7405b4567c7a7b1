"""Drift: the distribution of the clients' data changes during the run.

The run-config keys ``drift.*`` name a second *concept*, one of

=================  =======================================================================================
labels-rotate      y + 1 modulo C, with C classes: another p(y | x), as are all changes of labels
labels-swap        2j + 1 in place of 2j and the other way round; the last class of an odd number stays
background, ...    the images as `task.datasets.skew` changes a client's: another p(x)
=================  =======================================================================================

and from round t_0 on the share p(t) of the examples has it, with S = ``drift.span``; the first three patterns
are those of Gama et al. 2014, "A survey on concept drift adaptation", the last is of FedDrift, Jothimurugesan
et al. 2023, arXiv 2206.00799:

=================  =======================================================================================
sudden             p(t) = 1 from t_0 on
gradual            p(t) = min(1, (t - t_0 + 1) / S): each example changes once, in an order drawn by seed
recurring          p(t) = 1 in S rounds from t_0 on, 0 in the next S, and so on
staggered          each client changes at once, the r-th of K (from 0) in round t_0 + floor(r S / K)
=================  =======================================================================================

t is the round, or with ``drift.examples = "new"`` the one in which a training example arrived: old examples
then stay as they were. Test examples, a client's own and the global ones, are always those of the round. A
row drifts or does not by its client; the rows of the global test set are dealt evenly to the clients, so that
the set is the union of what all clients see in that round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from task.config.data_sections import DriftConfig
from task.datasets.base import Rows
from task.datasets.stream import chosen
from task.numerics import seeds

if TYPE_CHECKING:  # importing torch takes seconds
    import torch


def share_at(config: DriftConfig, server_round: int) -> float:
    """Return p(t).

    >>> [share_at(DriftConfig(round=3, pattern="gradual", span=2), t) for t in (2, 3, 4, 5)]
    [0.0, 0.5, 1.0, 1.0]
    """
    since = server_round - config.round
    if since < 0:
        return 0.0
    if config.pattern in ("gradual", "staggered"):
        return min(1.0, (since + 1) / config.span)
    return 1.0 if config.pattern == "sudden" or since // config.span % 2 == 0 else 0.0


def changes(config: DriftConfig, rounds: int) -> list[int]:
    """Return the rounds up to `rounds` in which a new or an old concept begins, the first thousand.

    >>> changes(DriftConfig(kind="invert", round=3, pattern="recurring", span=2), 8)
    [3, 5, 7]
    """
    if config.kind == "none":
        return []
    step = config.span if config.pattern == "recurring" else max(rounds, 1)
    return list(range(config.round, rounds + 1, step)[:1000])  # a damaged file could have many


def client_rounds(config: DriftConfig, names: Sequence[str], seed: int) -> dict[str, int]:
    """Return the round in which each of the clients that drift does, by name, the first one first.

    `names` are those of all clients, `seed` is the run's for data. Where the pattern is not staggered,
    all have the first round of the drift.

    >>> staggered = DriftConfig(kind="invert", round=3, pattern="staggered", span=4, clients=0.5)
    >>> list(client_rounds(staggered, ["anna", "ben", "cleo", "dora"], 1).values())
    [3, 5]
    """
    size = max(round(config.clients * len(names)), 1)
    some = chosen(seed, seeds.DRIFT, names)[:size]
    late = config.span if config.pattern == "staggered" else 0
    return {name: config.round + r * late // size for r, name in enumerate(some)}


@dataclass(frozen=True, eq=False)
class Drift:
    """How the examples of a data set change."""

    config: DriftConfig
    classes: int  # C
    # Of each row in the order in which examples, or clients, change, from 0 to below 1.
    place: npt.NDArray[np.float64]
    drifts: npt.NDArray[np.bool_] | None = None  # whether a row's client drifts; None = all do
    born: Rows | None = None  # the round in which a row arrived, 0 of those that always follow the round
    # Returns images [B, C, H, W], pixels from 0 to 1, of rows by their numbers, under the new concept.
    images: Callable[[torch.Tensor, Rows], torch.Tensor] | None = None
    # As of `client_rounds`; empty = all clients change in `config.round`.
    begins: Mapping[str, int] = field(default_factory=dict)

    def changed(self, rows: Rows | slice, server_round: int) -> npt.NDArray[np.bool_]:
        """Return which rows have the new concept in a round."""
        if self.born is None:
            found = self.place[rows] < share_at(self.config, server_round)
        else:
            at, which = np.unique(self.born[rows], return_inverse=True)
            shares = np.array([share_at(self.config, int(t) or server_round) for t in at], np.float64)
            found = self.place[rows] < shares[which]
        return found if self.drifts is None else found & self.drifts[rows]

    def inputs(self, pixels: torch.Tensor, rows: Rows | slice, server_round: int) -> torch.Tensor:
        """Return images as they are in a round."""
        import torch

        if self.images is None:
            return pixels
        mine = np.flatnonzero(self.changed(rows, server_round))
        if not len(mine):
            return pixels
        numbers, at, now = np.arange(len(self.place))[rows], torch.from_numpy(mine), pixels.clone()
        now[at] = self.images(pixels[at], numbers[mine])
        return now

    def targets(self, y: torch.Tensor, rows: Rows | slice, server_round: int) -> torch.Tensor:
        """Return class numbers as they are in a round."""
        import torch

        if self.images is not None:
            return y
        if self.config.kind == "labels-rotate":
            new = (y + 1) % self.classes
        else:
            other = y ^ 1
            new = torch.where(other < self.classes, other, y)
        return torch.where(torch.from_numpy(self.changed(rows, server_round)), new, y)
