"""FedDBE, server half. Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan, 2023, arXiv 2311.14975, Algorithm 1.

w^{t+1} = sum_k (n_k / n_S) w_k, as in FedAvg.  Before round 1:  rbar = sum_k (n_k / n_S) r_k, then fixed

=======  =====================  ===========================  ======================
symbol   variable               shape, dtype                 where
=======  =====================  ===========================  ======================
rbar     state.features         float32 [d], d features      server, down
r_k      up ``features``        the same, once               wire
w_k      up ``arrays``          as the model                 wire
=======  =====================  ===========================  ======================

The paper asks all clients for r_k; here it is the clients of the first round, so that a run begins the same
way whatever share of them takes part. A first round that is skipped asks again.

>>> replies = AggregatedReplies({"arrays": {"w": np.array([2.0])}}, ("a",), np.array([1]))
>>> server_update(FedDBEState({"w": np.array([1.0])}), replies, Config())[0].arrays["w"]
array([2.])
"""

from dataclasses import dataclass, field, replace

from strategies.engine.rule import Round, RoundContext, Rule
from strategies.engine.state import ServerState
from strategies.rules.fedavg import server_update
from task.numerics.arrays import Arrays


@dataclass(frozen=True)
class FedDBEState(ServerState):
    """The model, and the mean features of the first round's clients."""

    features: Arrays = field(default_factory=dict)


class FedDBE(Rule, algorithm="feddbe", update=server_update, state=FedDBEState):
    """Domain bias eliminator; see `strategies.rules.feddbe`."""

    def round(self, state: FedDBEState, context: RoundContext) -> Round:
        """Ask for the mean features first, if they are not known."""
        if not state.features:
            replies = yield context.phase("features", state)
            state = replace(state, features=replies.arrays["features"])
        return (yield from super().round(state, context))
