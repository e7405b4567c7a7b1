"""From the sums of a regression to its coefficients: one step, when to stop, and what the table needs.

beta' = beta + H^-1 U, exactly and then rounded once. With scaled columns x_j s_j and a Gaussian target times
t the step of a coefficient is s_j / t times that of the scaled one. A penalty lambda in the columns' own
units is lambda s_j^2 of a scaled coefficient.

Stop: the decrement U' H^-1 U, the squared length of the step in standard errors, is at most 1e-24; or it is
below 1e-12 and more than a quarter of the last one, the floor of the grid. If the deviance rises, the
midpoint of the last two coefficients is next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from task.classical.design import Design, design_of
from task.classical.solve import Inverse, Matrix, inverse
from task.classical.sums import ErrorSums, OpeningSums, StepSums
from task.config.knobs import Config
from task.errors import DataError

ENOUGH, SMALL = 1e-24, 1e-12  # of the decrement
MOST_HALVINGS = 10
SEPARATED = 1e-8  # deviance per row
_RISE = Fraction(1, 2**40)  # of the deviance that rounding may cause


@dataclass(frozen=True)
class Model:
    """A regression that a run asks for."""

    design: Design
    family: str
    penalty: float = 0.0

    @property
    def p(self) -> int:
        """Columns of the design."""
        return len(self.design.names)

    @property
    def unit(self) -> float:
        """Scale of the target."""
        return self.design.target.scale if self.family == "gaussian" else 1.0

    @property
    def units(self) -> list[Fraction]:
        """By column, a coefficient per scaled coefficient."""
        return [Fraction(s) / Fraction(self.unit) for s in self.design.scales]

    @property
    def penalties(self) -> list[Fraction]:
        """By column, lambda of a scaled coefficient."""
        squares = [Fraction(self.penalty) * Fraction(s) ** 2 for s in self.design.scales]
        return [Fraction(0), *squares[1:]]


def model_of(config: Config) -> Model:
    """Return the regression that a run asks for.

    Raises:
        ConfigError: Its columns are not declared as they should be.
    """
    keys, entry = config.regression, config.entry
    family = keys.family if entry.owns("regression.family") else "gaussian"
    trials = keys.trials if family == "binomial" else ""
    penalty = keys.penalty if entry.owns("regression.penalty") else 0.0
    return Model(design_of(keys.columns, keys.target, trials), family, penalty)


def start_of(model: Model, opening: OpeningSums) -> list[float]:
    """Return the coefficients to begin with: an intercept that gives the mean, and slopes of 0.

    Raises:
        DataError: The target is the same in all rows, or there are not more rows than columns.
    """
    n, name = int(opening.n), model.design.target.name
    if n <= model.p:
        raise DataError(f"expected more rows than the {model.p} columns of the design; got {n}")
    mean = float(opening.y / (opening.trials * Fraction(model.unit)))
    slopes = [0.0] * (model.p - 1)
    if model.family == "gaussian":
        return [mean, *slopes]
    if model.family == "binomial":
        if not 0.0 < mean < 1.0:
            raise DataError(f"column {name}: expected both outcomes among the rows; got one of them")
        first = math.log(mean / (1.0 - mean))
    else:
        if not mean > 0.0:
            raise DataError(f"column {name}: expected a number above 0 in some row; got none")
        first = math.log(mean)
    # A logarithm may differ in its last bit between machines; 32 bits of it are enough to begin with.
    return [math.ldexp(round(math.ldexp(first, 32)), -32), *slopes]


@dataclass(frozen=True)
class Stepped:
    """What a step comes to."""

    coefficients: list[float]  # to be asked for next, or where it ended
    decrement: float
    converged: bool


def stepped(model: Model, step: StepSums, beta: Sequence[float], last: float) -> Stepped:
    """Return the coefficients after those that the sums are of; `last` is the decrement before, or infinity.

    Raises:
        DataError: The columns are collinear, or separate the classes.
    """
    found = information_of(model, step)
    scaled = [Fraction(b) / u for b, u in zip(beta, model.units, strict=True)]
    score = [u - f * b for u, f, b in zip(step.score, model.penalties, scaled, strict=True)]
    move = found.times(score)
    decrement = float(sum(u * m for u, m in zip(score, move, strict=True)))
    if decrement <= ENOUGH or (decrement < SMALL and decrement > last / 4):
        return Stepped(list(beta), decrement, True)
    units = zip(scaled, move, model.units, strict=True)
    return Stepped([float((b + m) * u) for b, m, u in units], decrement, False)


def information_of(model: Model, step: StepSums) -> Inverse:
    """Return the inverse of the information, with the penalty; raises what `inverse` does."""
    penalised = [list(row) for row in step.information]
    for j, penalty in enumerate(model.penalties):
        penalised[j][j] += penalty
    return inverse(penalised, model.design.names)


def check_apart(model: Model, step: StepSums, n: int) -> None:
    """Refuse classes that the columns separate, for which no coefficients are best.

    Raises:
        DataError: Saying so.
    """
    if model.family == "binomial" and (step.far or float(step.deviance) < SEPARATED * n):
        raise DataError(
            f"column {model.design.target.name}: expected outcomes that overlap; got classes that are "
            "separated by these columns, so that coefficients grow without end. Drop a column"
        )


def rose(deviance: Fraction, before: Fraction) -> bool:
    """Return whether a deviance is larger than one before by more than rounding."""
    return deviance > before + _RISE * max(before, Fraction(1))


def midpoint(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """Return the coefficients halfway between two."""
    return [x / 2 + y / 2 for x, y in zip(a, b, strict=True)]


@dataclass(frozen=True)
class Covariances:
    """Matrices in the columns' own units."""

    inverse: list[list[float]]  # H^-1; times the dispersion it is the covariance of the coefficients
    robust: list[list[float]]  # HC0: H^-1 (sum u^2 x x') H^-1


def covariances_of(model: Model, step: StepSums, errors: ErrorSums) -> Covariances:
    """Return them from the sums at the final coefficients."""
    found = information_of(model, step)
    scales = [Fraction(s) for s in model.design.scales]
    return Covariances(_in_units(found.matrix(), scales), _in_units(found.around(errors.middle), model.units))


def _in_units(matrix: Matrix, units: Sequence[Fraction]) -> list[list[float]]:
    return [
        [float(a * u * v) for a, v in zip(row, units, strict=True)]
        for row, u in zip(matrix, units, strict=True)
    ]
