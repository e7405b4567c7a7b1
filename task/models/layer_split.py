"""Parts of a model: its layers, and which of its tensors never leave a client.

A *layer* is a module that owns parameters itself, such as one linear map with its weight and bias.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from task.catalogue.entry import Private
from task.errors import ConfigError
from task.models.layers import Twin

LinearCall = tuple[str, torch.Tensor, torch.Tensor]


def layers_of(model: nn.Module) -> list[tuple[str, ...]]:
    """Return the ``state_dict`` names of each module that owns parameters or buffers itself, in order."""
    owners: dict[str, list[str]] = {}
    for name in model.state_dict():
        owners.setdefault(name.rpartition(".")[0], []).append(name)
    return [tuple(names) for names in owners.values()]


def private_names(
    model: nn.Module, private: Private, layers: int = 0, patterns: Sequence[str] = ()
) -> frozenset[str]:
    """Return the names of the tensors, parameters and buffers, that stay at the clients.

    `private` says which part, as in `task.catalogue.entry.Algorithm`; the "head" are the last `layers`, 0 =
    none, or what `patterns` name, and the "body" is all but the last `layers`.

    Raises:
        ConfigError: The model has no such part.
    """
    if private == "head":
        return _named(model, patterns) if patterns else _last_layers(model, layers, "personal.layers")
    if private == "body":
        return frozenset(model.state_dict()) - _last_layers(model, layers, "lg-fedavg.layers")
    if private == "norm":
        names = {
            f"{path}.{name}" if path else name
            for path, module in model.named_modules()
            if isinstance(module, _BatchNorm)
            for name in module.state_dict()
        }
        if not names:
            raise ConfigError(
                'run-config key "model": FedBN needs a model with batch normalisation, such as cnn-bn or '
                f"mlp-bn; got {type(model).__name__} without"
            )
        return frozenset(names)
    if private == "twin":
        if not isinstance(model, Twin):
            raise ConfigError(
                f"FENDA needs a twin model, build_model(..., twin=True); got {type(model).__name__}"
            )
        return frozenset(n for n in model.state_dict() if n.split(".")[0] != "shared")
    return frozenset(model.state_dict() if private == "all" else ())


def _last_layers(model: nn.Module, layers: int, key: str) -> frozenset[str]:
    parameters = {name for name, p in model.named_parameters() if p.requires_grad}
    owners = layers_of(model)
    starts = [i for i, names in enumerate(owners) if parameters & {*names}]
    _check(key, layers, len(starts), "the model")
    if layers == 0:
        return frozenset()
    first = starts[-layers] if layers < len(starts) else 0
    return frozenset(n for names in owners[first:] for n in names)


def _named(model: nn.Module, patterns: Sequence[str]) -> frozenset[str]:
    """Return the tensors that patterns name, each a tensor, a module with all in it, or both by ``*``."""
    found: set[str] = set()
    for pattern in patterns:
        mine = {
            name
            for name in model.state_dict()
            if any(fnmatchcase(part, pattern) for part in (name, *_modules_of(name)))
        }
        if not mine:
            layers = ", ".join(dict.fromkeys(n.rpartition(".")[0] or n for n in model.state_dict()))
            raise ConfigError(
                f'run-config key "private-layers": expected names or patterns of layers ({layers}) or of '
                f'tensors in them; got "{pattern}", which none has'
            )
        found |= mine
    return frozenset(found)


def _modules_of(name: str) -> Iterator[str]:
    """Yield the paths of the modules that a tensor is in: a.b and a of a.b.weight."""
    while name := name.rpartition(".")[0]:
        yield name


def top_parameters(names: Sequence[str], layers: int) -> tuple[str, ...]:
    """Return those of the last layers among parameter names in the model's order.

    Names of one layer are alike up to the last dot.

    Raises:
        ConfigError: There are fewer layers than that.
    """
    owners = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    _check("fedala.layers", layers, len(owners), "the part of the model that clients share")
    top = owners[len(owners) - layers :]
    return tuple(name for name in names if name.rpartition(".")[0] in top)


def _check(key: str, layers: int, most: int, of: str) -> None:
    if not 0 <= layers <= most:
        raise ConfigError(
            f'run-config key "{key}": expected 0 to {most}, the layers of {of}; got {layers}. '
            'Choose fewer layers or another "model".'
        )


def last_linear(model: nn.Module, who: str) -> nn.Linear:
    """Return the layer that turns features into logits, the last of an ``nn.Sequential``.

    Raises:
        ConfigError: The model is built otherwise; names the algorithm that needs it.
    """
    last = model[-1] if isinstance(model, nn.Sequential) and len(model) else None
    if not isinstance(last, nn.Linear):
        raise no_last_linear(who, model)
    return last


def no_last_linear(who: str, model: nn.Module) -> ConfigError:
    """Return the error of an algorithm that needs a last linear layer, where the model has none."""
    return ConfigError(
        f'run-config key "model": {who} needs a chain of layers that ends with a linear one, such as '
        f"moon-cnn, or a model whose outputs are those of an nn.Linear; got {type(model).__name__}"
    )


def features_of(model: nn.Module, x: torch.Tensor, who: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the last linear layer's inputs [N, d] and the model's outputs [N, C].

    Raises:
        ConfigError: The outputs are not those of a linear layer; names the algorithm that needs it.
    """
    _, z, outputs = _last_call(model, x, who)
    return z, outputs


def last_linear_path(model: nn.Module, x: torch.Tensor, who: str) -> str:
    """Return where in a model the linear layer is whose outputs are the model's, tried on some examples.

    Raises:
        ConfigError: There is none; names the algorithm that needs it.
    """
    was_training = model.training
    model.eval()
    with torch.no_grad():
        path, _, _ = _last_call(model, x, who)
    model.train(was_training)
    return path


def _last_call(model: nn.Module, x: torch.Tensor, who: str) -> LinearCall:
    with linear_calls(model) as calls:
        outputs = model(x)
    found = next((call for call in reversed(calls) if call[2] is outputs), None)
    if found is None:
        raise no_last_linear(who, model)
    return found


@contextmanager
def linear_calls(model: nn.Module) -> Iterator[list[LinearCall]]:
    """Note each call of a linear layer in the block: its path, what it read and what came out."""
    calls: list[LinearCall] = []

    def noting(path: str, args: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        calls.append((path, args[0], out))

    hooks = [
        layer.register_forward_hook(lambda _, args, out, path=path: noting(path, args, out))
        for path, layer in model.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()
