"""Coordinate-wise median and trimmed mean, server half. Yin et al., ICML 2018, arXiv 1803.01498, Algorithm 1.

option I   w^{t+1}[j] = med{ w_k[j] : k in S_t }, for each coordinate j
option II  w^{t+1}[j] = mean of { w_k[j] } without the b smallest and the b largest,  b = floor(beta K)

=======  =====================  ============================  ==========
symbol   variable               shape, dtype                  where
=======  =====================  ============================  ==========
w_k      up ``arrays``          [K, ...] as the model         wire
f        config.robust.f        clients, f < K/2              run config
beta     config.robust.trim     share in [0, 1/2)             run config
b        metric ``trimmed``     clients cut at each end       server
=======  =====================  ============================  ==========

For an even K the median is the mean of the two in the middle, taken in float64 and rounded once. The paper
proves the trimmed mean's rates for beta >= alpha, the share of Byzantine clients; beta is not raised to
``robust.byzantine`` in silence, so that cutting too little can be studied.

Deviations: the paper's clients send gradients and take one step; here they send models after their local
work, and the median of models is that of gradients with one full-batch step each. Buffers are reduced like
parameters: a plain mean would leave running statistics to one attacker. Example counts are ignored, since a
client's own count cannot be checked. Neutral values: with one client a round (``fraction-train`` = 0) the
median is FedAvg, and with beta = 0 the trimmed mean is, among clients with equally many examples.

Of 1, 9 and 2 the median is 2, whatever the example counts are; beta = 0.2 cuts one of five at each end:

>>> models = {"arrays": {"w": np.array([[1.0], [9.0], [2.0]])}}
>>> replies = AggregatedReplies(models, ("a", "b", "c"), np.array([1, 5, 1]))
>>> server_update(ServerState({"w": np.array([0.0])}), replies, Config())[0].arrays["w"]
array([2.])
>>> stack = np.array([[0.0], [1.0], [2.0], [3.0], [100.0]])
>>> replies = AggregatedReplies({"arrays": {"w": stack}}, ("a", "b", "c", "d", "e"), np.ones(5, np.int64))
>>> trimmed_update(ServerState({"w": np.array([0.0])}), replies, Config())[0].arrays["w"]
array([2.])
"""

import math
from dataclasses import replace

from strategies.engine.state import AggregatedReplies, S, Updated
from strategies.rules.pre_aggregation import RobustRule
from strategies.rules.robust_math import by_column, middle, sort_clients, trimmed_mean
from task.config.knobs import Config


def server_update(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Replace each number of the model by the median of the clients' numbers."""
    arrays = by_column(reduced.arrays["arrays"], lambda block: middle(sort_clients(block)))
    return replace(state, arrays=arrays), {}


def trimmed_update(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Replace each number of the model by the trimmed mean of the clients' numbers."""
    b = math.floor(config.robust.trim * len(reduced.clients) + 1e-9)
    return replace(state, arrays=trimmed_mean(reduced.arrays["arrays"], b)), {"trimmed": b}


class Median(RobustRule, algorithm="median", update=server_update):
    """Coordinate-wise median; see `strategies.rules.median`."""


class TrimmedMean(RobustRule, algorithm="trimmed-mean", update=trimmed_update):
    """Coordinate-wise trimmed mean; see `strategies.rules.median`."""
