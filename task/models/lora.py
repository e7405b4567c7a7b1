"""Adds low-rank adapters to a model, by `peft`: W + (alpha / r) B A instead of W, which is frozen."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from task.adapters.names import pairs_of
from task.errors import ConfigError, choose_from
from task.extras import from_extra
from task.numerics.seeds import MODEL, seed_for


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
        layers = [name for name, m in model.named_modules() if name and _is_matrix(m)]
        self._check("lora.target-modules", self.targets, layers)
        self._check("lora.modules-to-save", self.modules, [name for name, _ in model.named_modules() if name])
        config = peft.LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha or self.rank,  # peft takes fractions
            target_modules=[*self.targets] or None,
            modules_to_save=[*self.modules] or None,
            lora_dropout=self.dropout,
        )
        try:
            with warnings.catch_warnings(action="ignore"):  # of what it corrects itself, for GPT-2
                made: nn.Module = peft.get_peft_model(model, config)
        except (ValueError, TypeError, RuntimeError, KeyError) as err:
            raise ConfigError(
                f'run-config key "lora.target-modules": expected layers of the model, such as '
                f'{_some(layers)}; got "{",".join(self.targets)}", with which peft says: {err}'
            ) from err
        self._draw(made)
        return made

    def _check(self, key: str, ends: tuple[str, ...], names: list[str]) -> None:
        for end in ends:
            if not any(name == end or name.endswith(f".{end}") for name in names):
                raise ConfigError(
                    choose_from(
                        f'run-config key "{key}": the end of a layer\'s name',
                        end,
                        {n.rpartition(".")[2] for n in names},
                    )
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


def _is_matrix(module: Any) -> bool:
    """Return whether a layer has a matrix that can have an adapter: also Conv1D of `transformers`."""
    linear = isinstance(module, nn.Linear | nn.Embedding | nn.Conv1d | nn.Conv2d | nn.Conv3d)
    return linear or type(module).__name__ == "Conv1D"


def _some(names: list[str]) -> str:
    return ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in names[:200])) or "none"
