"""The contract of the phase before round 1 in which clients sum up the columns of their tables.

It runs where the run config says ``standardise = true`` or ``missing = "mean"``. Of each column of numbers go
up: how many training examples have a value, the exact sum of the values and, to standardise, that of their
squares (`task.numerics.moments`). Of categories, names and single values nothing does.
"""

from typing import Final

from task.catalogue.entry import MCMAHAN, Algorithm
from task.catalogue.record import Layout, Record

COLUMNS: Final = "columns"  # name of the phase, and of the record that later messages carry down
SUMS = Record(
    "column-sums", Layout("table", "sums"), "number and sum of a column's values", reduce="sum", of="all"
)
SQUARES = Record("column-squares", Layout("table", "squares"), "sum of their squares", reduce="sum", of="all")


def columns_phase(*, squares: bool) -> Algorithm:
    """Return the contract, with or without the `squares`."""
    up = (SUMS, SQUARES) if squares else (SUMS,)
    return Algorithm(
        COLUMNS, "Sums of the columns", MCMAHAN, solver="", down=(), up=up, work="columns", weight="uniform"
    )
