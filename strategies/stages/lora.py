"""Low-rank adapters: the mean of clients' products of factors (FlexLoRA), or of factors by norm (HetLoRA).

A client that trains fewer ranks (``width.levels``) sends the first rows of A and columns of B; zeros stand
for the others, which add nothing to B A. All clients have one scale s = alpha/r, with the whole model's r, so
the mean of B_i A_i is that of the updates s B_i A_i.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from strategies.engine.fold import Folded
from strategies.engine.phases import PhaseEngine
from strategies.engine.rule import TRAIN, Phase, RoundContext
from strategies.engine.stage import ServerStage
from strategies.engine.state import AggregatedReplies
from task.adapters.means import norm_mean, product_mean
from task.adapters.names import Factors, pairs_of
from task.catalogue.record import MODEL_UP
from task.numerics.arrays import Arrays, NamedArrays
from task.numerics.reduce import mean_of

LEFT_OUT = (
    "lora_left_out"  # in rounds.jsonl: relative Frobenius norm of what the rank cuts off, over all pairs
)


def averaged(
    stack: NamedArrays, weights: np.ndarray, pairs: tuple[Factors, ...], how: str
) -> tuple[Arrays, float | None]:
    """Return the next model of clients' models [K, ...], and what the rank has cut off.

    Args:
        stack: Clients' models, of one form.
        weights: How often each counts, int64 [K].
        pairs: The adapters; every other tensor becomes its exact mean.
        how: "product" or "norms".
    """
    factors = {name for pair in pairs for name in (pair.a, pair.b)}
    rest = {name: a for name, a in stack.items() if name not in factors}
    made = mean_of(rest, range(len(weights)), weights) if rest else {}
    lost = whole = 0.0
    for pair in pairs:
        a, b = stack[pair.a], stack[pair.b]
        flat_a, flat_b = a.reshape(*a.shape[:2], -1), b.reshape(b.shape[:3])
        if how == "product":
            new_a, new_b, cut = product_mean(flat_a, flat_b, list(weights), a.shape[1])
            size = float(np.sum(new_b**2))  # A's rows have norm 1, so that this is ||B A||^2
            lost, whole = lost + size * cut**2 / (1 - cut**2), whole + size / (1 - cut**2)
        else:
            new_a, new_b, _ = norm_mean(flat_a, flat_b, list(weights))
        made[pair.a] = new_a.astype(a.dtype).reshape(a.shape[1:])
        made[pair.b] = new_b.astype(b.dtype).reshape(b.shape[1:])
    left_out = math.sqrt(lost / whole) if whole else 0.0
    return {name: made[name] for name in stack}, left_out if how == "product" else None


class LoraStage(ServerStage):
    """Averages adapters as ``lora.average`` says."""

    name = "lora"
    replayed = False  # a transcript has the sums, and no client's model

    def __init__(self, engine: PhaseEngine) -> None:
        super().__init__(engine)
        self._left_out: float | None = None

    def registered(self) -> None:
        """Warn, in round 1, of noise on both factors of an adapter."""
        config, registry = self.engine.config, self.engine.registry
        pairs = pairs_of(self.engine.trainable)
        if registry.round <= 1 and pairs and config.dp.noise > 0:
            self.engine.journal.remark(
                f"warning: dp.noise: both factors of {len(pairs)} adapters get noise, so that their products "
                'have B n_A + n_B A + n_B n_A. Train one of them: trainable="*lora_B*" (FFA-LoRA)'
            )

    def begin(self) -> None:
        """Forget what the last round left out."""
        self._left_out = None

    def for_rule(self, phase: Phase, folded: Folded, context: RoundContext) -> AggregatedReplies | None:
        """Return the replies to a training with the mean that the run asks for."""
        how, replies = self.engine.config.lora.average, folded.reduced
        if phase.name != TRAIN or how == "factors" or replies is None:
            return None
        stack = replies.arrays[MODEL_UP.name]
        mean, self._left_out = averaged(stack, replies.counts, pairs_of(self.engine.trainable), how)
        return replace(replies, arrays={**replies.arrays, MODEL_UP.name: mean})

    def row(self) -> Mapping[str, Any]:
        """Return what the rank has cut off of the mean update."""
        return {} if self._left_out is None else {LEFT_OUT: self._left_out}
