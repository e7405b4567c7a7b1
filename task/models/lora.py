"""Adds low-rank adapters to a model, by `peft`: W + (alpha / r) B A instead of W, which is frozen."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from task.adapters.names import pairs_of
from task.errors import ConfigError, choose_from
from task.extras import from_extra
from task.numerics.seeds import MODEL, seed_for

# Modules that peft puts into a layer with an adapter.
_OF_PEFT = (
    "base_layer", "default", "lora_A", "lora_B", "lora_dropout", "lora_embedding_A", "lora_embedding_B",
    "lora_magnitude_vector", "lora_variant",
)  # fmt: skip
_END = 'run-config key "{}": the end of a layer\'s name'


@dataclass(frozen=True)
class Adapters:
    """The adapters that a run adds to its model."""

    rank: int
    alpha: float  # 0 = the rank
    targets: tuple[str, ...]  # ends of names of layers; none = those that peft knows
    modules: tuple[str, ...]  # ends of names of layers that are trained whole
    dropout: float
    seed: int  # of the initial parameters

    def add(self, model: nn.Module) -> nn.Module:
        """Return the model with adapters; all that it had is frozen, but for `modules`.

        A is drawn from the seed and its name, row by row: it depends on nothing that was drawn before, and A
        of rank 4 is the first rows of A of rank 8. B is 0.

        Raises:
            ConfigError: `peft` is missing, or the model has no such layers.
        """
        peft = from_extra("adapters", "peft", 'run-config key "lora.rank"')
        modules = {name: module for name, module in model.named_modules() if name}
        layers = [name for name, module in modules.items() if _is_matrix(module)]
        if end := _unknown(self.targets, layers):
            raise ConfigError(choose_from(_END.format("lora.target-modules"), end, {*map(_last, layers)}))
        adapted = [name for name in layers if any(_ends(name, end) for end in self.targets)]
        if end := _unknown(self.modules, modules):
            raise ConfigError(_not_saved(end, _savable(modules, adapted)))
        if adapted and all(_within(name, self.modules) for name in adapted):
            raise ConfigError(
                'run-config keys "lora.target-modules", "lora.modules-to-save": expected a layer that gets '
                f'adapters and is not trained whole; got "{",".join(self.targets)}", all of it within '
                f'"{",".join(self.modules)}". Name other layers in one of the keys'
            )
        saved = [name for end in self.modules for name in _for_peft(end, [*modules])]
        config = peft.LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha or self.rank,  # peft takes fractions
            target_modules=[*self.targets] or None,
            modules_to_save=saved or None,
            lora_dropout=self.dropout,
        )
        try:
            with warnings.catch_warnings(action="ignore"):  # of what it corrects itself, for GPT-2
                made: nn.Module = peft.get_peft_model(model, config)
        except (ValueError, TypeError, RuntimeError, KeyError) as err:
            raise ConfigError(self._refused(layers, _savable(modules, adapted), err)) from err
        self._draw(made)
        return made

    def _refused(self, layers: list[str], savable: list[str], err: Exception) -> str:
        """Return what to write into the keys in place of what peft refuses."""
        if not self.targets and "target_modules" in str(err):
            return (
                'run-config key "lora.target-modules": expected the layers that get adapters, as peft knows '
                f'none for this kind of model: one or more of {_some(layers)}; got ""'
            )
        return (
            f'run-config keys "lora.target-modules", "lora.modules-to-save": expected layers that peft can '
            f"use, for the first key of {_some(layers)}, for the second of {_some(savable)}; got "
            f'"{",".join(self.targets)}" and "{",".join(self.modules)}", of which peft says: {err}'
        )

    def _draw(self, model: nn.Module) -> None:
        """Draw every A as a linear layer's weights are: U(-1/sqrt(k), 1/sqrt(k))."""
        parameters = dict(model.named_parameters())
        for pair in pairs_of(parameters):
            a, b = parameters[pair.a], parameters[pair.b]
            generator = torch.Generator().manual_seed(seed_for(self.seed, MODEL, client=pair.a))
            with torch.no_grad():
                b.zero_()  # peft begins with A = 0 and a random B for embeddings
                bound = 1 / math.sqrt(a[0].numel())
                a.copy_(torch.rand(a.shape, generator=generator) * (2 * bound) - bound)


def _unknown(ends: tuple[str, ...], names: Iterable[str]) -> str:
    """Return the first end with which no name ends; "" without one."""
    known = [*names]
    return next((end for end in ends if not any(_ends(name, end) for name in known)), "")


def _not_saved(end: str, offered: list[str]) -> str:
    """Return what to write into `lora.modules-to-save` in place of an end that no layer has."""
    key = "lora.modules-to-save"
    if offered:
        return choose_from(_END.format(key), end, offered)
    return (
        f'run-config key "{key}": expected "", as peft can save no layer that gets no adapters; got "{end}". '
        'Layers called as peft calls its own modules, such as "out", need another name in the '
        'model, such as "out_layer"'
    )


def _ends(name: str, end: str) -> bool:
    """Return whether a layer's name ends in whole parts of it."""
    return f".{name}".endswith(f".{end}")


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _within(name: str, ends: tuple[str, ...]) -> bool:
    """Return whether a layer, or one that it is part of, has a name with one of the ends."""
    parts = name.split(".")
    return any(_ends(".".join(parts[:i]), end) for i in range(1, len(parts) + 1) for end in ends)


def _savable(modules: Mapping[str, nn.Module], adapted: list[str]) -> list[str]:
    """Return what `lora.modules-to-save` may say: ends of names, or a whole name if its end does not do.

    What can be saved has parameters and is no list, and leaves a layer that gets adapters.
    """
    names, found = [*modules], list[str]()
    for name, module in modules.items():
        if isinstance(module, nn.ModuleList | nn.ModuleDict) or not any(True for _ in module.parameters()):
            continue
        for end in (_last(name), name):
            whole = bool(adapted) and all(_within(layer, (end,)) for layer in adapted)
            if not whole and not _clash(end, names):
                found.append(end)
                break
    return list(dict.fromkeys(found))


def _for_peft(end: str, names: list[str]) -> list[str]:
    """Return what makes peft save the modules with this end and no others: the end, or their names."""
    if clash := _clash(end, names):
        name, other = clash
        raise ConfigError(
            f'run-config key "lora.modules-to-save": expected a layer whose name peft can tell from its '
            f'other modules; got "{name}", in which "{other}" ends, too. Give the layer another name in '
            f'the model, such as "{name}_layer"'
        )
    wanted, others = _parted(end, names)
    return wanted if any(other.endswith(end) for other in others) else [end]


def _clash(end: str, names: list[str]) -> tuple[str, str] | None:
    """Return a module whose name ends in `end` and another one that peft takes for it; None without one.

    It compares ends letter by letter, also with its own modules, so that "out" is "lora_dropout", too.
    """
    wanted, others = _parted(end, names)
    if not any(other.endswith(end) for other in others):
        return None
    return next(((name, other) for name in wanted for other in others if other.endswith(name)), None)


def _parted(end: str, names: list[str]) -> tuple[list[str], list[str]]:
    """Return the modules whose names end in `end`, and all others with peft's own."""
    wanted = [name for name in names if _ends(name, end)]
    return wanted, [*(name for name in names if not _ends(name, end)), *_OF_PEFT]


def _is_matrix(module: Any) -> bool:
    """Return whether a layer has a matrix that can have an adapter: also Conv1D of `transformers`."""
    linear = isinstance(module, nn.Linear | nn.Embedding | nn.Conv1d | nn.Conv2d | nn.Conv3d)
    return linear or type(module).__name__ == "Conv1D"


def _some(names: list[str]) -> str:
    return ", ".join(dict.fromkeys(map(_last, names[:200]))) or "none"
