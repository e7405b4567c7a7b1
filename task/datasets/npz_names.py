"""The names in an npz file: arrays ``columns`` and ``classes`` of texts.

``columns`` names the inputs of x [N, d] as the header of a csv file does (`task.datasets.header`). A category
with its values, ``job:category(clerk|nurse)``, stands for as many inputs, each 0 or 1. ``classes`` names the
classes 0, 1, ... of y, or the numbers or labels of each example in y [N, C].
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from task.datasets.columns import layout_of
from task.datasets.header import typed_columns
from task.errors import DataError, local

TARGET = "y"  # the name of what is predicted


def column_names(where: str, arrays: Mapping[str, npt.NDArray[Any]], x: npt.NDArray[Any]) -> tuple[str, ...]:
    """Return `task.datasets.base.Decoded.columns`; () if the file names none.

    Raises:
        DataError: They are not the names of the inputs x.
    """
    cells = _names(where, arrays, "columns")
    if not cells:
        return ()
    columns = typed_columns(Path(where), cells)
    width = sum(len(c.inputs) for c in columns)
    unfit = [
        c.name for c in columns if c.type not in ("", "number") and not (c.type == "category" and c.values)
    ]
    if unfit or x.ndim != 2 or width != x.shape[1] or len({c.name for c in columns}) < len(columns):
        raise DataError(
            f"{local(where)}: expected columns to name the inputs of x [N, d], each name once, a category as "
            f"job:category(clerk|nurse) for as many inputs as it has values; got names of {width} inputs for "
            f"x {list(x.shape)}{local(f', {unfit}' if unfit else '', '')}"
        )
    named = (*map(str, columns), TARGET)
    hot = x[:, ~layout_of(named, width)[0]]
    if not (np.isin(hot, (0, 1)) | np.isnan(hot.astype(np.float64))).all():
        raise DataError(f"{local(where)}: expected 0 or 1 in each input of a category; got other numbers")
    return named


def class_names(where: str, arrays: Mapping[str, npt.NDArray[Any]]) -> tuple[str, ...]:
    """Return the names of the classes; () if the file names none.

    Raises:
        DataError: They are not texts, one occurs twice, or their number is not that of y.
    """
    names, y = _names(where, arrays, "classes"), arrays["y"]
    if names and y.ndim == 2 and y.shape[1] != len(names):
        raise DataError(
            f"{local(where)}: expected a name in classes for each of the {y.shape[1]} numbers of an example "
            f"in y; got {len(names)}"
        )
    if len(set(names)) < len(names):
        raise DataError(f"{local(where)}: expected each name in classes once; got {local(list(names))}")
    return names


def _names(where: str, arrays: Mapping[str, npt.NDArray[Any]], what: str) -> tuple[str, ...]:
    given = arrays.get(what, np.zeros(0, np.str_))
    if given.ndim != 1 or given.dtype.kind != "U" or not all(str(name).strip() for name in given):
        raise DataError(
            f"{local(where)}: expected {what} as texts, np.array([...], dtype=str); got {given.dtype} "
            f"{list(given.shape)}"
        )
    return tuple(str(name).strip() for name in given)
