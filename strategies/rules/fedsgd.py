"""FedSGD, server half. McMahan et al., AISTATS 2017, arXiv 1602.05629, section 2.

w^{t+1} = w^t - eta_t sum_{k in S_t} (n_k / n_S) g_k

=======  ==================  ============================  ==========
symbol   variable            shape, dtype                  where
=======  ==================  ============================  ==========
w^t      state.arrays        as the model                  server
g_k      up ``gradient``     as the parameters             wire
eta_t    reduced.lr          float                         run config
=======  ==================  ============================  ==========

With C = 1 this is full-batch gradient descent on the union of the clients' data, and FedAvg with E = 1,
B = infinity. Buffers have no gradient and stay as they are.

w = 1 - 0.5 * 3 = -0.5

>>> replies = AggregatedReplies({"gradient": {"w": np.array([3.0])}}, ("a", "b"), np.array([1, 3]), lr=0.5)
>>> server_update(ServerState({"w": np.array([1.0])}), replies, Config())[0].arrays["w"]
array([-0.5])
"""

from dataclasses import replace

from strategies.engine.rule import Rule
from strategies.engine.state import AggregatedReplies, S, Updated
from strategies.rules.steps import step
from task.config.knobs import Config


def server_update(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Take one gradient step."""
    return replace(
        state, arrays=state.arrays | step(state.arrays, reduced.arrays["gradient"], -reduced.lr)
    ), {}


class FedSGD(Rule, algorithm="fedsgd", update=server_update):
    """Federated SGD by gradient upload; see `strategies.rules.fedsgd`."""
