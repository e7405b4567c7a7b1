"""Named arrays into PyTorch."""

import warnings
import weakref
from copy import deepcopy
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from task.numerics import pages
from task.numerics.arrays import BFLOAT16, Arrays, NamedArrays, array_of, frozen_in, tensors_of

# By model, the arrays that others use and that its tensors lie in.
_lent: WeakKeyDictionary[nn.Module, list[weakref.ref[np.ndarray]]] = WeakKeyDictionary()


def _hear_of_read_only_arrays() -> None:
    """Let PyTorch say once, to nobody, that an array is read-only: the tensors of such are only read."""
    array = np.zeros(1)
    array.setflags(write=False)
    with warnings.catch_warnings(action="ignore"):
        torch.from_numpy(array)


_hear_of_read_only_arrays()


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """Return an array as a tensor in its memory; one of a read-only array is not to be written either."""
    half = array.dtype == BFLOAT16
    array = array.view(np.int16) if half else array
    if not array.flags.writeable:
        array = np.asarray(_Writable(array))
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if half else tensor


class _Writable:
    """An array as one that can be written, since PyTorch warns of others: nothing here writes into it."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, about = array, array.__array_interface__
        self.__array_interface__ = {**about, "data": (about["data"][0], False)}


def seed_drawing(seed: int, device: torch.device) -> None:
    """Seed torch's global generators that draw for a model on a device.

    `torch.manual_seed` keeps a traceback for each accelerator that is not in use and imports the compiler:
    milliseconds and some memory for each client, and seconds in each process.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def copied(model: nn.Module) -> nn.Module:
    """Return a copy of a module; its frozen parameters are those of the module itself."""
    held = {*frozen_in(model)}
    return deepcopy(model, {id(p): p for name, p in model.named_parameters() if name in held})


def load_into(model: nn.Module, arrays: NamedArrays) -> None:
    """Copy arrays into a module; only what is frozen in it (`task.models.frozen`) may be missing.

    It gets new memory where its own is in use as arrays, see `lent_by` and `compute_with`.

    Raises:
        KeyError: Another tensor is missing.
    """
    left, tensors = frozen_in(model), tensors_of(model)
    into = [name for name in tensors if name in arrays or name not in left]
    if any(array() is not None for array in _lent.pop(model, ())):
        _place(model, {name: torch.empty_like(tensors[name]) for name in into})
        tensors = tensors_of(model)
    with torch.no_grad():
        for name in into:
            tensors[name].copy_(tensor_of(arrays[name]))


def lent_by(model: nn.Module) -> Arrays:
    """Return what a model on the CPU travels with as arrays, in its own memory.

    Training changes them, and `load_into` does not, as long as any of them is in use.
    """
    left = frozen_in(model)
    arrays = {name: array_of(t) for name, t in tensors_of(model).items() if name not in left}
    _lent.setdefault(model, []).extend(weakref.ref(a) for a in arrays.values())
    return arrays


def compute_with(model: nn.Module, arrays: NamedArrays) -> None:
    """Do what `load_into` does for a module that is not trained then.

    On a CPU it computes with arrays that lie in pages (`task.numerics.pages`) as they are, without a copy.
    """
    here = {name: pages.alias(a) for name, a in arrays.items()}
    given = {name: tensor_of(a) for name, a in here.items() if a is not None}
    tensors = tensors_of(model)
    left = frozen_in(model)
    wanted = {name: t for name, t in tensors.items() if name in arrays or name not in left}
    if not all(n in given and given[n].dtype == t.dtype and t.is_cpu for n, t in wanted.items()):
        load_into(model, arrays)
        return
    _place(model, {name: given[name] for name in wanted})
    _lent[model] = [weakref.ref(a) for a in here.values() if a is not None]


def _place(model: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """Have a module's tensors lie where these do."""
    named: dict[str, torch.Tensor] = dict(model.named_parameters())
    named |= dict(model.named_buffers())
    for name, tensor in tensors.items():
        named[name].data = tensor
