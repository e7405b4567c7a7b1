"""A server with several global models, and what its rules share.

=========  ===============================  ==================  ======================
symbol     variable                         shape, dtype        where
=========  ===============================  ==================  ======================
theta_j    state.models["model-j/name"]     as the model        server, down ``model-j``
           state.arrays                     as the model        server
=========  ===============================  ==================  ======================

theta_0 starts as the run's initial model; the others must start elsewhere, or all stay equal. Their numbers
are those of theta_0 in another order, tensor by tensor: as initial weights of one tensor are drawn alike,
that is a draw like theta_0 itself. A matrix that starts constant, as one of zeros does, is drawn from
U(-1/sqrt(d), 1/sqrt(d)) for d inputs; other constant tensors and buffers stay.

``arrays`` is one of the models: it gives messages their form, and is what a central evaluation measures.

>>> start = {"w": np.array([[1.0, 2.0], [3.0, 4.0]])}
>>> models = initial_models(start, ("w",), 2, seed=1)
>>> [sorted(a.ravel().tolist()) for a in models.values()]
[[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]]
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from strategies.engine.rule import RoundContext, Rule
from strategies.engine.state import ServerState
from task.catalogue.several import model_name
from task.numerics import seeds
from task.numerics.arrays import Arrays


@dataclass(frozen=True)
class SeveralState(ServerState):
    """The global models, and the one of them that stands for all."""

    models: Arrays = field(default_factory=dict)
    """theta_j, parameters and buffers, by ``model-j/name``."""


def initial_models(arrays: Arrays, trainable: Collection[str], count: int, seed: int) -> Arrays:
    """Return `count` initial models by ``model-j/name``; the first is `arrays`."""
    models = {f"{model_name(0)}/{name}": a for name, a in arrays.items()}
    for j in range(1, count):
        rng = seeds.rng_for(seed, seeds.STARTS, j)
        for name, a in arrays.items():
            models[f"{model_name(j)}/{name}"] = _another(a, rng) if name in trainable else a
    return models


def _another(a: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if a.ndim > 1 and a.size and a.min() == a.max():
        most = 1.0 / math.sqrt(a[0].size)
        return rng.uniform(-most, most, a.shape).astype(a.dtype)
    return rng.permutation(a.ravel()).reshape(a.shape)


def model_in(state: SeveralState, name: str) -> Arrays:
    """Return one of the global models by the name of its record."""
    return {n: state.models[f"{name}/{n}"] for n in state.arrays}


class SeveralModels(Rule):
    """The base of rules with several global models."""

    state = SeveralState

    def count(self) -> int:
        """Return how many global models there are."""
        raise NotImplementedError

    def initial_state(self, arrays: Arrays, trainable: tuple[str, ...]) -> ServerState:
        """Return the models before round 1."""
        models = initial_models(arrays, trainable, self.count(), self.config.seeds.model)
        return self.state(arrays, models=models)

    def down_record(self, state: SeveralState, name: str, context: RoundContext) -> Arrays:
        """Return the global model of that name."""
        return model_in(state, name)
