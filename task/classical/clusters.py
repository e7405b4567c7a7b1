"""k-means over declared columns: what rows send, the next centres, and the table.

============  ======================================================================  ======================
question      numbers                                                                 how many
============  ======================================================================  ======================
opening       n; z_j; z_j^2 of centred columns (`task.classical.moments`)             1 + 2p
step          of each cluster: rows, sums of the scaled columns, squared distances    K (p + 2)
============  ======================================================================  ======================

The squared distance of a row to centre k is sum_j (w_j (x_j - c_kj))^2, added up column by column, with w_j =
1 / the standard deviation, or one power of two for all columns. A row of two nearest centres belongs to the
first one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from task.classical.columns import Floats, Variable
from task.classical.moments import RowMoments, moments_size, numbers_of, unit
from task.classical.printed import Printed, renamed
from task.config.knobs import Config
from task.errors import ConfigError
from task.numerics.arrays import Arrays, NamedArrays
from task.numerics.row_sums import blocks, row_sums, value

MOST_CLUSTERS = 256
FIGURES = ("rows", "inertia", "total", "iterations")
_HEAD = ("cluster", "rows", "share", "within")


@dataclass(frozen=True)
class Clustering:
    """What a run asks for."""

    variables: tuple[Variable, ...]
    clusters: int
    start: tuple[tuple[float, ...], ...]  # declared centres; () = they are drawn by seed
    standardised: bool

    @property
    def p(self) -> int:
        """Columns."""
        return len(self.variables)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(v.name for v in self.variables)

    @property
    def common(self) -> float:
        """The power of two by which columns that are not standardised are multiplied."""
        return min(v.scale for v in self.variables)


def clustering_of(config: Config) -> Clustering:
    """Return what a run asks for.

    Raises:
        ConfigError: Its columns or its start are not declared as they should be.
    """
    keys = config.k_means
    variables = numbers_of("k-means.columns", keys.columns)
    start = _start(keys.start, variables) if keys.start else ()
    return Clustering(variables, len(start) or keys.clusters, start, keys.scaling == "sd")


def _start(text: str, variables: Sequence[Variable]) -> tuple[tuple[float, ...], ...]:
    found = []
    for part in text.split(";"):
        try:
            centre = tuple(float(number) for number in part.split(","))
        except ValueError:
            centre = ()
        if len(centre) != len(variables) or not all(
            v.low <= c <= v.high for c, v in zip(centre, variables, strict=True)
        ):
            raise ConfigError(
                'run-config key "k-means.start": expected centres of '
                f"{len(variables)} numbers within the declared ranges, "
                f'"{", ".join(f"{v.low:g}" for v in variables)}; ...", one after the other; '
                f"got {part.strip()!r}"
            )
        found.append(centre)
    if not 1 <= len(found) <= MOST_CLUSTERS:
        raise ConfigError(
            f'run-config key "k-means.start": expected at most {MOST_CLUSTERS} centres; got {len(found)}'
        )
    return tuple(found)


def weights_of(asked: Clustering, moments: RowMoments) -> list[float]:
    """Return w of each column; raises `DataError` of one that has one value, if they are standardised."""
    if not asked.standardised:
        return [asked.common] * asked.p
    return [1.0 / moments.spread(j, v) for j, v in enumerate(asked.variables)]


def start_of(asked: Clustering, moments: RowMoments, rng: np.random.Generator) -> list[list[float]]:
    """Return the first centres: the declared ones, or such as are spread where the rows are.

    By column the interval of two standard deviations about the mean, cut to the declared range, is divided
    into K parts. Each centre has the middle of one, in an order that is drawn for each column (a Latin
    hypercube). So no row is a centre, and any division of the rows gives the same ones.
    """
    if asked.start:
        return [list(centre) for centre in asked.start]
    k, columns = asked.clusters, []
    for j, v in enumerate(asked.variables):
        mean, spread = moments.mean(j, v), moments.spread(j, v)
        low, high = max(v.low, mean - 2 * spread), min(v.high, mean + 2 * spread)
        parts = [low + (high - low) * ((i + 0.5) / k) for i in range(k)]
        columns.append([parts[i] for i in rng.permutation(k).tolist()])
    return [list(centre) for centre in zip(*columns, strict=True)]


def nearest(
    columns: Sequence[Floats], centres: Floats, weights: Sequence[float]
) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the nearest centre of each row, the first of several, and its squared distance."""
    best = np.full(len(columns[0]), np.inf)
    which = np.zeros(len(columns[0]), np.int64)
    for k, centre in enumerate(centres.tolist()):
        distance = np.zeros(len(best))
        for x, c, w in zip(columns, centre, weights, strict=True):
            away = (x - c) * w
            distance = distance + away * away
        nearer = distance < best
        best, which = np.where(nearer, distance, best), np.where(nearer, k, which)
    return which, best


def step_size(clusters: int, p: int) -> int:
    """Return how many numbers a step's question has."""
    return clusters * (p + 2)


def opening_size(p: int) -> int:
    """Return how many numbers the first question has."""
    return moments_size(p, squares=True)


def step_sums(
    asked: Clustering, columns: Sequence[Floats], centres: Floats, weights: Sequence[float]
) -> list[int]:
    """Return a client's sums of a step, in units of 2^-51.

    Raises:
        FieldError: A distance does not fit.
    """
    clusters, width = len(centres), asked.p + 2
    totals = [0] * step_size(clusters, asked.p)
    for part in blocks(len(columns[0]), width):
        block = [x[part] for x in columns]
        which, distance = nearest(block, centres, weights)
        scaled = [x * v.scale for x, v in zip(block, asked.variables, strict=True)]
        terms = np.stack([np.ones(len(distance)), *scaled, distance], axis=1)
        for k in range(clusters):
            found = row_sums(terms[which == k], "distances")
            for j, t in enumerate(found, k * width):
                totals[j] += t
    return totals


@dataclass(frozen=True)
class ClusterStep:
    """What a step's sums say of each cluster."""

    rows: list[int]
    centres: list[list[float]]  # the next ones, in the columns' own units
    within: list[Fraction]  # sums of squared distances to the centres that were asked for


def step_in(asked: Clustering, totals: Sequence[int], before: Floats) -> ClusterStep:
    """Read the sums of a step; a cluster without a row keeps the centre that it had `before`."""
    width = asked.p + 2
    rows, centres, within = [], [], []
    for k, old in enumerate(before.tolist()):
        count, *sums, distance = [value(t) for t in totals[k * width : (k + 1) * width]]
        rows.append(int(count))
        within.append(distance)
        means = zip(sums, asked.variables, strict=True)
        centres.append([float(s / (count * Fraction(v.scale))) for s, v in means] if count else old)
    return ClusterStep(rows, centres, within)


def nothing(clusters: int, p: int) -> Arrays:
    """Return the arrays of a result that has not ended."""
    return {
        "centres": np.zeros((clusters, p)),
        "figures": np.zeros(len(FIGURES)),
        "rows": np.zeros(clusters),
        "weights": np.zeros(p),
        "within": np.zeros(clusters),
    }


def result_of(
    asked: Clustering, moments: RowMoments, weights: Sequence[float], step: ClusterStep, iterations: int
) -> Arrays:
    """Return the arrays of a result: distances are in the columns' units, or in standard deviations."""
    back = [w if asked.standardised else 1.0 for w in weights]  # by which a distance is multiplied
    square = Fraction(1 if asked.standardised else asked.common) ** 2
    total = sum(
        moments.deviations(j, j) * (Fraction(w) / Fraction(unit(v))) ** 2
        for j, (w, v) in enumerate(zip(back, asked.variables, strict=True))
    )
    within = [w / square for w in step.within]
    figures = {
        "rows": float(moments.n),
        "inertia": float(sum(within)),
        "total": float(total),
        "iterations": float(iterations),
    }
    return {
        "centres": np.array(step.centres),
        "figures": np.array([figures[name] for name in FIGURES]),
        "rows": np.array(step.rows, np.float64),
        "weights": np.array(back),
        "within": np.array([float(w) for w in within]),
    }


def clusters_table(asked: Clustering, arrays: NamedArrays) -> Printed | None:
    """Return the table; None if the iteration has not ended."""
    if not arrays["figures"].any():
        return None
    found = dict(zip(FIGURES, arrays["figures"].tolist(), strict=True))
    lines = zip(arrays["rows"].tolist(), arrays["within"].tolist(), arrays["centres"].tolist(), strict=True)
    rows = [
        (k, int(count), count / found["rows"], within, *centre)
        for k, (count, within, centre) in enumerate(lines)
    ]
    figures: Mapping[str, object] = {
        "rows": int(found["rows"]),
        "inertia": found["inertia"],
        "total": found["total"],
        "explained": 1.0 - found["inertia"] / found["total"] if found["total"] else math.nan,
        "iterations": int(found["iterations"]),
        "empty": [k for k, count, *_ in rows if not count],
    }
    head = (*_HEAD, *renamed(asked.names, _HEAD))
    return Printed("clusters", head, tuple(rows), figures, arrays["sums-sha256"].tobytes().hex())


ANALYSES = {"clusters": clustering_of}
