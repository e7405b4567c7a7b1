"""Centered clipping, server half. Karimireddy, He and Jaggi, ICML 2021, arXiv 2012.10333, Algorithm 2.

v <- v + (1/K) sum_k (Delta_k - v) min(1, r / |Delta_k - v|), L times, from the v of the last round
w^{t+1} = w^t + v,   Delta_k = w_k - w^t

========  =================================  ============================  ==========
symbol    variable                           shape, dtype                  where
========  =================================  ============================  ==========
w_k       up ``arrays``                      [K, ...] as the model         wire
v         state.v                            parameters, float64; 0 first  server
r         ``centered-clipping.radius``       float, as |Delta_k|           run config
L         ``centered-clipping.iterations``   steps of a round              run config
a_k       `coefficients`                     float64 [K]                   server
========  =================================  ============================  ==========

Steps stay in the span of the differences from the first v: v = v_0 + sum_k a_k (Delta_k - v_0), so that the
inner products of the differences are all that a step needs, and the models are read twice whatever L is. The
authors' radius is 10 in gradients, 1 in updates of a learning rate of 0.1. With ``robust.client-momentum``
clients send momenta, as in the paper. Buffers are averaged without the f smallest and the f largest.

Neutral: a huge r is FedAvg, sizes being equal.

Differences 0, 0 and 9 from v: the last is cut to 3, and v moves by 1.

>>> x = np.array([0.0, 0.0, 9.0])
>>> (coefficients(np.outer(x, x), 3.0, 1) @ x).round(9)
np.float64(1.0)
"""

from dataclasses import dataclass, field, replace

import numpy as np

from strategies.engine.state import AggregatedReplies, ServerState, Updated, byzantine
from strategies.rules.pre_aggregation import RobustRule
from strategies.rules.robust_math import combine_robustly, gram
from task.config.knobs import Config
from task.numerics.arrays import Arrays


@dataclass(frozen=True)
class CenteredClippingState(ServerState):
    """The model and v."""

    v: Arrays = field(default_factory=dict)


def coefficients(G: np.ndarray, radius: float, iterations: int) -> np.ndarray:
    """Return a [K], by which v moves along the clients' differences, from their inner products [K, K].

    A client whose own product is not finite is infinitely far, and moves v by nothing.
    """
    K, (near,) = len(G), np.nonzero(np.isfinite(np.diag(G)))
    G, a = G[np.ix_(near, near)], np.zeros(len(near))
    for _ in range(iterations):
        towards = G @ a
        distance = np.sqrt(np.maximum(np.diag(G) - 2 * towards + a @ towards, 0.0))
        cut = np.minimum(1.0, radius / np.maximum(distance, np.finfo(np.float64).tiny))
        a = a * (1 - cut.sum() / K) + cut / K
    whole = np.zeros(K)
    whole[near] = a
    return whole


def server_update(
    state: CenteredClippingState, reduced: AggregatedReplies, config: Config
) -> Updated[CenteredClippingState]:
    """Move v towards the clients' updates by clipped steps, and the model by v."""
    knobs, stack = config.centered_clipping, reduced.arrays["arrays"]
    centre = {n: state.arrays[n].astype(np.float64) + v for n, v in state.v.items()}
    a = coefficients(gram(stack, centre, reduced.trainable), knobs.radius, knobs.iterations)
    rest = 1.0 - a.sum()
    part = combine_robustly(stack, a, reduced.trainable, byzantine(reduced, config))
    moved = {n: rest * centre[n] + part[n].astype(np.float64) for n in centre}
    v = {n: moved[n] - state.arrays[n].astype(np.float64) for n in centre}
    arrays = part | {n: moved[n].astype(state.arrays[n].dtype) for n in centre}
    return replace(state, arrays=arrays, v=v), {"kept": float(rest)}


_ZEROS = {"v": np.float64}


class CenteredClipping(
    RobustRule, algorithm="centered-clipping", update=server_update, state=CenteredClippingState, zeros=_ZEROS
):
    """Centered clipping; see `strategies.rules.centered_clipping`."""
