"""Coordinate-wise trimmed mean, server half. Yin et al., ICML 2018, arXiv 1803.01498, Algorithm 1, option II.

w^{t+1}[j] = mean of { w_k[j] } without the b smallest and the b largest,  b = floor(beta K)

=======  =====================  =========================  ==========
symbol   variable               shape, dtype               where
=======  =====================  =========================  ==========
w_k      up ``arrays``          [K, ...] as the model      wire
beta     config.robust.trim     share in [0, 1/2)          run config
b        metric ``trimmed``     clients cut at each end    server
=======  =====================  =========================  ==========

The paper proves its rates for beta >= alpha, the share of Byzantine clients; beta is not raised to
``robust.byzantine`` in silence, so that cutting too little can be studied. Means are of equal weight.
Deviations as in `strategies.rules.median`: models for gradients, buffers like parameters.
Neutral value: beta = 0 is FedAvg among clients with equally many examples.

With beta = 0.2 one of five is cut at each end: (1 + 2 + 3) / 3.

>>> stack = np.array([[0.0], [1.0], [2.0], [3.0], [100.0]])
>>> replies = AggregatedReplies({"arrays": {"w": stack}}, ("a", "b", "c", "d", "e"), np.ones(5, np.int64))
>>> server_update(ServerState({"w": np.array([0.0])}), replies, Config())[0].arrays["w"]
array([2.])
"""

import math
from dataclasses import replace

from strategies.engine.rule import Rule
from strategies.engine.state import AggregatedReplies, S, Updated
from strategies.rules.robust_math import trimmed_mean
from task.config.knobs import Config


def server_update(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Replace each number of the model by the trimmed mean of the clients' numbers."""
    b = math.floor(config.robust.trim * len(reduced.clients) + 1e-9)
    return replace(state, arrays=trimmed_mean(reduced.arrays["arrays"], b)), {"trimmed": b}


class TrimmedMean(Rule, algorithm="trimmed-mean", update=server_update):
    """Coordinate-wise trimmed mean; see `strategies.rules.trimmed_mean`."""
