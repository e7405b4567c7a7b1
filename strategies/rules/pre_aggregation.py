"""Steps before any robust rule: a bound on updates, bucketing, and nearest-neighbour mixing.

With Delta_k = w_k - w^t over the parameters, f the malicious clients of `byzantine`:

norm bound   w_k <- w^t + Delta_k min(1, M / |Delta_k|)        Sun et al. 2019, arXiv 1911.07963
ARC          the same with M the floor(2 f (m - f) / m) + 1    Allouah et al. 2024, arXiv 2405.14432
             largest |Delta_k|
bucketing    clients in a random order, each s averaged        Karimireddy et al. 2022, arXiv 2006.09365
NNM          w_k <- mean of the m - f models nearest to it     Allouah et al. 2023, arXiv 2302.01772

======  ======================  ======================================  ==========
symbol  variable                shape, dtype                            where
======  ======================  ======================================  ==========
M       ``robust.norm-bound``   float, as |Delta_k|; 0 = none           run config
        ``robust.arc``          whether M is found from the norms       run config
s       ``robust.bucket``       clients in a bucket; 1 = none           run config
        ``robust.nnm``          whether models are mixed                run config
W       `mixed`                 weights, float64 [rows, m]              server
======  ======================  ======================================  ==========

They are applied in this order, each to what the one before made. The rule sees buckets as clients: f stays
what it was, so that ceil(m / s) buckets have to be enough for it. The order is drawn by seed and round, from
the clients by name; the last bucket may be smaller. Buffers are averaged with the parameters, and their norms
have no bound. The bound alone, in front of the mean, is ``trimmed-mean`` with ``robust.trim`` = 0.

x4 of four is far away, and moves the others no more:

>>> from task.config.algorithm_sections import RobustConfig
>>> stack = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [10.0, 10.0]])
>>> replies = AggregatedReplies(
...     {"arrays": {"w": stack}}, ("a", "b", "c", "d"), np.ones(4, np.int64), trainable=("w",)
... )
>>> config = Config(robust=RobustConfig(byzantine=1.0, nnm=True))
>>> before(ServerState({"w": np.zeros(2)}), replies, config)[0].arrays["arrays"]["w"].round(3)
array([[0.667, 1.   ],
       [0.667, 1.   ],
       [0.667, 1.   ],
       [3.667, 4.333]])
"""

import math
import tempfile
from dataclasses import replace
from typing import Any

import numpy as np

from strategies.engine.rule import TRAIN, Round, RoundContext, Rule
from strategies.engine.state import AggregatedReplies, Number, ServerState, byzantine
from strategies.rules.robust_math import columns, in_portions, one_thread, size_of, squared_distances
from task.config.knobs import Config
from task.numerics.arrays import Arrays, NamedArrays, rounded
from task.numerics.seeds import BUCKETS, rng_for

IN_MEMORY = 1 << 26  # bytes of a mixed array that do not go to a file


def lengths(stack: NamedArrays, centre: Arrays, names: tuple[str, ...]) -> np.ndarray:
    """Return |w_k - w^t| of each client over the named arrays, float64 [m]."""
    total = np.zeros(len(next(iter(stack.values()))))
    for name in names:
        origin = centre[name].reshape(-1)
        with np.errstate(over="ignore"):
            for part, block in columns(stack[name]):
                total += np.square(block - origin[part].astype(np.float64)).sum(1)
    return np.sqrt(total)


def mixed(stack: NamedArrays, W: np.ndarray, base: Arrays) -> Arrays:
    """Return W w + (1 - W 1) base, of weights W [rows, m]; what `base` has not got counts as 0."""
    left = 1.0 - W.sum(1, keepdims=True)
    left[np.abs(left) < 1e-12] = 0.0
    out: Arrays = {}
    for name, stacked in stack.items():
        into = _space((len(W), size_of(stacked)), stacked.dtype)
        origin = base[name].reshape(-1) if name in base else None

        def fill(
            within: slice,
            stacked: np.ndarray = stacked,
            into: np.ndarray = into,
            origin: np.ndarray | None = origin,
        ) -> None:
            for part, block in columns(stacked, within=within):
                made = W @ block.astype(np.float64)
                if origin is not None and left.any():
                    made += left * origin[part].astype(np.float64)
                into[:, part] = rounded(made, into.dtype)

        with one_thread():
            in_portions(into.shape[1], fill)
        out[name] = into.reshape(len(W), *stacked.shape[1:])
    return out


def _space(shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
    """Return room for a mixed array, in a file without a name if it is large."""
    if math.prod(shape) * dtype.itemsize < IN_MEMORY:
        return np.empty(shape, dtype)
    return np.memmap(tempfile.TemporaryFile(), dtype, "w+", shape=shape)


def buckets(m: int, size: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return which of m clients are in each bucket, ascending."""
    order = rng.permutation(m)
    return [np.sort(order[i : i + size]) for i in range(0, m, size)]


def neighbours(D: np.ndarray, f: int) -> np.ndarray:
    """Return W [m, m], 1 / (m - f) at the m - f nearest of each; of equally near ones the first names."""
    m = len(D)
    W = np.zeros((m, m))
    for k, row in enumerate(D):
        row = row.copy()
        row[k] = -1.0  # itself first, even among equals
        W[k, np.argsort(row, kind="stable")[: m - f]] = 1.0 / (m - f)
    return W


def adapted(norms: np.ndarray, f: int) -> float:
    """Return the norm that adaptive robust clipping cuts the largest updates to, of m with f malicious.

    It is the largest of those that are not cut; nothing is where f is 0.

    >>> adapted(np.array([1.0, 2.0, 1.5, 14.0]), 1)
    2.0
    """
    m = len(norms)
    return float(np.sort(norms)[m - 1 - min(2 * f * (m - f) // m, m - 1)])


def before(
    state: ServerState, reduced: AggregatedReplies, config: Config
) -> tuple[AggregatedReplies, dict[str, Number]]:
    """Return the replies as the rule is to see them, and how many clients the bound has cut."""
    knobs, metrics = config.robust, dict[str, Number]()
    f, stack = byzantine(reduced, config), reduced.arrays["arrays"]
    clients, counts = reduced.clients, reduced.num_examples
    if knobs.norm_bound or knobs.arc:
        norms = lengths(stack, state.arrays, reduced.trainable)
        most = min(knobs.norm_bound or np.inf, adapted(norms, f) if knobs.arc else np.inf)
        share = np.minimum(1.0, most / np.maximum(norms, np.finfo(np.float64).tiny))
        metrics["cut"] = int((share < 1).sum())
        if metrics["cut"]:
            parameters = {n: a for n, a in stack.items() if n in reduced.trainable}
            stack = {**stack, **mixed(parameters, np.diag(share), state.arrays)}
    if knobs.bucket > 1:
        groups = buckets(len(clients), knobs.bucket, rng_for(config.seeds.train, BUCKETS, reduced.round))
        W = np.zeros((len(groups), len(clients)))
        for row, group in zip(W, groups, strict=True):
            row[group] = 1.0 / len(group)
        stack, clients = mixed(stack, W, {}), tuple(clients[group[0]] for group in groups)
        counts = np.array([counts[group].sum() for group in groups])
    if knobs.nnm:
        D = squared_distances(stack, state.arrays, reduced.trainable)
        stack = mixed(stack, neighbours(D, f), {})
    if stack is reduced.arrays["arrays"]:
        return reduced, metrics
    asked = max(reduced.asked, len(reduced.clients))
    return (
        replace(reduced, arrays={"arrays": dict(stack)}, clients=clients, num_examples=counts, asked=asked),
        metrics,
    )


class RobustRule(Rule):
    """The base of the robust rules; see `strategies.rules.pre_aggregation`."""

    def round(self, state: Any, context: RoundContext) -> Round:
        """Let the clients train, and give the rule their pre-aggregated models."""
        replies = yield context.phase(TRAIN, state)
        seen, metrics = before(state, replies, self.config)
        after, own = type(self).update(state, seen, self.config)
        return after, own | metrics
