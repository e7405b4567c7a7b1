"""What is asked for on the command line: cells by their names, seeds, and how long it may take."""

import fnmatch
import math
import re
from collections.abc import Sequence
from dataclasses import replace

from server_app.extras.reproduce.tables import Cell, PublishedTable, crossed, read_table, tables
from task.errors import ConfigError, choose_from

UNITS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def chosen_cells(
    table: str, globs: Sequence[str], seeds: str, *, quoted: bool = False
) -> list[tuple[PublishedTable, Cell]]:
    """Return the cells that are asked for, with their tables; `quoted` leaves those with published values."""
    found = sorted((read_table(name) for name in ([table] if table else tables())), key=lambda t: t.group)
    numbers = tuple(int(word) for word in seeds.split(",")) if re.fullmatch(r"\d+(,\d+)*", seeds) else ()
    if seeds and (not numbers or len(set(numbers)) < len(numbers)):
        raise ConfigError(f"--seeds: expected different whole numbers, e.g. 1,2,3; got {seeds}")
    names = [name for t in found for name in t.cells]
    for glob in globs:
        if not fnmatch.filter(names, glob):
            raise ConfigError(choose_from("--cells", glob, dict.fromkeys(names)))
    chosen = [
        (t, cell)
        for t in found
        for name, cell in t.cells.items()
        if not globs or any(fnmatch.fnmatch(name, glob) for glob in globs)
    ]
    if quoted and not any(cell.published is not None for _, cell in chosen):
        raise ConfigError(
            f"--quoted: expected a cell with a value of its paper; got {len(chosen)} without. Leave --quoted "
            "out, or choose other cells"
        )
    return [
        (t, _with_seeds(cell, numbers) if numbers else cell)
        for t, cell in chosen
        if not quoted or cell.published is not None
    ]


def _with_seeds(cell: Cell, seeds: Sequence[int]) -> Cell:
    return replace(cell, seeds=crossed(seeds, [*dict.fromkeys(s.data for s in cell.seeds)]))


def seconds_of(budget: str) -> float:
    """Return a budget in seconds; without a budget, infinity."""
    if not budget:
        return math.inf
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d)", budget) if budget != "0" else None
    if budget != "0" and match is None:
        raise ConfigError(
            f"--budget: expected a number and s, min, h or d, such as 90min or 2h; got {budget}"
        )
    return float(match[1]) * UNITS[match[2]] if match else 0.0
