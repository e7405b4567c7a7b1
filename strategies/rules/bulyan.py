"""Bulyan of Krum, server half. El Mhamdi, Guerraoui, Rouault, ICML 2018, arXiv 1802.07927, section 4.

1. Select theta = K - 2f clients, one by one: the Krum choice among those that are left.
2. For each coordinate j, with the median M[j] of the selected: w^{t+1}[j] = mean of the beta = theta - 2f
   selected numbers that are closest to M[j].

=======  ======================  ======================================  ==========
symbol   variable                shape, dtype                            where
=======  ======================  ======================================  ==========
w_k      up ``arrays``           [K, ...] as the model                   wire
f        config.robust.f         Byzantine clients, 4 f + 3 <= K         run config
theta    metric ``selected``     K - 2f                                  server
beta     metric ``averaged``     K - 4f                                  server
=======  ======================  ======================================  ==========

Of two numbers equally far from the median the smaller is kept; of equal scores, as equal models have them,
the first name wins.

Where the paper is silent: towards the end of the selection fewer than 2f + 3 clients are left, and Krum's
number of neighbours, |left| - f - 2, falls to 0 and below. The closest one counts then.
Deviations: models for gradients; buffers of the selected go through step 2 like parameters; distances over
the parameters, in float64 (`strategies.rules.robust_math.gram`).
Neutral value: f = 0 is FedAvg among clients with equally many examples.

Step 2 with one number left out: 9 is the farthest from the median 1, and (0 + 1) / 2 remains.

>>> around_median(np.array([[0.0], [1.0], [9.0]]), 1)
array([0.5])
"""

from dataclasses import replace

import numpy as np

from strategies.engine.state import AggregatedReplies, Number, S, Updated, byzantine
from strategies.rules.krum import scores
from strategies.rules.pre_aggregation import RobustRule
from strategies.rules.robust_math import by_column, middle, sort_clients, squared_distances
from task.config.knobs import Config


def selection(D: np.ndarray, f: int) -> list[int]:
    """Return the K - 2f clients that step 1 selects, in ascending order, from squared distances [K, K]."""
    left = list(range(len(D)))
    selected: list[int] = []
    while len(selected) < len(D) - 2 * f:
        best = left[int(np.argmin(scores(D[np.ix_(left, left)], f)))]
        left.remove(best)
        selected.append(best)
    return sorted(selected)


def around_median(block: np.ndarray, drop: int) -> np.ndarray:
    """Return, for each column, the mean of all but the `drop` numbers farthest from the median, [b] float64.

    In a sorted column the farthest is always the first or the last of those that are left.
    """
    rows = sort_clients(block)
    centre, keep = middle(rows).astype(np.float64), len(rows) - drop
    # Those that stay are neighbours, from `low` on; it is above s just if number s is farther than s + keep.
    above = [centre - rows[s] > rows[s + keep] - centre for s in range(drop)]
    total = np.zeros(block.shape[1])
    for i, row in enumerate(rows):
        stays = None
        if i < drop:
            stays = ~above[i]
        if i >= keep:
            stays = above[i - keep] if stays is None else stays & above[i - keep]
        total += row if stays is None else np.where(stays, row, 0)
    return total / keep


def server_update(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Replace each number of the model by the mean of the selected numbers around their median."""
    f, stack = byzantine(reduced, config), reduced.arrays["arrays"]
    chosen = selection(squared_distances(stack, state.arrays, reduced.trainable), f)
    arrays = by_column(stack, lambda block: around_median(block[chosen], 2 * f))
    metrics: dict[str, Number] = {"byzantine": f, "selected": len(chosen), "averaged": len(chosen) - 2 * f}
    return replace(state, arrays=arrays), metrics


class Bulyan(RobustRule, algorithm="bulyan", update=server_update):
    """Bulyan; see `strategies.rules.bulyan`."""
