"""Named arrays into PyTorch."""

import numpy as np
import torch
from torch import nn

from task.numerics.arrays import BFLOAT16, NamedArrays, frozen_in, tensors_of


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """Return an array as a tensor in the array's memory."""
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def load_into(model: nn.Module, arrays: NamedArrays) -> None:
    """Copy arrays into a module; only what is frozen in it (`task.models.frozen`) may be missing.

    Raises:
        KeyError: Another tensor is missing.
    """
    left = frozen_in(model)
    with torch.no_grad():
        for name, tensor in tensors_of(model).items():
            if name in arrays or name not in left:
                tensor.copy_(tensor_of(arrays[name]))
