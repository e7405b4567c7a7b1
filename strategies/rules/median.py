"""Coordinate-wise median, server half. Yin et al., ICML 2018, arXiv 1803.01498, Algorithm 1.

w^{t+1}[j] = med{ w_k[j] : k in S_t }, for each coordinate j

=======  ==================  ============================  ==========
symbol   variable            shape, dtype                  where
=======  ==================  ============================  ==========
w_k      up ``arrays``       [K, ...] as the model         wire
f        config.robust.f     clients, f < K/2              run config
=======  ==================  ============================  ==========

For an even K the median is the mean of the two in the middle, taken in float64 and rounded once.

Deviations: the paper's clients send gradients and take one step; here they send models after their local
work, and the median of models is that of gradients with one full-batch step each. Buffers take the median
too: a mean would leave running statistics to one attacker. Example counts do not count, since nobody
checks what a client says of itself.
Neutral value: with one client a round (``fraction-train`` = 0) it is FedAvg.

Of 1, 9 and 2 it is 2, whatever the example counts are:

>>> models = {"arrays": {"w": np.array([[1.0], [9.0], [2.0]])}}
>>> replies = AggregatedReplies(models, ("a", "b", "c"), np.array([1, 5, 1]))
>>> server_update(ServerState({"w": np.array([0.0])}), replies, Config())[0].arrays["w"]
array([2.])
"""

from dataclasses import replace

from strategies.engine.rule import Rule
from strategies.engine.state import AggregatedReplies, S, Updated
from strategies.rules.robust_math import by_column, middle, sort_clients
from task.config.knobs import Config


def server_update(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Replace each number of the model by the median of the clients' numbers."""
    arrays = by_column(reduced.arrays["arrays"], lambda block: middle(sort_clients(block)))
    return replace(state, arrays=arrays), {}


class Median(Rule, algorithm="median", update=server_update):
    """Coordinate-wise median; see `strategies.rules.median`."""
