"""What regressions by exact sums have in common: the coefficients asked for, and steps that are halved."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from strategies.engine.state import ServerState, Updated
from task.classical.fit import MOST_HALVINGS, midpoint
from task.errors import DataError
from task.numerics.arrays import Arrays


@dataclass(frozen=True)
class IteratedState(ServerState):
    """The result so far, and where an iteration over coefficients stands."""

    coefficients: Arrays = field(default_factory=dict)
    best: Arrays = field(default_factory=dict)  # the best coefficients so far
    deviance: float = -1.0  # theirs; -1 = there are none
    decrement: float = 1e300
    iterations: int = 0
    halvings: int = 0
    converged: bool = False


T = TypeVar("T", bound=IteratedState)


def halved(state: T, far: int, aim: str, remedy: str) -> Updated[T]:
    """Return the state halfway back to the best coefficients, after a step that was not what they aim at.

    Raises:
        DataError: That does not help.
    """
    if not state.best or state.halvings >= MOST_HALVINGS:
        raise DataError(
            f"expected steps that {aim}; {state.halvings} halvings of one did not, with {far} rows too far "
            f"out. {remedy}"
        )
    half, halvings = midpoint(beta_in(state.best), beta_in(state.coefficients)), state.halvings + 1
    return replace(state, coefficients=as_rows(half), halvings=halvings), {"halvings": halvings}


def as_rows(beta: Sequence[float]) -> Arrays:
    """Return coefficients as they travel.

    >>> beta_in(as_rows([0.5, -1.0]))
    [0.5, -1.0]
    """
    return {"coefficients": np.array(beta, np.float64)[:, None]}


def beta_in(rows: Arrays) -> list[float]:
    """Return the coefficients of what travels."""
    return [float(b) for b in rows["coefficients"][:, 0]]
