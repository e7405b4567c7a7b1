"""Settings that all algorithms with trees share: the columns to split, the target, and the loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from task.classical.columns import Floats, NamedColumns, Variable, check_once, variable_of, variables_of
from task.errors import ConfigError, DataError
from task.trees.ensemble import Values
from task.trees.objectives import LOGISTIC, SOFTMAX, SQUARED, Objective
from task.trees.packed import width_of

Variables = tuple[Variable, ...]


@dataclass(frozen=True)
class Declared:
    """Columns, target and loss; a table's category is its place among the declared levels."""

    variables: tuple[Variable, ...]
    target: Variable
    objective: Objective

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(v.name for v in self.variables)

    @property
    def categorical(self) -> tuple[bool, ...]:
        """By column whether it is a category."""
        return tuple(bool(v.levels) for v in self.variables)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what trees give of a row: the classes, or the target."""
        if self.objective.name == SQUARED:
            return (self.target.name,)
        return self.target.levels or ("0", "1")

    @property
    def width(self) -> int:
        """The width of a table of nodes (`task.trees.packed`)."""
        return width_of(max(len(v.levels) for v in self.variables))

    def x(self, table: NamedColumns, *, clipped: bool = False) -> Values:
        """Return the columns of rows, float32 [rows, columns]; arguments and errors as `NamedColumns.of`."""
        columns = [table.of(v, missing=True, clipped=clipped) for v in self.variables]
        return np.stack(columns, axis=1).astype(np.float32)

    def y(self, table: NamedColumns, *, clipped: bool = False) -> Floats:
        """Return the target: a number, or the place of a level; NaN if it is neither and `clipped`.

        Raises:
            DataError: As `NamedColumns.of`, or a row's is not of the objective's values.
        """
        found = table.of(self.target, missing=clipped, clipped=clipped)
        classes = self.objective.name != SQUARED and not self.target.levels
        good = (found == 0) | (found == 1)
        if classes and clipped:
            return np.where(good, found, np.nan)
        if classes and not good.all():
            raise DataError(
                f'column of the target: expected 0 or 1 in each row, as the objective is "'
                f'{self.objective.name}"; got other numbers'
            )
        return found


def columns_in(key: str, columns: str, target: str, *others: Variable) -> tuple[Variables, Variable]:
    """Read the columns, declared by `key`, and the target, by ``target`` of the same section.

    `others` are columns that are in neither.

    Raises:
        ConfigError: A declaration is not of the form, or names a column twice.
    """
    variables = variables_of(key, columns)
    of = variable_of(key.replace("columns", "target"), target)
    roles = " or ".join(["the target", *(v.key.rpartition(".")[2] for v in others)])
    check_once(f'run-config key "{key}"', (*variables, of, *others), f", and not as {roles} too")
    return variables, of


def objective_of(name: str, target: Variable) -> Objective:
    """Return the objective, which a key beside the target's names; "auto" goes by the target.

    Raises:
        ConfigError: The target has not the values that the objective is of.
    """
    levels = len(target.levels)
    auto = SQUARED if not levels else LOGISTIC if levels == 2 else SOFTMAX
    name = auto if name == "auto" else name
    good = {
        SQUARED: not levels,
        LOGISTIC: levels == 2 or (not levels and (target.low, target.high) == (0, 1)),
    }
    if not good.get(name, levels >= 2):
        needs = {SQUARED: "a number with its range", LOGISTIC: 'two levels, or "name(0..1)"'}
        beside = target.key.replace("target", "objective")
        raise ConfigError(
            f'run-config key "{target.key}": expected {needs.get(name, "two levels or more")}, as '
            f'{beside} is "{name}"; got {target.name}'
        )
    if name == SQUARED:
        return Objective(SQUARED, 1, target.high - target.low)
    return Objective(name, levels if name == SOFTMAX else 1)
