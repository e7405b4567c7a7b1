"""Geometric median (RFA), server half. Pillutla, Kakade, Harchaoui, 2022, arXiv 1912.13445, Algorithm 2.

w^{t+1} = argmin_z sum_k alpha_k |z - w_k|, by the smoothed Weiszfeld algorithm from z = sum_k alpha_k w_k:
beta_k = alpha_k / max(nu, |z - w_k|),  z <- sum_k beta_k w_k / sum_k beta_k

=======  =============================  =================================  ==========
symbol   variable                       shape, dtype                       where
=======  =============================  =================================  ==========
w_k      up ``arrays``                  [K, ...] as the model              wire
alpha_k  config.robust.weighted         1/K, or n_k / n_S if weighted      run config
nu       config.robust.nu               distance > 0                       run config
R        config.robust.iterations       largest number of steps              run config
=======  =============================  =================================  ==========

z is a mean of the w_k whatever beta is, so its distances follow from the inner products of the clients'
differences from w^t, [K, K], which one pass over the stack gives: iterations cost no pass of their own. They
end when no weight moves by more than 1e-9 of itself: a far client needs a weight as small as it is far.

Deviations: alpha_k is 1/K unless ``robust.weighted``; the paper's n_k / n_S trusts what clients say of
themselves. Under a selection that draws by n_k it is 1/K in either case. Distances are over the parameters;
buffers, which are no part of them, are averaged without the f smallest and the f largest
(``robust.byzantine``).
Neutral value: nu so large that all beta_k are alpha_k / nu, and f = 0, is FedAvg among clients with equally
many examples.

Of the models 0, 1 and 10 it is 1, where the mean is 11/3:

>>> x = np.array([0.0, 1.0, 10.0])
>>> weiszfeld(np.outer(x, x), np.full(3, 1 / 3), 1e-6, 100)[0].round(3)
array([0., 1., 0.])
"""

from dataclasses import replace

import numpy as np

from strategies.engine.state import AggregatedReplies, Number, S, Updated, byzantine
from strategies.rules.pre_aggregation import RobustRule
from strategies.rules.robust_math import combine_robustly, gram
from task.catalogue.selections import SELECTIONS
from task.config.knobs import Config

STILL = 1e-9


def weiszfeld(G: np.ndarray, alpha: np.ndarray, nu: float, iterations: int) -> tuple[np.ndarray, int]:
    """Return the clients' weights in the geometric median, of sum 1, and the iterations that it took.

    `G` are inner products [K, K]; a client whose own is not finite is infinitely far, and left out. `alpha`
    are weights [K] of sum 1, `nu` is the smallest distance that counts.
    """
    finite = np.isfinite(np.diag(G))
    if not finite.any():
        return alpha, 0
    G, a = G[np.ix_(finite, finite)], alpha[finite]
    share = a / a.sum()
    steps, moved = 0, np.inf
    while steps < iterations and moved > STILL:
        steps += 1
        # |w_k - z|^2 = G_kk - 2 (G share)_k + share G share
        towards = G @ share
        distance = np.sqrt(np.maximum(np.diag(G) - 2 * towards + share @ towards, 0.0))
        beta = a / np.maximum(nu, distance)
        before, share = share, beta / beta.sum()
        moved = np.abs(share / before - 1).max()
    weights = np.zeros(len(alpha))
    weights[finite] = share
    return weights, steps


def server_update(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Replace the model by the geometric median of the clients' models."""
    knobs, stack = config.robust, reduced.arrays["arrays"]
    by_examples = knobs.weighted and not SELECTIONS[config.server.selection].by_examples
    counts = reduced.num_examples if by_examples else np.ones(len(reduced.clients))
    alpha = counts / counts.sum()
    G = gram(stack, state.arrays, reduced.trainable)
    weights, steps = weiszfeld(G, alpha, knobs.nu, knobs.iterations)
    metrics: dict[str, Number] = {"iterations": steps, "weight-min": float(weights.min())}
    arrays = combine_robustly(stack, weights, reduced.trainable, byzantine(reduced, config))
    return replace(state, arrays=arrays), metrics


class GeometricMedian(RobustRule, algorithm="geometric-median", update=server_update):
    """Geometric median; see `strategies.rules.geometric_median`."""
