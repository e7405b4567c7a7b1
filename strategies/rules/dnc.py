"""Divide and conquer (DnC), server half. Shejwalkar and Houmansadr, NDSS 2021, Algorithm 2.

Times over: b random coordinates of Delta_k = w_k - w^t; X their rows less the mean row; v the first right
singular vector of X; s_k = (X v)_k^2; the c f clients of the largest s_k are out.
w^{t+1} = mean of the clients that are never out

=======  ======================  ====================================  ==========
symbol   variable                shape, dtype                          where
=======  ======================  ====================================  ==========
w_k      up ``arrays``           [K, ...] as the model                 wire
f        config.robust.f         clients, 2 f < K                      run config
b        ``dnc.coordinates``     numbers that are looked at            run config
c        ``dnc.filter``          share of f that is left out           run config
         ``dnc.iterations``      times                                 run config
s_k      `outliers`              float64 [K]                           server
=======  ======================  ====================================  ==========

s_k comes from the matrix of inner products, X X^T = U S^2 U^T, as S^2 u_k^2: K x K, whatever b is. If no
client is never out, those that are out least often are averaged. Coordinates are drawn by seed and round.
Buffers, which have no part in it, are averaged without the f smallest and the f largest.
Neutral: f = 0 is FedAvg, sizes being equal.

The last of four is far from the others:

>>> X = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [10.0, 10.0]])
>>> outliers(X).round(3)
array([13.693,  9.127,  9.016, 94.56 ])
"""

import math
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from strategies.engine.state import AggregatedReplies, Number, S, Updated, byzantine
from strategies.rules.pre_aggregation import RobustRule
from strategies.rules.robust_math import combine_robustly, one_thread
from task.config.knobs import Config
from task.numerics.arrays import Arrays, NamedArrays
from task.numerics.seeds import COORDINATES, rng_for


def outliers(X: np.ndarray) -> np.ndarray:
    """Return the squared projections of rows [K, b] on the first principal axis, float64 [K]."""
    with one_thread():
        X = X - X.mean(0)
        G = X @ X.T
    squares, U = np.linalg.eigh(G)
    return np.asarray(squares[-1] * U[:, -1] ** 2)


def drawn(
    stack: NamedArrays, centre: Arrays, names: Collection[str], b: int, rng: np.random.Generator
) -> np.ndarray:
    """Return b random coordinates, or all if there are fewer, of w_k - w^t over the named arrays, [K, b]."""
    sizes = [centre[name].size for name in names]
    whole = sum(sizes)
    at = np.sort(rng.choice(whole, b, replace=False)) if b < whole else np.arange(whole)
    parts, first = [], 0
    for name, size in zip(names, sizes, strict=True):
        own = at[(at >= first) & (at < first + size)] - first
        rows = stack[name].reshape(len(stack[name]), size)[:, own].astype(np.float64)
        parts.append(rows - centre[name].reshape(-1)[own].astype(np.float64))
        first += size
    return np.concatenate(parts, axis=1)


def server_update(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Average the clients that no projection shows to be outliers."""
    f, stack, knobs = byzantine(reduced, config), reduced.arrays["arrays"], config.dnc
    K = len(reduced.clients)
    least = K - math.ceil(min(knobs.filter * f, K - 1) - 1e-9)
    out = np.zeros(K, np.int64)
    for i in range(knobs.iterations):
        rng = rng_for(config.seeds.train, COORDINATES, reduced.round, str(i))
        X = drawn(stack, state.arrays, reduced.trainable, knobs.coordinates, rng)
        out[np.argsort(outliers(X), kind="stable")[least:]] += 1
    taken = out == out.min()
    metrics: dict[str, Number] = {"byzantine": f, "taken": int(taken.sum())}
    arrays = combine_robustly(stack, taken / taken.sum(), reduced.trainable, f)
    return replace(state, arrays=arrays), metrics


class DnC(RobustRule, algorithm="dnc", update=server_update):
    """Divide and conquer; see `strategies.rules.dnc`."""
