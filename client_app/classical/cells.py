"""Rules on the counts that sums over a client's rows have in them, where its owner sets ``min-examples``.

The sum of a column of 0 and 1 is a count, and so is the sum of the product of two. A refusal reads the same
for no person as for one fewer than allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from task.classical.columns import Floats
from task.errors import RefusedError

ROWS_PER_COLUMN = 10  # fewest rows for each column of a matrix of products
Indicator = tuple[str, str, npt.NDArray[np.bool_]]  # column, variable, and where it is 1


def indicators(columns: Iterable[tuple[str, str, Floats]]) -> list[Indicator]:
    """Return those columns (name, variable, values) that have 0 and 1 alone."""
    return [(name, of, x == 1) for name, of, x in columns if ((x == 0) | (x == 1)).all()]


def check_rows(n: int, p: int, least: int, client: str) -> None:
    """Refuse a matrix of products of p columns of few rows.

    Raises:
        RefusedError: Naming the rule.
    """
    if n < ROWS_PER_COLUMN * p:
        raise RefusedError(
            f"policy: min-examples = {least}; a design of {p} columns needs {ROWS_PER_COLUMN * p} rows of "
            f"client {client}, which has fewer"
        )


def check_counts(found: Sequence[Indicator], n: int, least: int, client: str, *, pairs: bool = True) -> None:
    """Refuse columns of 0 and 1 whose sums, or with `pairs` those of two, count fewer than `least` persons.

    Raises:
        RefusedError: Naming the rule and the columns.
    """
    for name, _, ones in found:
        if min(int(ones.sum()), n - int(ones.sum())) < least and ones.any() and not ones.all():
            raise RefusedError(
                f"policy: min-examples = {least}; column {name} would have a cell of fewer persons of client "
                f"{client}"
            )
    for (first, variable, a), (second, other, b) in combinations(found, 2) if pairs else ():
        if variable == other or not a.any() or not b.any() or a.all() or b.all():
            continue  # levels of one category exclude each other
        cells = (a & b, a & ~b, ~a & b, ~a & ~b)
        if min(int(cell.sum()) for cell in cells) < least:
            raise RefusedError(
                f"policy: min-examples = {least}; columns {first} and {second} together would have a cell of "
                f"fewer persons of client {client}"
            )
