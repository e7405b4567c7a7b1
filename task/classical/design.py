"""The design of a regression: the columns that the run declares (`task.classical.columns`), in this order.

The intercept, ``const``, is the first column of every design. A category's first level is the baseline; the
others are columns of 0 and 1, ``sex=Male``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from task.classical.columns import Floats, NamedColumns, Variable, check_once, variable_of, variables_of
from task.errors import ConfigError

CONST = "const"
# Columns that are neither in X nor the target, each of numbers with a range.
OTHERS = ("trials", "offset", "exposure", "frequency", "weights")
MOST_COLUMNS = 128  # of a design: the server inverts its matrix exactly


@dataclass(frozen=True)
class Design:
    """The columns of X, the target, and the columns that say more of a row, by their run-config key."""

    variables: tuple[Variable, ...]
    target: Variable
    others: Mapping[str, Variable] = field(default_factory=dict)  # of `OTHERS`

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of X."""
        found = [CONST]
        for v in self.variables:
            found += [f"{v.name}={level}" for level in v.levels[1:]] if v.levels else [v.name]
        return tuple(found)

    @cached_property
    def scales(self) -> tuple[float, ...]:
        """The scales of the columns of X."""
        found = [1.0]
        for v in self.variables:
            found += [1.0] * (len(v.levels) - 1) if v.levels else [v.scale]
        return tuple(found)

    def columns(self, table: NamedColumns) -> list[Floats]:
        """Return the columns of X as they are, unscaled; raises what `NamedColumns.of` does."""
        found = [np.ones(table.rows)]
        for v in self.variables:
            values = table.of(v)
            if v.levels:
                found += [(values == place).astype(np.float64) for place in range(1, len(v.levels))]
            else:
                found.append(values)
        return found


def design_of(columns: str, target: str, others: Mapping[str, str] | None = None) -> Design:
    """Read the declarations; `others` has those of `OTHERS`, "" = there is none.

    Raises:
        ConfigError: One is not of the form, has no range, or names a column twice.
    """
    variables = variables_of("regression.columns", columns)
    found = variable_of("regression.target", target)
    given = {name: text for name, text in (others or {}).items() if text}
    more = {name: variable_of(f"regression.{name}", text) for name, text in given.items()}
    all_ = [*variables, found, *more.values()]
    none = f', and none called "{CONST}", the intercept'
    check_once('run-config key "regression.columns"', all_, none, (CONST,))
    for name, v in more.items():
        if v.levels or (v.low < 0 and name != "offset"):
            from_0 = "" if name == "offset" else " from 0"
            raise ConfigError(
                f'run-config key "regression.{name}": expected a column of numbers with its range{from_0}, '
                f'"name(0..9)"; got {given[name]!r}'
            )
    if "trials" in more and found.levels:
        raise ConfigError(
            'run-config key "regression.target": expected the number of successes with its range, as '
            f"regression.trials is given; got {target!r}"
        )
    if len(found.levels) > 2:
        raise ConfigError(
            f'run-config key "regression.target": expected a number, or two levels; got {target!r}'
        )
    made = Design(variables, found, more)
    if len(made.names) > MOST_COLUMNS:
        raise ConfigError(
            f'run-config key "regression.columns": expected at most {MOST_COLUMNS} columns with the intercept'
            f" and the levels; got {len(made.names)}"
        )
    return made
