"""The best split of a node, from its histogram: XGBoost's gains, its order of candidates and its ties.

score(G, H) = T(G)^2 / (H + lambda), T(G) = sign(G) max(|G| - alpha, 0)
gain = score(left) + score(right) - score(node); the output of a leaf is -eta T(G) / (H + lambda)

Columns come in ascending order. Of each, rows without a value first go right, and bins are added to the left
one by one; then, if the node has such rows, they go left, and bins are added to the right from the last one.
A gain is rounded to float32 and only a strictly greater one replaces an earlier one. (XGBoost 3.2, `hist`,
one thread. Chen and Guestrin, 2016, for gains and missing values.)

Of a category with up to 4 levels each goes right by itself; more are ordered by G / (H + lambda) and then
split as bins are.

Sums are integers; what follows from them is made by separate float64 operations in one order, so that the
bits are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from task.trees.ensemble import HIGHEST, LOWEST
from task.trees.histograms import CellLayout

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
ONE_AGAINST_REST = 4  # most levels of a category that are split off one by one
LEAST_GAIN = 1e-6
G, H, N = range(3)  # places of the numbers


@dataclass(frozen=True)
class Penalties:
    """What keeps trees small; the run-config keys of section ``gbdt`` of these names."""

    reg_lambda: float = 1.0
    reg_alpha: float = 0.0
    gamma: float = 0.0
    min_child_weight: float = 1.0
    min_child_count: int = 1
    learning_rate: float = 0.3
    unit: float = 2.0**-30  # of the integers g and h

    def threshold(self, g: Floats) -> Floats:
        """Return T(G)."""
        found: Floats = np.sign(g) * np.maximum(np.abs(g) - self.reg_alpha, 0.0)
        return found

    def score(self, sums: Ints) -> Floats:
        """Return the scores of sums [..., 3]; 0 of none."""
        numbers = sums.astype(np.float64) * self.unit
        g, h = self.threshold(numbers[..., G]), numbers[..., H] + self.reg_lambda
        found: Floats = np.divide(g * g, h, out=np.zeros_like(h), where=h > 0.0)
        return found

    def legal(self, sums: Ints) -> npt.NDArray[np.bool_]:
        """Return which sums [..., 3] a child may have."""
        enough = sums[..., H] * self.unit >= self.min_child_weight
        found: npt.NDArray[np.bool_] = enough & (sums[..., N] >= max(self.min_child_count, 1))
        return found

    def output(self, sums: Ints) -> np.float32:
        """Return the output of a leaf with sums [3], with the learning rate."""
        h = float(sums[H]) * self.unit + self.reg_lambda
        if h <= 0.0:
            return np.float32(0.0)
        g = float(self.threshold(np.array(float(sums[G]) * self.unit)))
        return np.float32(-self.learning_rate * (g / h) + 0.0)

    def splittable(self, sums: Ints) -> bool:
        """Return whether two legal children fit into a node with sums [3]."""
        h, n = float(sums[H]) * self.unit, int(sums[N])
        return h >= 2.0 * self.min_child_weight * (1.0 - 1e-9) and n >= 2 * max(self.min_child_count, 1)


@dataclass(frozen=True)
class Split:
    """A split of a node, and the sums [3] of its children."""

    column: int
    cut: np.float32  # of categories 0
    categories: tuple[int, ...]  # that go right; () = the cut says
    default_left: bool
    gain: np.float32
    left: Ints
    right: Ints


def best_split(histogram: Ints, node: Ints, layout: CellLayout, penalties: Penalties) -> Split | None:
    """Return the best split of a node with sums [3] by its histogram [cells, 3]; None if it stays a leaf."""
    bins, starts = layout.bins, layout.starts
    width, many = int(bins.max(initial=0)), len(bins)
    orders: dict[int, Ints] = {}  # of categories, the order in which they are added to the left
    forward = np.zeros((many, width, 3), np.int64)  # sums of the left child, rows without a value right
    backward = np.zeros((many, width, 3), np.int64)  # and left
    legal = np.zeros((many, 2, width), np.bool_)
    for j in range(many):
        b = int(bins[j])
        cells = histogram[starts[j] : starts[j] + b]
        gaps = histogram[starts[j] + b]
        if layout.levels[j] > ONE_AGAINST_REST:
            orders[j] = _order(cells, penalties)
            cells = cells[orders[j]]
        if 0 < layout.levels[j] <= ONE_AGAINST_REST:
            forward[j, :b] = (node - gaps) - cells
            backward[j, :b] = node - cells
        else:
            forward[j, :b] = np.cumsum(cells, axis=0)
            backward[j, :b] = gaps + forward[j, :b] - cells
        legal[j, 0, :b] = True
        legal[j, 1, :b] = gaps[N] > 0
    left = np.stack([forward, backward[:, ::-1]], axis=1)  # [columns, 2, bins, 3], in order of candidates
    legal[:, 1] = legal[:, 1, ::-1].copy()
    right = node - left
    gains = penalties.score(left) + penalties.score(right) - penalties.score(node)
    legal &= penalties.legal(left) & penalties.legal(right)
    rounded = np.where(legal, gains, -np.inf).astype(np.float32)
    best = int(rounded.argmax()) if rounded.size else 0
    if not rounded.size or not rounded.flat[best] > LEAST_GAIN or rounded.flat[best] < penalties.gamma:
        return None
    j, side, at = (int(i) for i in np.unravel_index(best, rounded.shape))
    at = width - 1 - at if side else at
    cut, categories = _where(j, side, at, layout, orders.get(j), histogram)
    place = np.unravel_index(best, rounded.shape)
    return Split(j, cut, categories, side == 1, rounded[place], left[place], right[place])


def _order(cells: Ints, penalties: Penalties) -> Ints:
    """Return categories in the order of G / (H + lambda), those without rows first; ties by their place."""
    unit = penalties.unit
    h = cells[:, H] * unit + penalties.reg_lambda
    ratio = np.divide(cells[:, G] * unit, h, out=np.zeros_like(h), where=h > 0.0)
    return np.lexsort((np.arange(len(cells)), ratio, cells[:, N] > 0))


def _where(
    column: int, side: int, at: int, layout: CellLayout, order: Ints | None, histogram: Ints
) -> tuple[np.float32, tuple[int, ...]]:
    """Return the cut, or the categories that go right, of a candidate."""
    cuts, levels = layout.cuts[column], layout.levels[column]
    if order is not None:
        counts = histogram[layout.starts[column] :, N]
        chosen = order[at if side else at + 1 :].tolist()
        return np.float32(0.0), tuple(sorted(k for k in chosen if counts[k] > 0))
    if levels:
        return np.float32(0.0), (at,)
    if side:
        return (cuts[at - 1] if at else np.float32(LOWEST)), ()
    return (cuts[at] if at < len(cuts) else np.float32(HIGHEST)), ()


def consistent(histogram: Ints, node: Ints, layout: CellLayout) -> bool:
    """Return whether each column's cells add up to the node's sums, and no H and n is below 0."""
    sums = np.add.reduceat(histogram, layout.starts[:-1], axis=0) if len(layout.bins) else node[None]
    return bool((sums == node).all() and (histogram[:, H:] >= 0).all())


def expanded(numbers: Sequence[int] | Ints, cells: int, hessian: int) -> Ints:
    """Return histograms [nodes, cells, 3] of what travelled; without H, it is `hessian` times n."""
    found = np.asarray(numbers, np.int64).reshape(-1, cells, 2 if hessian else 3)
    if not hessian:
        return found
    return np.stack([found[..., 0], found[..., 1] * hessian, found[..., 1]], axis=-1)
