"""The frozen part of a model: what no client changes, so that it does not travel and is not kept twice.

*Trained* are the parameters that require a gradient once the run-config key ``trainable`` was applied; a
*moving* buffer is one that a forward pass in training changes, such as a running mean. What is trained or
moves travels. *Frozen* is the rest of the state dict, a tied parameter once.

Moving buffers are found by their bytes: PyTorch's version counters stay where they are as batch normalisation
moves its statistics, and these move also where weight and bias are frozen.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

import torch
from torch import nn

from task.errors import ConfigError
from task.models.adapt import Interface
from task.models.brought import examples
from task.numerics.arrays import FIXED, THAWED, NamedArrays, tensors_of
from task.numerics.tensors import tensor_of
from task.references import is_reference

NEAREST = 5  # names that an error lists


def settle(
    name: str,
    model: nn.Module,
    trainable: Sequence[str],
    shape: tuple[int, ...],
    *,
    text: bool = False,
    interface: Interface | None = None,
) -> None:
    """Freeze what no pattern of `trainable` names, and mark what does not travel.

    Of a model by reference, what moves is tried on made-up examples of `shape`, so that every process finds
    the same; of ours all buffers do.

    Raises:
        ConfigError: A pattern names nothing that can be trained, or nothing is, or not in float32.
    """
    freeze(model, trainable)
    check_trained(name, model)
    x = examples(model, shape, 2, text=text, interface=interface) if is_reference(name) else None
    mark(name, model, x)


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze all parameters that no pattern names; those that the model's code froze stay so.

    A tied parameter goes by any of its names.

    Raises:
        ConfigError: A pattern names no parameter, or only ones that the code froze.
    """
    if not patterns:
        return
    named = dict(model.named_parameters(remove_duplicate=False))
    wanted: set[int] = set()
    for pattern in patterns:
        mine = [name for name in named if fnmatchcase(name, pattern)]
        if not mine:
            near = get_close_matches(pattern.replace("*", ""), named, NEAREST, 0.0)
            raise ConfigError(
                f'run-config key "trainable": expected patterns of parameter names; got "{pattern}", which '
                f"names none of {len(named)}. The nearest are {', '.join(near)}"
            )
        if not any(named[name].requires_grad for name in mine):
            raise ConfigError(
                f'run-config key "trainable": expected parameters that can be trained; got "{pattern}", '
                f"which names only ones that the model's code freezes, such as {mine[0]!r} "
                "(requires_grad = False)"
            )
        wanted |= {id(named[name]) for name in mine}
    for p in named.values():
        p.requires_grad_(p.requires_grad and id(p) in wanted)


def check_trained(reference: str, model: nn.Module) -> None:
    """Refuse a model of which nothing is trained, or something in another dtype than float32.

    Raises:
        ConfigError: Naming the parameter.
    """
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise _refused(reference, "parameters to train", "none")
    for name, p in trained.items():
        if p.dtype != torch.float32:
            raise _refused(
                reference, "float32 parameters where they are trained",
                f"{str(p.dtype)[6:]} in {name!r}; use .float() for it, or freeze it (requires_grad = False, "
                'or the run-config key "trainable")',
            )  # fmt: skip


def mark(reference: str, model: nn.Module, x: torch.Tensor | None) -> None:
    """Find the frozen part of a model, and note it in the module for `task.numerics.arrays.fixed_in`.

    Without examples `x`, or if a training pass over them fails, all buffers count as moving.

    Raises:
        ConfigError: A buffer moves and has a dtype that no average can be made of.
    """
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    parameters = {n for n, _ in model.named_parameters()}
    tensors = tensors_of(model)
    buffers = {n: t for n, t in tensors.items() if n not in parameters}
    still = _still(model, buffers, x) if buffers and x is not None else set()
    for name, tensor in buffers.items():
        if name not in still and tensor.dtype == torch.bfloat16:
            raise _refused(
                reference, "buffers in float32 where training moves them",
                f"bfloat16 in {name!r}; use .float() for its layer, or keep that in evaluation mode",
            )  # fmt: skip
    frozen = tuple(n for n in tensors if n not in trained and (n in parameters or n in still))
    if frozen:
        setattr(model, FIXED, frozen)


def thaw(model: nn.Module) -> nn.Module:
    """Have a module load and return all its tensors, those that are frozen, too."""
    vars(model)[THAWED] = True
    return model


def use(model: nn.Module, arrays: NamedArrays) -> nn.Module:
    """Have a module use these arrays as its frozen part: the parameters in place, buffers as copies.

    A buffer that moves after all then does not change the arrays.
    """
    parameters = dict(model.named_parameters())
    for name, array in arrays.items():
        if name in parameters:
            parameters[name].data = tensor_of(array)
        else:
            path, _, own = name.rpartition(".")
            model.get_submodule(path).register_buffer(own, tensor_of(array).clone())
    return model


def _still(model: nn.Module, buffers: dict[str, torch.Tensor], x: torch.Tensor) -> set[str]:
    """Return the buffers that a forward pass in training leaves as they are."""
    before, was = {n: t.clone() for n, t in buffers.items()}, model.training
    modes = {m: m.training for m in model.modules()}
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            model.train()(x.clone())
        return {n for n, t in buffers.items() if _same_bits(t, before[n])}
    except Exception:  # of the user's code; the trial says what is wrong with it, if anything
        return set()
    finally:
        with torch.no_grad():
            for name, tensor in buffers.items():
                tensor.copy_(before[name])
        model.train(was)
        for module, mode in modes.items():
            module.training = mode


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))


def _refused(reference: str, expected: str, got: str) -> ConfigError:
    return ConfigError(f'run-config key "model": "{reference}": expected {expected}; got {got}')
