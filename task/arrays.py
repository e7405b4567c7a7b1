"""Named arrays: what a model is outside of PyTorch.

`Arrays` maps the names of a ``state_dict`` to NumPy arrays. *Parameters* are its trainable tensors,
*buffers* the running statistics and counters, *state* is both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
import torch

Arrays = dict[str, np.ndarray]


def state_of(model: torch.nn.Module) -> Arrays:
    """Return a copy of the model's parameters and buffers, in the order of its ``state_dict``."""
    return {name: t.detach().cpu().numpy().copy() for name, t in model.state_dict().items()}


def trainable_names(model: torch.nn.Module) -> tuple[str, ...]:
    """Return the names of the parameters, without buffers, in the model's order."""
    return tuple(name for name, p in model.named_parameters() if p.requires_grad)


def only(arrays: Mapping[str, np.ndarray], names: Iterable[str]) -> Arrays:
    """Return the named subset, in the order of `names`."""
    return {name: arrays[name] for name in names}


def sha256(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of names, dtypes, shapes and bytes, whatever the order of the mapping."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        a = np.asarray(arrays[name], order="C")
        digest.update(f"{name}|{a.dtype.str}|{a.shape}|".encode())
        digest.update(a.data if a.ndim else a.tobytes())
    return digest.hexdigest()
