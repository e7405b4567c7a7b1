"""pFedMe, server half. Dinh, Tran, Nguyen, NeurIPS 2020, arXiv 2006.08848, Algorithm 1, line 11.

w^{t+1} = (1 - beta) w^t + beta (1/|S|) sum_{k in S} w_k

======  ====================  ==================  ==========
symbol  variable              shape, dtype        where
======  ====================  ==================  ==========
w^t     state.arrays          as the model        server
w_k     up ``arrays``         as the model        wire
beta    ``pfedme.beta``       float > 0           run config
======  ====================  ==================  ==========

The mean is uniform, as in the paper: the objective is the mean of the clients' envelopes, whatever their
sizes. Buffers are averaged and never stepped. beta = 1 is the mean itself; beta > 1 goes beyond it.

beta = 1, the default, takes the mean:

>>> means = {"arrays": {"w": np.array([2.0])}}
>>> replies = AggregatedReplies(means, ("a", "b"), np.array([1, 3]), trainable=("w",))
>>> server_update(ServerState({"w": np.array([1.0])}), replies, Config())[0].arrays["w"]
array([2.])
"""

from dataclasses import replace

from strategies.engine.rule import Rule
from strategies.engine.state import AggregatedReplies, ServerState, Updated
from strategies.rules.steps import towards
from task.config.knobs import Config
from task.numerics.arrays import only


def server_update(state: ServerState, reduced: AggregatedReplies, config: Config) -> Updated[ServerState]:
    """Step towards the mean local model; each sum is rounded once, from float64."""
    beta, mean = config.pfedme.beta, reduced.arrays["arrays"]
    return replace(state, arrays=mean | towards(state.arrays, only(mean, reduced.trainable), beta)), {}


class PFedMe(Rule, algorithm="pfedme", update=server_update):
    """Steps towards the mean of the local models; see `strategies.rules.pfedme`."""
