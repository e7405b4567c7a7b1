"""Mean around the median, server half. Xie, Koyejo and Gupta 2018, arXiv 1802.10116, Definition 4.

w^{t+1}[j] = mean of the K - f numbers w_k[j] nearest to med{ w_k[j] }, for each coordinate j

======  ==================  =====================================  ==========
symbol  variable            shape, dtype                           where
======  ==================  =====================================  ==========
w_k     up ``arrays``       [K, ...] as the model                  wire
f       config.robust.f     clients, 2 f < K                       run config
======  ==================  =====================================  ==========

For an even K the median is the mean of the two in the middle. It is the second step of Bulyan, without the
first (`strategies.rules.bulyan.around_median`). Buffers are reduced like parameters.
Neutral: f = 0 is FedAvg, sizes being equal.

Of 1, 0, 1 and 10 the median is 1, and f = 1 leaves out 10:

>>> from task.config.algorithm_sections import RobustConfig
>>> models = {"arrays": {"w": np.array([[1.0], [0.0], [1.0], [10.0]])}}
>>> replies = AggregatedReplies(models, ("a", "b", "c", "d"), np.ones(4, np.int64))
>>> config = Config(robust=RobustConfig(byzantine=1.0))
>>> server_update(ServerState({"w": np.array([0.0])}), replies, config)[0].arrays["w"].round(6)
array([0.666667])
"""

from dataclasses import replace

from strategies.engine.state import AggregatedReplies, S, Updated, byzantine
from strategies.rules.bulyan import around_median
from strategies.rules.pre_aggregation import RobustRule
from strategies.rules.robust_math import by_column
from task.config.knobs import Config


def server_update(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Replace each number of the model by the mean of those around the clients' median."""
    f = byzantine(reduced, config)
    arrays = by_column(reduced.arrays["arrays"], lambda block: around_median(block, f))
    return replace(state, arrays=arrays), {"byzantine": f}


class Meamed(RobustRule, algorithm="meamed", update=server_update):
    """Mean around the median; see `strategies.rules.meamed`."""
