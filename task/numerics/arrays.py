"""Named arrays: the form of models outside of PyTorch.

`Arrays` maps the names of a ``state_dict`` to NumPy arrays. *Parameters* are its trainable tensors,
*buffers* the running statistics and counters, *state* is both.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from task.numerics import pages

if TYPE_CHECKING:  # importing torch takes seconds
    import torch

Arrays = dict[str, np.ndarray]
NamedArrays = Mapping[str, np.ndarray]  # to be read only
BLOCK = 1 << 16  # elements processed at once, so that the next pass finds them in the L2 cache
BFLOAT16 = np.dtype("V2")  # NumPy has no bfloat16: its bits, with which nothing can be computed by mistake
FIXED, THAWED = "_bouquet_fixed", "_bouquet_thawed"  # attributes of a module, see `task.models.frozen`


class Digest(Protocol):
    """A hash that goes on, as those of `hashlib` do."""

    def update(self, data: Any, /) -> None:
        """Go on with some bytes."""


def ties_of(model: torch.nn.Module) -> dict[str, str]:
    """Return, by each further name of a tensor that layers share, the first, by which it is known here."""
    first: dict[int, str] = {}
    named = chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    return {name: known for name, t in named if (known := first.setdefault(id(t), name)) != name}


def tensors_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the model's parameters and buffers in the order of its ``state_dict``, tied ones once."""
    ties = ties_of(model)
    return {name: t.detach() for name, t in model.state_dict().items() if name not in ties}


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor as an array, in its memory if that is on the CPU; of bfloat16 the bits, copied."""
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":  # the upper half of a float32
        bits: np.ndarray = tensor.float().numpy().view(np.uint32) >> 16
        return np.asarray(bits, np.uint16).view(BFLOAT16)
    found: np.ndarray = tensor.numpy()
    return found


def state_of(model: torch.nn.Module, without: Collection[str] = ()) -> Arrays:
    """Return a copy of the model's parameters and buffers, in the order of its ``state_dict``, but for some.

    A tied parameter is in it once.
    """
    return {name: array_of(t).copy() for name, t in tensors_of(model).items() if name not in without}


def shared_state(model: torch.nn.Module, names: Iterable[str]) -> Arrays:
    """Return copies of some of the model's tensors; in a simulation for all its processes."""
    tensors = tensors_of(model)
    return pages.copied({name: array_of(tensors[name]) for name in names})


def forms_of(arrays: NamedArrays) -> Arrays:
    """Return arrays of these names, shapes and dtypes that take no memory."""
    return {name: np.broadcast_to(np.zeros((), a.dtype), a.shape) for name, a in arrays.items()}


def form_of(model: torch.nn.Module, without: Collection[str] = ()) -> Arrays:
    """Return `forms_of` what `state_of` returns."""
    return forms_of({n: array_of(t) for n, t in tensors_of(model).items() if n not in without})


def frozen_in(model: torch.nn.Module) -> tuple[str, ...]:
    """Return the names of the tensors that a module keeps apart from what it loads, in its order."""
    return () if getattr(model, THAWED, False) else fixed_in(model)


def fixed_in(model: torch.nn.Module) -> tuple[str, ...]:
    """Return the names of the tensors that no training of a model changes, in its order."""
    found: tuple[str, ...] = getattr(model, FIXED, ())
    return found


def trainable_names(model: torch.nn.Module) -> tuple[str, ...]:
    """Return the names of the parameters, without buffers, in the model's order."""
    return tuple(name for name, p in model.named_parameters() if p.requires_grad)


def presumed_trainable(arrays: NamedArrays) -> tuple[str, ...]:
    """Return the parameters' names if they are not given: those of all floating arrays.

    PyTorch's running statistics of normalisation layers are left out, by their names.
    """
    return tuple(name for name, a in arrays.items() if a.dtype.kind == "f" and not is_statistic(name))


def is_statistic(name: str) -> bool:
    """Return whether this is a name of PyTorch's normalisation layers for a buffer that training moves."""
    return name.split(".")[-1] in ("running_mean", "running_var")


def blocks(size: int, length: int = 1 << 13) -> Iterator[slice]:
    """Cut `size` elements into slices whose float64 temporaries (64 KiB each) stay in the cache."""
    for i in range(0, size, length):
        yield slice(i, min(i + length, size))


def only(arrays: NamedArrays, names: Iterable[str]) -> Arrays:
    """Return the named subset, in the order of `names`."""
    return {name: arrays[name] for name in names}


def rounded(wide: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return numbers, float64, in a dtype; as integers they are rounded to the nearest, halves up.

    What arithmetic makes of an array of no dimensions is a number; here it is an array again.
    """
    whole = dtype.kind in "iu" and np.asarray(wide).dtype.kind == "f"
    return np.asarray(np.floor(wide + 0.5) if whole else wide).astype(dtype)


def of_text(text: str) -> np.ndarray:
    """Return a text as an array, such as a checkpoint holds it: its bytes, uint8."""
    return np.frombuffer(text.encode(), np.uint8).copy()


def text_in(array: np.ndarray) -> str:
    """Return the text of `of_text`."""
    return array.tobytes().decode()


def flattened(records: Mapping[str, NamedArrays]) -> Arrays:
    """Return the arrays of records as ``record/name``."""
    return {f"{record}/{name}": a for record, arrays in records.items() for name, a in arrays.items()}


def squared_norm(arrays: NamedArrays) -> float:
    """Return the squared L2 norm of all arrays together, added up in float64.

    Without BLAS, whose threads wait for each other.
    """
    return math.fsum(float(np.square(a, dtype=np.float64).sum()) for a in arrays.values())


def sha256(arrays: NamedArrays) -> str:
    """Return the SHA-256 of names, dtypes, shapes and bytes, whatever the order of the mapping."""
    digest = hashlib.sha256()
    hash_into(digest, arrays)
    return digest.hexdigest()


def hash_into(digest: Digest, arrays: NamedArrays) -> None:
    """Update a digest with names, dtypes, shapes and bytes, whatever the order of the mapping."""
    for name in sorted(arrays):
        a = np.asarray(arrays[name], order="C")
        digest.update(f"{name}|{a.dtype.str}|{a.shape}|".encode())
        digest.update(a.data if a.ndim else a.tobytes())
