"""A model that is split between parties: a bottom at each over its own columns, a top at one of them.

The bottom is the run's ``model`` with ``vertical.cut`` outputs in place of classes. The top is a perceptron
that reads the outputs of all bottoms, side by side: ReLU, ``vertical.hidden`` units of ReLU (0 = none), and a
linear layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from task.config.knobs import Config
from task.models import Shape, build_model, drawn
from task.numerics import seeds

if TYPE_CHECKING:
    from torch import nn


def bottom_of(config: Config, shape: Shape, party: str) -> nn.Module:
    """Return a party's initial bottom model, drawn by the run's seed and the party's name.

    Raises:
        ConfigError: The run's model cannot read examples of the party's columns.
    """
    seed = seeds.seed_for(config.seeds.model, seeds.MODEL, client=party)
    return build_model(config.model, shape, config.vertical.cut, seed)


def top_of(config: Config, width: int, outputs: int) -> nn.Module:
    """Return the initial top model over embeddings of this width in all."""

    def build() -> nn.Module:
        from torch import nn

        hidden = config.vertical.hidden
        middle = [nn.Linear(width, hidden), nn.ReLU()] if hidden else []
        return nn.Sequential(nn.ReLU(), *middle, nn.Linear(hidden or width, outputs))

    return drawn(build, seeds.seed_for(config.seeds.model, seeds.MODEL, client="top"))
