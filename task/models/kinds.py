"""Models of several kinds side by side in one module, and one of them under the same names.

The layers of a kind are children whose names begin with the kind's, so that a client's model, which is a
chain of the same layers, has arrays of the same names.

>>> made = SideBySide({"a": nn.Sequential(nn.Linear(2, 1)), "b": nn.Sequential(nn.ReLU(), nn.Linear(2, 1))})
>>> list(made.state_dict())
['a/0.weight', 'a/0.bias', 'b/1.weight', 'b/1.bias']
>>> list(one_of("b", nn.Sequential(nn.ReLU(), nn.Linear(2, 1))).state_dict())
['b/1.weight', 'b/1.bias']
"""

from collections.abc import Mapping

import torch
from torch import nn

from task.models.family import Kind


def one_of(name: str, model: nn.Module) -> nn.Sequential:
    """Return a model as a chain of its layers, which is what it was, under the names of its kind."""
    plain = type(model) is nn.Sequential
    chain, prefix = nn.Sequential(), Kind(name).prefix
    for child, layer in model.named_children() if plain else (("model", model),):
        chain.add_module(f"{prefix}{child}", layer)
    return chain


class SideBySide(nn.Module):
    """Models of several kinds, whose outputs are the mean of theirs: their ensemble.

    Args:
        models: By kind, in the order of the run's levels.
    """

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self._layers: dict[str, list[str]] = {}  # names of the children, by kind
        for name, model in models.items():
            chain = dict(one_of(name, model).named_children())
            self._layers[name] = list(chain)
            for child, layer in chain.items():
                self.add_module(child, layer)

    def kinds(self) -> dict[str, nn.Sequential]:
        """Return the models by kind; they share the layers of this one."""
        found = {name: nn.Sequential() for name in self._layers}
        for name, chain in found.items():
            for child in self._layers[name]:
                chain.add_module(child, self._modules[child])
        return found

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean of the kinds' outputs."""
        outputs = []
        for children in self._layers.values():
            h = x
            for child in children:
                h = self.get_submodule(child)(h)
            outputs.append(h)
        return torch.stack(outputs).mean(0)
