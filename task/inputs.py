"""The inputs of an example that are more than one array of numbers: token ids, and several inputs by name.

A run's data have a *form* if a model reads integers or several inputs:

===========================================  ========================================================
form                                         what a model is called with
===========================================  ========================================================
``""``                                       one float32 tensor ``[B, ...]``, or a text of a set of ours
``int64[16]``                                one int64 tensor ``[B, 16]``
``input_ids:int64[16] age:float32[]``        tensors by name: ``model(input_ids=[B, 16], age=[B])``
===========================================  ========================================================

Inputs by name are stored, gathered and sent to a device as one array ``[N, W]``, a row being all numbers of
an example, one input after the other; the model's call takes it apart (`task.models.adapt`). It is of
integers if all inputs are, of float32 if none is, else of float64, which holds both exactly up to 2^53.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from task.errors import ConfigError, DataError, local

if TYPE_CHECKING:  # importing torch takes seconds
    import torch

SEQUENCES = ("language", "tagging")  # tasks with a class at each token
NUMBERS = ("regression", "multi-label", "survival")  # tasks whose targets are floats
AUTO, IDS = "auto", "ids"  # values of the run-config key "inputs" that are no form
LARGEST_ID = 2**31 - 1
_DTYPES = {"i": "int64", "u": "int64", "b": "bool", "f": "float32"}  # as a model reads them, by NumPy's kind
_ONE = re.compile(r"(?:(?P<name>[A-Za-z_]\w*):)?(?P<dtype>int64|bool|float32)\[(?P<shape>[\d,]*)\]")


@dataclass(frozen=True)
class InputForm:
    """One input of an example."""

    name: str  # of the model's argument; "" = the only one, by place
    dtype: str  # "int64", "bool" or "float32"
    shape: tuple[int, ...]  # of one example

    def __str__(self) -> str:
        return f"{self.name}{':' * bool(self.name)}{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@lru_cache(maxsize=64)
def read_form(form: str) -> tuple[InputForm, ...]:
    """Return the inputs of a form; () of ``""``, ``"auto"`` and ``"ids"``, which name none.

    Raises:
        ConfigError: It is no form.
    """
    if form in ("", AUTO, IDS):
        return ()
    found = [_ONE.fullmatch(part) for part in form.split()]
    inputs = tuple(
        InputForm(m["name"] or "", m["dtype"], tuple(int(d) for d in m["shape"].split(",") if d))
        for m in found
        if m is not None
    )
    names = [one.name for one in inputs]
    named = len(set(names)) == len(names) and ("" not in names or len(names) == 1)
    if len(inputs) < len(found) or not inputs or not named or min(one.size for one in inputs) < 1:
        raise ConfigError(
            'run-config key "inputs": expected "auto", "ids", or the inputs of an example by name, dtype and '
            f'shape, as in "input_ids:int64[16] attention_mask:bool[16]"; got {local(repr(form))}'
        )
    return inputs


def form_of(inputs: Sequence[InputForm]) -> str:
    """Return the form of these inputs."""
    return " ".join(map(str, inputs))


def kind_of(form: str) -> str:
    """Return of which kind a data set of a form is, as `task.datasets.base.Decoded.kind`."""
    floats = [one.dtype == "float32" for one in read_form(form)]
    return "features" if all(floats) else "mixed" if any(floats) else "text"


def by_name(form: str) -> bool:
    """Return whether a model takes the inputs of a form by their names."""
    return any(one.name for one in read_form(form))


def positions(form: str) -> int:
    """Return how many tokens an example of a form has, those of its longest input; 0 = none."""
    return max((one.shape[-1] for one in read_form(form) if one.dtype == "int64" and one.shape), default=0)


def packed(where: str, arrays: Mapping[str, npt.NDArray[Any]]) -> tuple[npt.NDArray[Any], str]:
    """Return inputs by name as one array [N, W], and their form; a single one called "" keeps its shape.

    Raises:
        DataError: They are not of one length, or not of numbers that stay as they are.
    """
    inputs: list[InputForm] = []
    counts = {len(a) for a in arrays.values() if a.ndim}
    for name, array in arrays.items():
        if array.dtype.kind not in _DTYPES or not array.ndim or len(counts) != 1 or not array[:1].size:
            raise DataError(
                f"{local(where)}: expected inputs of numbers, as many examples of each; got "
                f"{local(', '.join(f'{n or chr(120)} {a.dtype}{list(a.shape)}' for n, a in arrays.items()))}"
            )
        _check_numbers(where, name, array)
        inputs.append(InputForm(name, _DTYPES[array.dtype.kind], array.shape[1:]))
    form = form_of(inputs)
    read_form(form)
    dtype = {"text": np.int32, "features": np.float32, "mixed": np.float64}[kind_of(form)]
    if not by_name(form):
        return next(iter(arrays.values())).astype(dtype), form
    return np.concatenate([a.reshape(len(a), -1).astype(dtype) for a in arrays.values()], axis=1), form


def _check_numbers(where: str, name: str, array: npt.NDArray[Any]) -> None:
    """Refuse ids that int32 has not, and floats that float32 has not."""
    if array.dtype.kind == "f":
        limit = float(np.finfo(np.float32).max)
        bad = ~(np.abs(array) <= limit)
        expected = "finite numbers that fit float32"
    else:
        bad = (array < 0) | (array > LARGEST_ID)
        expected = f"ids from 0 to {LARGEST_ID:,}"
    if bad.any():
        at = np.argwhere(bad)[0]
        raise DataError(
            f"{local(where)}: expected {expected} in {name or 'x'}; got {local(array[tuple(at)])} in example "
            f"{int(at[0])}"
        )


def unpacked(x: torch.Tensor, form: str) -> dict[str, torch.Tensor]:
    """Return the inputs by name, each ``[B, *shape]`` of its dtype, of the rows [B, W] of a form."""
    import torch

    inputs = read_form(form)
    parts = torch.split(x, [one.size for one in inputs], dim=1)
    return {
        one.name: part.reshape(-1, *one.shape).to(getattr(torch, one.dtype))
        for one, part in zip(inputs, parts, strict=True)
    }
