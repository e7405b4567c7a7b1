"""The units of a module that a part of it can leave out, and modules with fewer of them.

Those of a model with adapters are their ranks: rows of A and columns of B. Of other models they are read from
an ``nn.Sequential``, perhaps of others. The outputs of a dense layer and the filters of a
convolution form a group if the next layer with weights reads them unit by unit, with nothing but element-wise
layers, pooling, flattening, batch and group normalisation in between. Never cut are the inputs, the outputs,
and everything that a layer of another kind (recurrent, attention, grouped convolution, a user's own) writes
or reads.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from task.adapters.names import Factors, pairs_of
from task.errors import ConfigError
from task.models import layers
from task.models.family import Axis, SubModel, UnitGroup, Units
from task.numerics.arrays import frozen_in

DENSE = (nn.Linear,)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, layers.Conv2d)
BATCH_NORMS = (*layers.LONE_EXAMPLE.keys(), *layers.LONE_EXAMPLE.values())
POOLING = (
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d, nn.Dropout2d, nn.Dropout3d,
)  # fmt: skip
ELEMENT_WISE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus,
    nn.Tanh, nn.Hardtanh, nn.Hardswish, nn.Sigmoid, nn.LogSigmoid, nn.Dropout, nn.Identity,
)  # fmt: skip


class _Open:
    """The units of the last layer with weights, until it is known whether they form a group."""

    def __init__(self, size: int, *tensors: str) -> None:
        self.size, self.blocks = size, 1
        self.tensors = dict.fromkeys(tensors, 1)  # by tensor, whose first axis they are, positions for each


def units_of(model: nn.Module, shape: tuple[int, ...], key: str = "dropout-width") -> Units:
    """Return the units of a model that can be left out; `shape` is that of one example.

    `key` is the run-config key that asks for parts of it.

    Raises:
        ConfigError: The model is no chain of layers, or has no such units.
    """
    if pairs := pairs_of(dict(model.named_parameters())):
        return _ranks(key, model, pairs)
    if type(model) is not nn.Sequential:
        raise _refused(
            key,
            "a model that is a chain of layers (nn.Sequential), as another may add or share the outputs of "
            f"several layers, whose units would have to be left out together; got {type(model).__name__}",
        )
    groups: list[UnitGroup] = []
    axes: defaultdict[str, dict[int, Axis]] = defaultdict(dict)  # by tensor and number of the axis
    found: _Open | None = None
    flat = len(shape) == 1  # whether examples are vectors here: [B, features]
    used = Counter(id(layer) for _, layer in _chain(model))
    for path, layer in _chain(model):
        kind = type(layer) if used[id(layer)] == 1 and _plain(layer) else None
        if kind in (DENSE if flat else CONVOLUTIONS) and getattr(layer, "groups", 1) == 1:
            outputs, inputs = layer.weight.shape[:2]
            if found and inputs % found.size == 0:
                for name, repeat in found.tensors.items():
                    axes[name][0] = Axis(len(groups), repeat)
                axes[f"{path}.weight"][1] = Axis(len(groups), inputs // found.size)
                groups.append(UnitGroup(found.size, found.blocks))
            found = _Open(outputs, *_tensors(path, layer))
        elif kind in BATCH_NORMS and (not found or layer.num_features % found.size == 0):
            if found:
                found.tensors |= dict.fromkeys(_tensors(path, layer), layer.num_features // found.size)
        elif kind is nn.GroupNorm and (not found or _fits(layer, found)):
            if found:
                found.tensors |= dict.fromkeys(_tensors(path, layer), 1)
                own = layer.num_groups == layer.num_channels  # each channel by itself
                found.blocks = found.blocks if own else layer.num_groups
        elif kind is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
            flat = True
        elif kind not in (*ELEMENT_WISE, *(() if flat else POOLING)):
            found, flat = None, False
    if not groups:
        raise _refused(
            key,
            "a model with hidden layers, dense or convolutional, whose units can be left out; got none that "
            "the next layer reads unit by unit",
        )
    return Units(
        tuple(groups), {n: tuple(own.get(i) for i in range(max(own) + 1)) for n, own in axes.items()}
    )


def _ranks(key: str, model: nn.Module, pairs: tuple[Factors, ...]) -> Units:
    """Return the ranks of a model's adapters as units: a row of A and a column of B each."""
    sizes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    groups = {pair: sizes[pair.a][0] for pair in pairs}
    if wrong := next((p for p, r in groups.items() if sizes[p.b][1] != r), None):
        raise _refused(key, f"adapters with as many rows of A as columns of B; got {wrong.a!r}")
    axes: dict[str, tuple[Axis | None, ...]] = {}
    for number, pair in enumerate(pairs):
        axes |= {pair.a: (Axis(number), None), pair.b: (None, Axis(number))}
    return Units(tuple(UnitGroup(r) for r in groups.values()), axes)


def smaller(model: nn.Module, part: SubModel) -> nn.Module:
    """Return a copy of a model with the units of a part only; what is frozen is shared by both."""
    frozen = {id(p): p for n, p in model.named_parameters() if n in frozen_in(model)}
    small = deepcopy(model, {**frozen})
    for name in part.units.axes:
        path, _, own = name.rpartition(".")
        layer: Any = small.get_submodule(path)
        old = getattr(layer, own)
        new = torch.from_numpy(old.detach().cpu().numpy()[part.index(name)].copy()).to(old.device)
        parameter = isinstance(old, nn.Parameter)
        # A list of parameters, as of the adapters of embeddings, has its own way to set one.
        made = nn.Parameter(new, old.requires_grad) if parameter else new
        layer.update({own: made}) if isinstance(layer, nn.ParameterDict) else setattr(layer, own, made)
        _say_sizes(layer)
    return small


def _say_sizes(layer: Any) -> None:
    """Let a layer's attributes say the sizes that its tensors have."""
    if type(layer) in DENSE:
        layer.out_features, layer.in_features = layer.weight.shape
    elif type(layer) in CONVOLUTIONS and layer.groups == 1:
        layer.out_channels, layer.in_channels = layer.weight.shape[:2]
    elif type(layer) in BATCH_NORMS:
        sizes = [len(t) for t in (layer.weight, layer.running_mean) if t is not None]
        layer.num_features = sizes[0] if sizes else layer.num_features
    elif type(layer) is nn.GroupNorm and layer.weight is not None:
        own = layer.num_groups == layer.num_channels
        layer.num_channels = len(layer.weight)
        layer.num_groups = layer.num_channels if own else layer.num_groups


def _chain(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the layers in the order in which examples pass them, with their paths."""
    for name, child in model.named_modules(remove_duplicate=False):
        if name and "." not in name:
            nested = type(child) is nn.Sequential
            yield from _chain(child, f"{prefix}{name}.") if nested else [(f"{prefix}{name}", child)]


def _plain(layer: nn.Module) -> bool:
    """Return whether a layer's parameters are those of its class, not what a reparametrisation leaves."""
    return {name for name, _ in layer.named_parameters(recurse=False)} <= {"weight", "bias"}


def _tensors(path: str, layer: nn.Module) -> list[str]:
    """Return the names of a layer's own tensors that have an axis."""
    own = (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False))
    return [f"{path}.{name}" for name, tensor in own if tensor.dim()]


def _fits(norm: nn.GroupNorm, found: _Open) -> bool:
    """Return whether a group normalisation still is one when units are left out."""
    own = norm.num_groups == norm.num_channels
    return norm.num_channels == found.size and norm.affine and (own or found.blocks in (1, norm.num_groups))


def _refused(key: str, expected: str) -> ConfigError:
    return ConfigError(f'run-config key "{key}": expected {expected}. Set it to 1, or choose another "model"')
