"""FedAvg, server half. McMahan et al., AISTATS 2017, arXiv 1602.05629, Algorithm 1.

w^{t+1} = sum_{k in S_t} (n_k / n_S) w_k,  n_S = sum_{k in S_t} n_k

The weights are those of the paper's erratum: over the clients that answered, not over all K.

=======  ==================  ============================  ==========
symbol   variable            shape, dtype                  where
=======  ==================  ============================  ==========
w^t      state.arrays        as the model                  server
w_k      up ``arrays``       as the model                  wire
n_k      ``num-examples``    positive integer              wire
=======  ==================  ============================  ==========

Parameters and buffers are averaged alike; integer buffers by an integer mean.

The engine has averaged already: n = (1, 3) and w_k = (5, 1) make 2.

>>> replies = AggregatedReplies({"arrays": {"w": np.array([2.0])}}, ("a", "b"), np.array([1, 3]))
>>> server_update(ServerState({"w": np.array([1.0])}), replies, Config())[0].arrays["w"]
array([2.])
"""

from dataclasses import replace

from strategies.engine.rule import Rule
from strategies.engine.state import AggregatedReplies, S, Updated
from task.config.knobs import Config


def server_update(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Replace the model by the weighted mean of the local models."""
    return replace(state, arrays=reduced.arrays["arrays"]), {}


class FedAvg(Rule, algorithm="fedavg", update=server_update):
    """Federated averaging; see `strategies.rules.fedavg`."""
