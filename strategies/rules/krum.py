"""Krum and Multi-Krum, server half. Blanchard, El Mhamdi, Guerraoui, Stainer, NIPS 2017, arXiv 1703.02757.

s(i) = sum over the K - f - 2 clients j closest to i of |w_i - w_j|^2
Krum: w^{t+1} = w_i of the smallest score.  Multi-Krum: the mean of the m clients of the smallest scores.

=======  ======================  ======================================  ==========
symbol   variable                shape, dtype                            where
=======  ======================  ======================================  ==========
w_k      up ``arrays``           [K, ...] as the model                   wire
f        config.robust.f         Byzantine clients, 2 f + 2 < K          run config
m        config.robust.m         clients averaged; 0 = K - f - 2         run config
s(i)     `scores`                float64 [K]                             server
=======  ======================  ======================================  ==========

Distances are over the parameters, in float64 and relative to w^t (see `strategies.rules.robust_math.gram`):
with the norms of the models in float32 they are noise where clients nearly agree. Equal models have equal
scores, and of equal scores the first name wins, where the paper takes the smallest number of a worker.
Multi-Krum's m is at most K - f: more would include a client that is malicious by assumption; the default is
the largest for which El Mhamdi et al. (2018) prove resilience. The mean is of equal weight: example counts
are the clients' own word.

Deviations: models for gradients (a difference from w^t each, as far apart as the models). Buffers are no part
of the distances, so they are not taken from the chosen either: they are averaged without the f smallest and
the f largest.
Neutral value: Multi-Krum with f = 0 and m >= K is FedAvg among clients with equally many examples; Krum has
none, as it takes one client.

Three models at 0, 1 and 5, f = 0: each one's squared distance to its one closest.

>>> scores(np.array([[0.0, 1.0, 25.0], [1.0, 0.0, 16.0], [25.0, 16.0, 0.0]]), 0)
array([ 1.,  1., 16.])
"""

from dataclasses import replace

import numpy as np

from strategies.engine.state import AggregatedReplies, Number, S, Updated, byzantine
from strategies.rules.pre_aggregation import RobustRule
from strategies.rules.robust_math import combine_robustly, squared_distances
from task.config.knobs import Config


def scores(D: np.ndarray, f: int) -> np.ndarray:
    """Return each client's sum of squared distances to its K - f - 2 closest, at least one, [K].

    `D` are the squared distances [K, K].
    """
    K = len(D)
    closest = max(K - f - 2, 1)
    # The first of the sorted is the client's distance to itself, 0.
    return np.asarray(np.sort(D, axis=1)[:, 1 : closest + 1].sum(axis=1))


def server_update(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Take the one client that lies closest to its neighbours."""
    return select(state, reduced, byzantine(reduced, config), 1)


def multi_update(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Average the m clients that lie closest to their neighbours."""
    f, K = byzantine(reduced, config), len(reduced.clients)
    m = config.robust.m or max(K - f - 2, 1)
    return select(state, reduced, f, min(m, K - f))


def select(state: S, reduced: AggregatedReplies, f: int, m: int) -> Updated[S]:
    """Replace the model by the mean of the m clients of the smallest scores."""
    stack = reduced.arrays["arrays"]
    s = scores(squared_distances(stack, state.arrays, reduced.trainable), f)
    taken = np.argsort(s, kind="stable")[:m]
    weights = np.zeros(len(s))
    weights[taken] = 1 / m
    metrics: dict[str, Number] = {"byzantine": f, "taken": m, "score": float(s[taken[0]])}
    return replace(state, arrays=combine_robustly(stack, weights, reduced.trainable, f)), metrics


class Krum(RobustRule, algorithm="krum", update=server_update):
    """Krum; see `strategies.rules.krum`."""


class MultiKrum(RobustRule, algorithm="multi-krum", update=multi_update):
    """Multi-Krum; see `strategies.rules.krum`."""
