"""What a run of gradient boosting asks for, from its run config."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from task.classical.columns import NamedColumns, Variable, variable_of, variables_of
from task.config.algorithm_sections import GBDTConfig
from task.config.knobs import Config
from task.errors import ConfigError, DataError
from task.trees.cuts import GRID, RANGES, Candidates, Cuts, equal_steps
from task.trees.grow import DEPTH_WISE, Shape
from task.trees.histograms import Layout
from task.trees.objectives import LOGISTIC, SOFTMAX, SQUARED, Objective
from task.trees.splits import Penalties

MOST_COLUMNS = 4096


@dataclass(frozen=True)
class Boosting:
    """The columns and the target, and how trees grow."""

    variables: tuple[Variable, ...]
    target: Variable
    objective: Objective
    penalties: Penalties
    shape: Shape
    bins: int
    cuts: str  # how they are found, see `task.trees.cuts`
    grid: int
    subsample: float
    colsample: float
    row_key: Variable | None
    held_out: float
    patience: int
    seed: int

    @property
    def numbers(self) -> tuple[int, ...]:
        """The columns that are numbers, by their place."""
        return tuple(j for j, v in enumerate(self.variables) if not v.levels)

    @property
    def most_numbers(self) -> int:
        """The most numbers of a node's histogram."""
        return 3 * sum(max(self.bins, len(v.levels)) + 1 for v in self.variables)

    @property
    def least(self) -> int:
        """Rows that each child and each bin of the pooled rows must have."""
        return self.penalties.min_child_count

    @cached_property
    def candidates(self) -> tuple[Candidates, ...]:
        """The values that cuts may have, by column that is a number."""
        steps = {GRID: self.grid, RANGES: self.bins}.get(self.cuts, 0)
        return tuple(Candidates(self.variables[j], steps) for j in self.numbers)

    def declared_cuts(self) -> list[Cuts]:
        """Return the cuts of the columns that are numbers, into equal steps of their ranges."""
        return [equal_steps(self.variables[j], self.bins) for j in self.numbers]

    def layout(self, cuts: list[Cuts]) -> Layout:
        """Return the cells of all columns, given the cuts of those that are numbers."""
        by_column = dict(zip(self.numbers, cuts, strict=True))
        none = np.zeros(0, np.float32)
        found = tuple(by_column.get(j, none) for j in range(len(self.variables)))
        return Layout(found, tuple(len(v.levels) for v in self.variables))

    def x(self, table: NamedColumns) -> npt.NDArray[np.float32]:
        """Return the columns of rows, float32 [rows, columns]; raises what `NamedColumns.of` does."""
        columns = [table.of(v, missing=True) for v in self.variables]
        return np.stack(columns, axis=1).astype(np.float32)

    def y(self, table: NamedColumns) -> npt.NDArray[np.float64]:
        """Return the target: a number, or the place of a level.

        Raises:
            DataError: As `NamedColumns.of`, or a row's is not of the objective's values.
        """
        found = table.of(self.target)
        if (
            self.objective.name != SQUARED
            and not self.target.levels
            and not ((found == 0) | (found == 1)).all()
        ):
            raise DataError(
                "column of the target: expected 0 or 1 in each row, as gbdt.objective is "
                f'"{self.objective.name}"; got other numbers'
            )
        return found


def boosting_of(config: Config) -> Boosting:
    """Return what a run asks for.

    Raises:
        ConfigError: Columns are not declared as they should be, or keys do not go together.
    """
    keys = config.gbdt
    variables, target = variables_of("gbdt.columns", keys.columns), variable_of("gbdt.target", keys.target)
    row_key = variable_of("gbdt.row-key", keys.row_key) if keys.row_key else None
    all_ = [*variables, target, *([row_key] if row_key else [])]
    names = [v.name for v in all_]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f'run-config key "gbdt.columns": expected each column once, and neither the target nor the row '
            f"key among them; got {', '.join(twice)}"
        )
    if len(variables) > MOST_COLUMNS:
        raise ConfigError(
            f'run-config key "gbdt.columns": expected at most {MOST_COLUMNS} columns; got {len(variables)}'
        )
    if row_key and row_key.levels:
        raise ConfigError(
            'run-config key "gbdt.row-key": expected a column of numbers with its range, "id(0..1000000)"; '
            f"got {keys.row_key!r}"
        )
    objective = _objective(keys.objective, target)
    penalties, shape = growth_of(keys, objective.unit)
    if keys.patience and not keys.held_out:
        raise ConfigError(
            'run-config key "gbdt.patience": expected a share of rows in gbdt.held-out by which the number '
            "of trees is chosen; got 0"
        )
    return Boosting(
        variables,
        target,
        objective,
        penalties,
        shape,
        keys.max_bins,
        keys.cuts,
        keys.grid,
        keys.subsample,
        keys.colsample,
        row_key,
        keys.held_out,
        keys.patience,
        config.seeds.train,
    )


def growth_of(keys: GBDTConfig, unit: float) -> tuple[Penalties, Shape]:
    """Return what keeps trees small, and how far they grow; `unit` is that of the objective's derivatives.

    Raises:
        ConfigError: Keys do not go together.
    """
    if not keys.reg_lambda and not keys.min_child_weight:
        raise ConfigError(
            'run-config key "gbdt.reg-lambda": expected a number above 0, or gbdt.min-child-weight above 0: '
            "with both at 0 a leaf's output would be divided by 0; got 0"
        )
    if keys.growth == DEPTH_WISE and not keys.max_depth:
        raise ConfigError(
            'run-config key "gbdt.max-depth": expected 1 or more as gbdt.growth is "depth-wise"; got 0'
        )
    penalties = Penalties(
        keys.reg_lambda,
        keys.reg_alpha,
        keys.gamma,
        keys.min_child_weight,
        keys.min_child_count,
        keys.learning_rate,
        unit,
    )
    return penalties, Shape(keys.growth, keys.max_depth, keys.max_leaves)


def _objective(name: str, target: Variable) -> Objective:
    """Return the objective; "auto" goes by the target."""
    levels = len(target.levels)
    auto = SQUARED if not levels else LOGISTIC if levels == 2 else SOFTMAX
    name = auto if name == "auto" else name
    good = {
        SQUARED: not levels,
        LOGISTIC: levels == 2 or (not levels and (target.low, target.high) == (0, 1)),
    }
    if not good.get(name, levels >= 2):
        needs = {SQUARED: "a number with its range", LOGISTIC: 'two levels, or "name(0..1)"'}
        raise ConfigError(
            f'run-config key "gbdt.target": expected {needs.get(name, "two levels or more")}, as '
            f'gbdt.objective is "{name}"; got {target.name}'
        )
    if name == SQUARED:
        return Objective(SQUARED, 1, target.high - target.low)
    return Objective(name, levels if name == SOFTMAX else 1)
