"""FedAtt, server half. Ji et al., IJCNN 2019, arXiv 1812.07108: attentive aggregation, layer by layer.

s_k^l = |w^l - w_k^l|_p,  alpha^l = softmax over k of s^l / T
w^l <- w^l - epsilon sum_k alpha_k^l (w^l - w_k^l) + beta N(0, 1)

===========  ======================  =================================  ==========
symbol       variable                shape, dtype                       where
===========  ======================  =================================  ==========
w^l          state.arrays[l]         as the model                       server
w_k^l        up ``arrays``, stacked  [K, ...], in the order of names    wire
s^l          distances               [K], float64                       here
alpha^l      attention               [K], float64, sums to 1            here
epsilon      fedatt.epsilon          float > 0                          run config
===========  ======================  =================================  ==========

A layer is one parameter tensor, as in the authors' code. Distances and sums are float64, block by block, so
that besides the stack nothing larger than a layer is held. n_k is not used: buffers get the plain mean.

Mind the sign: softmax of a distance gives *more* weight to clients that are *farther* from the server, and a
large distance saturates it to one client; ``fedatt.temperature`` T > 1 softens it. The metric
``attention-max`` is the largest weight in any layer: near 1, one client alone moves that layer.

Deviations: the authors' code takes scipy's norm with ord = 2, which of a matrix is the spectral norm; here
the norm is over all elements, as in the formula. T is ours (paper: 1). The noise is off by default (authors'
code: beta = 0.001): nothing is clipped, so that it proves no privacy.

Neutral value: epsilon = 1 and T -> infinity is the plain mean of the clients, FedAvg if all n_k are equal.

exp(0) : exp(ln 3) = 1 : 3

>>> attention(np.array([0.0, np.log(3)]), 1.0).round(6)
array([0.25, 0.75])
"""

from dataclasses import replace

import numpy as np

from strategies.engine.rule import Rule
from strategies.engine.state import AggregatedReplies, S, Updated
from strategies.rules.robust_math import columns, one_thread
from task.config.knobs import Config
from task.numerics import seeds
from task.numerics.reduce import plain_mean

COLUMNS = 1 << 14  # elements of each client worked on at once: 50 clients' float64 block takes 6.6 MB


def server_update(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Move each parameter tensor along the attended differences; average the buffers."""
    knobs, stacks = config.fedatt, reduced.arrays["arrays"]
    rng = seeds.rng_for(config.seeds.train, seeds.NOISE, reduced.round)
    arrays, largest = plain_mean({n: a for n, a in stacks.items() if n not in reduced.trainable}), 0.0
    for name in reduced.trainable:
        w, stack = state.arrays[name], stacks[name]
        with one_thread():
            alpha = attention(distances(w, stack, knobs.p), knobs.temperature)
            moved = attend(w, stack, alpha, knobs.epsilon)
        if knobs.noise:
            moved += knobs.noise * rng.normal(size=moved.shape)
        arrays[name] = moved.astype(w.dtype)
        largest = max(largest, float(alpha.max()))
    ordered = {name: arrays[name] for name in state.arrays}
    return replace(state, arrays=ordered), {"attention-max": largest}


def distances(w: np.ndarray, stack: np.ndarray, p: float) -> np.ndarray:
    """Return |w - w_k|_p of every client, float64 [K]."""
    start, powers, buffer = w.reshape(-1), np.zeros(len(stack)), np.empty((len(stack), COLUMNS))
    for part, block in columns(stack, width=COLUMNS):
        d = buffer[:, : block.shape[1]]
        d[...] = block
        d -= start[part].astype(np.float64)
        powers += [row @ row for row in d] if p == 2 else (abs(d) ** p).sum(1)
    return np.asarray(powers ** (1 / p))


def attention(distance: np.ndarray, temperature: float) -> np.ndarray:
    """Return softmax(distance / temperature), [K]."""
    weights = np.exp((distance - distance.max()) / temperature)
    return np.asarray(weights / weights.sum())


def attend(w: np.ndarray, stack: np.ndarray, alpha: np.ndarray, epsilon: float) -> np.ndarray:
    """Return w - epsilon sum_k alpha_k (w - w_k) in float64."""
    start, out, buffer = w.reshape(-1), np.empty(w.size), np.empty((len(stack), COLUMNS))
    for part, block in columns(stack, width=COLUMNS):
        local = buffer[:, : block.shape[1]]
        local[...] = block
        here = start[part].astype(np.float64)
        out[part] = here - epsilon * (here - alpha @ local)
    return out.reshape(w.shape)


class FedAtt(Rule, algorithm="fedatt", update=server_update):
    """Attentive aggregation; see `strategies.rules.fedatt`."""
