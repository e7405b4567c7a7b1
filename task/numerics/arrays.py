"""Named arrays: the form of models outside of PyTorch.

`Arrays` maps the names of a ``state_dict`` to NumPy arrays. *Parameters* are its trainable tensors,
*buffers* the running statistics and counters, *state* is both.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:  # importing torch takes seconds
    import torch

Arrays = dict[str, np.ndarray]
NamedArrays = Mapping[str, np.ndarray]  # to be read only
BLOCK = 1 << 15  # elements processed at once, so that the next pass finds them in the L2 cache


class Digest(Protocol):
    """A hash that goes on, as those of `hashlib` do."""

    def update(self, data: Any, /) -> None:
        """Go on with some bytes."""


def state_of(model: torch.nn.Module) -> Arrays:
    """Return a copy of the model's parameters and buffers, in the order of its ``state_dict``."""
    return {name: a.copy() for name, a in views_of(model).items()}


def views_of(model: torch.nn.Module) -> Arrays:
    """Return the model's parameters and buffers, on a CPU where they are, so that they change with it."""
    return {name: t.detach().cpu().numpy() for name, t in model.state_dict().items()}


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


def forms_of(arrays: NamedArrays) -> Arrays:
    """Return arrays of these names, shapes and dtypes that take no memory."""
    return {name: np.broadcast_to(np.zeros((), a.dtype), a.shape) for name, a in arrays.items()}


def form_of(model: torch.nn.Module) -> Arrays:
    """Return `forms_of` the model's parameters and buffers."""
    return forms_of(views_of(model))


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
