"""Trees with noise that protects each row: what a row adds to an answer, and what follows from noised sums.

Neighbours differ by one row, which is as it is or adds nothing; how many rows a site has is public. A row
without a target of the objective's values adds nothing, and other values are clipped to the declared range,
since an error would tell of them.

A row adds two numbers, t and u, multiples of 2^-`GRID` rounded towards zero, so that the bound holds of the
integers. F is the margin, p and p_k are probabilities, w is the width of the target's declared range.

=============  ======================  =================  ================================
objective      t                       u                  t^2 + u^2, over all k, at most
=============  ======================  =================  ================================
squared-error  (F - y) / w in [-1, 1]  1/2                5/4
logistic       p - y                   3 p (1 - p)        1
softmax        p_k - [y = k]           2 p_k (1 - p_k)    2
=============  ======================  =================  ================================

Logistic: with q = |p - y| the squares are q^2 + 9 q^2 (1 - q)^2, which is at most 1. Softmax: p + 4 p
(1 - p)^2 is at most 1, as 1 less it is (1 - p) (1 - 2 p)^2. So p^2 + u^2 is at most p, and all squares add up
to at most sum p_k - 2 p_y + 1, which is at most 2.

Nodes that are asked for together are leaves of a tree, so that a row is in one of them, and there in one cell
of each column. A question about d columns has d times the squared sensitivity above. One about no column is
about the sums of whole nodes, and has it once: that is how leaves get their outputs. Softmax asks for nodes
of one tree of each class at once, which the bound covers. Numbers of rows are not asked for. Each question is
one Gaussian mechanism (`task.privacy.row_noise`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from task.classical.columns import Variable
from task.config.algorithm_sections import GBDTConfig
from task.errors import ConfigError, DataError
from task.trees.ensemble import TreeEnsemble, Values
from task.trees.grow import DEPTH_WISE
from task.trees.histograms import CellLayout, asked_slots, summed
from task.trees.objectives import LOGISTIC, SOFTMAX, SQUARED, Objective
from task.trees.splits import Penalties

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
GRID = 24  # noise is at least 2^-9 wide (`task.privacy.bounded_integers.LEAST_NOISE`), 2^15 of these units
# Standard deviations of the noise on a child's H that lambda grows by; 2 to 8 gave about the same accuracy.
SHRINKING = 3.0
ENDS = 1  # numbers after those with noise: its variance in units of its own
# By objective: how many u make a second derivative, and the squares of a row's numbers at most.
HESSIANS: Mapping[str, float] = MappingProxyType({SQUARED: 2.0, LOGISTIC: 1 / 3, SOFTMAX: 1.0})
_SQUARES: Mapping[str, float] = MappingProxyType({SQUARED: 1.25, LOGISTIC: 1.0, SOFTMAX: 2.0})


def check_noise(keys: GBDTConfig) -> None:
    """Refuse what would tell of rows although histograms have noise.

    Raises:
        ConfigError: Naming the key.
    """
    found = {
        "cuts": (keys.cuts == "ranges", '"ranges"', "quantiles follow from rows"),
        "growth": (keys.growth == DEPTH_WISE, f'"{DEPTH_WISE}"', "so that a tree has few questions"),
        "min-child-count": (keys.min_child_count == 1, "1", "rows are not counted"),
        "subsample": (keys.subsample == 1, "1", "rows drawn by a public seed are protected no better"),
        "held-out": (keys.held_out == 0, "0", "losses of rows are not protected"),
    }
    for name, (good, expected, why) in found.items():
        if not good:
            got = getattr(keys, name.replace("-", "_"))
            raise ConfigError(
                f'run-config key "gbdt.{name}": expected {expected} as dp.unit = "example" protects each '
                f"row: {why}; got {got!r}"
            )


def sensitivity(objective: Objective, columns: int) -> float:
    """Return the squared L2 sensitivity of a question about so many columns, 0 = about whole nodes.

    >>> sensitivity(Objective(SOFTMAX, 3), 5), sensitivity(Objective(LOGISTIC), 0)
    (10.0, 1.0)
    """
    return _SQUARES[objective.name] * max(columns, 1)


def deviation(z: float, objective: Objective, columns: int, variance: int) -> float:
    """Return the standard deviation of the noise on a number, of all who added some.

    Args:
        z: The noise multiplier.
        objective: Of the trees.
        columns: Of the question.
        variance: The last number of the answer.
    """
    return z * math.sqrt(max(sensitivity(objective, columns) * variance, 0) / 2.0**GRID)


def row_terms(objective: Objective, margins: Floats, y: Floats) -> tuple[Ints, Ints]:
    """Return t and u of rows and margins, int64 [rows, K] in units of 2^-`GRID`; 0 where `y` is NaN."""
    there, known = ~np.isnan(y)[:, None], np.nan_to_num(y)[:, None]
    if objective.name == SQUARED:
        t = np.clip((margins - known) / objective.width, -1.0, 1.0)
        u = np.full(t.shape, 0.5)
    else:
        with np.errstate(all="ignore"):
            p = objective.probabilities(margins)
        there = there & ((p >= 0) & (p <= 1)).all(axis=1, keepdims=True)  # else a server sent absurd trees
        t = p - (known if objective.name == LOGISTIC else known == np.arange(objective.classes))
        u = (3.0 if objective.name == LOGISTIC else 2.0) * (p * (1.0 - p))
    found = [np.trunc(np.ldexp(np.where(there, of, 0.0), GRID)).astype(np.int64) for of in (t, u)]
    return found[0], found[1]


def node_totals(
    growing: TreeEnsemble,
    asked: Sequence[tuple[int, int]],
    terms: tuple[Ints, Ints],
    x: Values,
    bins: Sequence[npt.NDArray[np.int32]],
    layout: CellLayout,
) -> Ints:
    """Return a client's numbers before the noise, int64: of each node each cell's t and u, or its own.

    Args:
        growing: The trees as they are.
        asked: Nodes of these, each a tree and a node.
        terms: What `row_terms` returns.
        x: The rows' values, by which they are in a node.
        bins: Of the question's columns, each [rows]; none = it is about whole nodes.
        layout: The cells of these columns.

    Raises:
        DataError: The trees that grow are not one of each class, or a node is asked for twice, so that a row
            would count more often.
    """
    if growing.tree_classes.tolist() != list(range(terms[0].shape[1])):
        raise DataError("expected one growing tree of each class; got others")
    if len({*asked}) < len(asked):
        raise DataError("expected each node once; got one several times")
    found = [np.zeros(0, np.int64)]
    for tree, nodes, slots in asked_slots(growing, asked, x):
        weights = [of[:, tree] for of in terms]
        if bins:
            found.append(summed(bins, slots, nodes, weights, layout)[:, :, :2].ravel())
        else:
            whole = np.zeros((nodes, 2), np.int64)
            for k, weight in enumerate(weights):
                np.add.at(whole[:, k], slots[slots >= 0], weight[slots >= 0])
            found.append(whole.ravel())
    return np.concatenate(found)


def derivatives_in(objective: Objective, numbers: Ints, nodes: int) -> Ints:
    """Return G, H and H of cells by noised numbers, int64 [nodes, cells, 3] in units of 2^-`GRID`.

    The third stands where exact histograms have rows: there are some where H is above 0.
    """
    pairs = numbers.reshape(nodes, -1, 2).astype(np.float64)
    width = objective.width if objective.name == SQUARED else 1.0
    scaled = np.rint(pairs * [width, HESSIANS[objective.name]]).astype(np.int64)
    return scaled[..., [0, 1, 1]]


def agreeing(histogram: Ints, layout: CellLayout) -> Ints:
    """Return a histogram [cells, 3] whose columns add up to the same sums, nearest to one with noise.

    All columns have the rows of the node, so that the weighted mean of their sums is the best estimate of its
    own, and each column's cells share what it differs by.
    """
    starts, many = layout.starts, layout.bins + 1
    sums = np.add.reduceat(histogram, starts[:-1], axis=0)
    best = np.rint((sums / many[:, None]).sum(axis=0) / (1.0 / many).sum()).astype(np.int64)
    found = histogram.copy()
    for j, cells in enumerate(many.tolist()):
        away = best - sums[j]
        part = found[starts[j] : starts[j + 1]]
        part += away // cells
        part[: int(cells)] += np.arange(cells)[:, None] < away % cells
    return found


def first_margins(objective: Objective, target: Variable) -> Floats:
    """Return the margins before the first tree, float64 [K]: of equal classes, or the middle of the range."""
    middle = (target.low + target.high) / 2 if objective.name == SQUARED else 0.0
    return np.full(objective.classes, np.float32(middle), np.float64)


def careful(penalties: Penalties, objective: Objective, wide: float, layout: CellLayout | None) -> Penalties:
    """Return penalties with a larger lambda, so that children whose H is mostly noise do not look best.

    Args:
        penalties: Those of the run.
        objective: Of the trees.
        wide: Standard deviation of the noise on a number.
        layout: The cells of histograms, whose noise adds up in a child; None = sums are those of whole nodes.
    """
    cells = int(layout.bins.max()) + 1 if layout else 1
    more = SHRINKING * wide * HESSIANS[objective.name] * math.sqrt(cells)
    return replace(penalties, reg_lambda=penalties.reg_lambda + more)
