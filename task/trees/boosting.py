"""What a run of gradient boosting asks for, from its run config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from task.classical.columns import Variable, variable_of
from task.config.algorithm_sections import GBDTConfig
from task.config.knobs import Config
from task.errors import ConfigError
from task.trees.cuts import GRID, RANGES, Candidates, Cuts, equal_steps
from task.trees.declared import Declared, columns_in, objective_of
from task.trees.grow import DEPTH_WISE, Shape
from task.trees.histograms import CellLayout
from task.trees.noised import GRID as NOISE_GRID
from task.trees.noised import check_noise
from task.trees.splits import Penalties

MOST_COLUMNS = 4096


@dataclass(frozen=True)
class Boosting(Declared):
    """The columns and the target, and how trees grow."""

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
    noised: bool  # whether sums have noise that protects each row

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

    def layout(self, cuts: list[Cuts]) -> CellLayout:
        """Return the cells of all columns, given the cuts of those that are numbers."""
        by_column = dict(zip(self.numbers, cuts, strict=True))
        none = np.zeros(0, np.float32)
        found = tuple(by_column.get(j, none) for j in range(len(self.variables)))
        return CellLayout(found, tuple(len(v.levels) for v in self.variables))


def boosting_of(config: Config) -> Boosting:
    """Return what a run asks for.

    Raises:
        ConfigError: Columns are not declared as they should be, or keys do not go together.
    """
    keys = config.gbdt
    row_key = variable_of("gbdt.row-key", keys.row_key) if keys.row_key else None
    others = [row_key] if row_key else []
    variables, target = columns_in("gbdt.columns", keys.columns, keys.target, *others)
    if len(variables) > MOST_COLUMNS:
        raise ConfigError(
            f'run-config key "gbdt.columns": expected at most {MOST_COLUMNS} columns; got {len(variables)}'
        )
    if row_key and row_key.levels:
        raise ConfigError(
            'run-config key "gbdt.row-key": expected a column of numbers with its range, "id(0..1000000)"; '
            f"got {keys.row_key!r}"
        )
    objective = objective_of(keys.objective, target)
    if noised := config.dp.local:
        check_noise(keys)
    penalties, shape = growth_of(keys, 2.0**-NOISE_GRID if noised else objective.unit)
    if keys.patience and not keys.held_out:
        raise ConfigError(
            'run-config key "gbdt.patience": expected a share of rows in gbdt.held-out by which the number '
            "of trees is chosen; got 0"
        )
    return Boosting(
        variables, target, objective, penalties, shape,
        bins=keys.max_bins, cuts=keys.cuts, grid=keys.grid,
        subsample=keys.subsample, colsample=keys.colsample, row_key=row_key,
        held_out=keys.held_out, patience=keys.patience, seed=config.seeds.train, noised=noised,
    )  # fmt: skip


def improved(losses: Sequence[float]) -> int:
    """Return after how many rounds the loss was least, the first of several."""
    return int(np.argmin(losses)) + 1 if len(losses) else 0


def waits(losses: Sequence[float], patience: int) -> bool:
    """Return whether fewer rounds than `patience` have gone by since the loss was least."""
    return len(losses) - improved(losses) < patience


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


ANALYSES = {"boosting": boosting_of}
