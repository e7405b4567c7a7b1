"""signSGD with majority vote, server half. Bernstein et al., ICML 2018, arXiv 1802.04434, Algorithm 1.

w^{t+1} = w^t - eta_t sign(sum_{k in S_t} v_k),  v_k = sign(g_k)

=======  ==================  =============================================  ==========
symbol   variable            shape, dtype                                   where
=======  ==================  =============================================  ==========
w^t      state.arrays        as the model                                   server
v_k      up ``sign``         as the parameters; 1 or -1                     wire
eta_t    reduced.lr          float, the length of the step of each number   run config
=======  ==================  =============================================  ==========

Every client has one vote, whatever n_k, and of a tie nothing comes. A step is as long as eta_t wherever the
votes do not tie, so that only ``lr-decay`` lets the model settle. Buffers have no gradient and stay. Weight
decay and SIGNUM's momentum are left out.

Three of four clients vote 1 on the first number, and two on the second: sums 2 and 0.

>>> votes, four = {"sign": {"w": np.array([2.0, 0.0])}}, np.ones(4, int)
>>> replies = AggregatedReplies(votes, ("a", "b", "c", "d"), four, lr=0.5)
>>> server_update(ServerState({"w": np.array([1.0, 1.0])}), replies, Config())[0].arrays["w"]
array([0.5, 1. ])
"""

from dataclasses import replace

import numpy as np

from strategies.engine.rule import Rule
from strategies.engine.state import AggregatedReplies, S, Updated
from strategies.rules.steps import step
from task.config.knobs import Config


def server_update(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Take one step along the majority of signs."""
    majority = {name: np.sign(votes) for name, votes in reduced.arrays["sign"].items()}
    return replace(state, arrays=state.arrays | step(state.arrays, majority, -reduced.lr)), {}


class SignSGD(Rule, algorithm="signsgd", update=server_update):
    """signSGD with majority vote; see `strategies.rules.signsgd`."""
