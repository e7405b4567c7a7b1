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

import numpy as np

from task.classical.columns import Floats, NamedColumns
from task.classical.design import OTHERS, Design, design_of
from task.classical.families import Rows
from task.classical.solve import Inverse, Matrix, inverse
from task.classical.sums import ErrorSums, OpeningSums, StepSums
from task.config.knobs import Config
from task.errors import ConfigError, DataError
from task.numerics.elementary import log

ENOUGH, SMALL = 1e-24, 1e-12  # of the decrement
SHIFTS = ("offset", "exposure")  # of `task.classical.design.OTHERS`, what is added to eta
MOST_HALVINGS = 10
SEPARATED = 1e-8  # deviance per row
_RISE = Fraction(1, 2**40)  # of the deviance that rounding may cause


@dataclass(frozen=True)
class Model:
    """A regression that a run asks for."""

    design: Design
    family: str
    penalty: float = 0.0
    inverse: bool = False  # whether the link is the inverse
    by_site: bool = False  # whether robust errors are clustered by site
    squares: bool = False  # whether it is least squares, with Student's t

    @property
    def p(self) -> int:
        """Columns of the design."""
        return len(self.design.names)

    @property
    def unit(self) -> float:
        """Scale of the target."""
        return self.design.target.scale if self.family == "gaussian" or self.inverse else 1.0

    @property
    def square(self) -> Fraction:
        """What a deviance is multiplied by."""
        return Fraction(self.unit) ** 2 if self.family == "gaussian" else Fraction(1)

    @property
    def units(self) -> list[Fraction]:
        """By column, a coefficient per scaled coefficient."""
        per = Fraction(self.unit) if self.inverse else 1 / Fraction(self.unit)
        return [Fraction(s) * per for s in self.design.scales]

    @property
    def shifted(self) -> bool:
        """Whether rows have an offset."""
        return any(name in self.design.others for name in SHIFTS)

    @property
    def null_known(self) -> bool:
        """Whether the coefficients to begin with are those of the best model with an intercept alone."""
        return not (self.shifted and self.family == "binomial")

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
    design = design_of(keys.columns, keys.target, {name: getattr(keys, name) for name in OTHERS})
    found = Model(
        design, keys.family, keys.penalty, keys.link == "inverse", keys.errors == "site",
        squares="regression.penalty" in entry.reads,
    )  # fmt: skip
    if found.inverse and found.shifted:
        raise ConfigError(
            'run-config key "regression.link": expected "log" with an offset or an exposure; got "inverse"'
        )
    if found.penalty and found.by_site:
        raise ConfigError(
            'run-config key "regression.errors": a penalised coefficient has no error; expected "robust"; '
            'got "site"'
        )
    return found


def offset_of(model: Model, table: NamedColumns) -> Floats:
    """Return what is added to eta of each row; NaN where the exposure is not above 0."""
    others, found = model.design.others, np.zeros(table.rows)
    if "offset" in others:
        found = found + table.of(others["offset"])
    if "exposure" in others:
        found = found + log(table.of(others["exposure"]))
    return found


def rows_of(model: Model, table: NamedColumns) -> Rows:
    """Return a client's rows as a model has them.

    Raises:
        ConfigError: A column is not there, or of another kind.
        DataError: A value does not fit its declaration.
    """
    design, ones = model.design, np.ones(table.rows)
    others = {name: table.of(v) for name, v in design.others.items() if name not in SHIFTS}
    rows = Rows(
        design.columns(table), design.scales, table.of(design.target), others.get("trials", ones), model.unit,
        offset_of(model, table), others.get("frequency", ones), others.get("weights", ones), model.inverse,
    )  # fmt: skip
    return rows.checked(model.family, design.target.name)


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
        if model.inverse:
            return [1.0 / mean, *slopes]
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
    units = scales if model.family == "gaussian" else model.units  # w has no unit there
    return Covariances(_in_units(found.matrix(), units), _in_units(found.around(errors.middle), model.units))


def _in_units(matrix: Matrix, units: Sequence[Fraction]) -> list[list[float]]:
    return [
        [float(a * u * v) for a, v in zip(row, units, strict=True)]
        for row, u in zip(matrix, units, strict=True)
    ]


ANALYSES = {"regression": model_of}
