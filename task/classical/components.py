"""Principal components of declared columns: the model, the result and its table.

The sums of a row are those of `task.classical.moments`: 1, z_j and z_i z_j, 1 + p + p (p + 1) / 2 numbers.
The eigenvectors are those of the covariance matrix, or of the correlation matrix where columns are
standardised; the largest loading of each, in size, is positive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from task.classical.columns import Variable
from task.classical.moments import RowMoments, moments_size, numbers_of, unit
from task.classical.printed import Printed, renamed
from task.config.knobs import Config
from task.errors import ConfigError, DataError
from task.numerics.arrays import Arrays, NamedArrays
from task.numerics.jacobi import eigen

FIGURES = ("rows", "total-variance")
_HEAD = ("component", "variance", "share", "cumulative")


@dataclass(frozen=True)
class Components:
    """What a run asks for."""

    variables: tuple[Variable, ...]
    count: int
    standardised: bool

    @property
    def p(self) -> int:
        """Columns."""
        return len(self.variables)

    @property
    def size(self) -> int:
        """Numbers of the question."""
        return moments_size(self.p, squares=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(v.name for v in self.variables)


def components_of(config: Config) -> Components:
    """Return what a run asks for.

    Raises:
        ConfigError: Its columns are not declared as they should be, or are fewer than the components.
    """
    keys = config.pca
    variables = numbers_of("pca.columns", keys.columns)
    if keys.components > len(variables):
        raise ConfigError(
            f'run-config key "pca.components": expected at most the {len(variables)} columns; got '
            f"{keys.components}"
        )
    return Components(variables, keys.components or len(variables), keys.scaling == "sd")


def nothing(count: int, p: int) -> Arrays:
    """Return the arrays of a result before it is there."""
    return {
        "components": np.zeros((count, p)),
        "covariance": np.zeros((p, p)),
        "figures": np.zeros(len(FIGURES)),
        "mean": np.zeros(p),
        "scale": np.zeros(p),
        "variances": np.zeros(count),
    }


def result_of(asked: Components, moments: RowMoments) -> Arrays:
    """Return the arrays of a result. ``(x - mean) / scale @ components.T`` are a row's scores.

    Raises:
        DataError: There are fewer than two rows, or columns have one value.
    """
    if moments.n < 2:
        raise DataError(f"expected two rows or more; got {moments.n}")
    p, columns = asked.p, asked.variables
    scale = [moments.spread(j, v, 1) if asked.standardised else 1.0 for j, v in enumerate(columns)]
    units = [Fraction(unit(v)) for v in columns]
    covariance = np.array([[_covariance(moments, units, i, j) for j in range(p)] for i in range(p)])
    matrix, divided = covariance.copy(), np.array(scale)
    if asked.standardised:
        matrix = matrix / divided[:, None] / divided[None, :]
        matrix = (matrix + matrix.T) / 2
        np.fill_diagonal(matrix, 1.0)
    variances, vectors = eigen(matrix)
    total = sum(np.diag(matrix).tolist())
    if not total > 0:
        raise DataError("expected columns of which one has different values; got one value in each")
    return {
        "components": vectors[: asked.count],
        "covariance": covariance,
        "figures": np.array([float(moments.n), total]),
        "mean": np.array([moments.mean(j, v) for j, v in enumerate(columns)]),
        "scale": divided,
        "variances": np.maximum(variances[: asked.count], 0.0),
    }


def _covariance(moments: RowMoments, units: Sequence[Fraction], i: int, j: int) -> float:
    return float(moments.deviations(i, j) / ((moments.n - 1) * units[i] * units[j]))


def components_table(asked: Components, arrays: NamedArrays) -> Printed | None:
    """Return the table; None if the result is not there."""
    if not arrays["figures"].any():
        return None
    rows, total = arrays["figures"].tolist()
    lines, sofar = [], 0.0
    for k, (variance, loadings) in enumerate(
        zip(arrays["variances"].tolist(), arrays["components"].tolist(), strict=True), 1
    ):
        sofar += variance
        lines.append((k, variance, variance / total, sofar / total, *loadings))
    figures = {
        "rows": int(rows),
        "total_variance": total,
        "mean": dict(zip(asked.names, arrays["mean"].tolist(), strict=True)),
        "scale": dict(zip(asked.names, arrays["scale"].tolist(), strict=True)),
    }
    head = (*_HEAD, *renamed(asked.names, _HEAD))
    return Printed("components", head, tuple(lines), figures, arrays["sums-sha256"].tobytes().hex())


ANALYSES = {"components": components_of}
