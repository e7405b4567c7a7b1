"""Ensemble of local models, server half. Lakshminarayanan, Pritzel, Blundell, 2017, arXiv 1612.01474, 2.4.

p(y | x) = (1/M) sum_m p_m(y | x)

=======  =====================  ==================  ======================
symbol   variable               shape, dtype        where
=======  =====================  ==================  ======================
w_k      up ``arrays``          as the model        wire
M, w_m   state.models           as the model        server, down ``models``
=======  =====================  ==================  ======================

The baseline between local training only and federated learning: every client trains a member for itself,
nothing comes down to train with, and the members are never averaged. To be evaluated, each client gets all
members that the server knows (see `strategies.rules.client_models`) and lets them vote on its own test data;
a node gets each member once. With ``ensemble.of="clients"`` the members differ by their data alone, as all
start from the run's initial model. With ``"site"`` they are the paper's: each has all data of its site and an
initial model and an order of batches of its own. A site is what a client's node has: the whole data set in a
simulation, and a node's own data where it brings them.

The server keeps the members by client:

>>> replies = AggregatedReplies({"arrays": {"w": np.array([[1.0], [3.0]])}}, ("a", "b"), np.array([1, 1]))
>>> server_update(ModelsState({"w": np.array([0.0])}), replies, Config())[0].models
{'a/w': array([1.]), 'b/w': array([3.])}
"""

from collections.abc import Sequence

from strategies.engine.rule import RoundContext, Route, Rule
from strategies.rules.client_models import ModelsState, models_of, server_update


class Ensemble(Rule, algorithm="ensemble", update=server_update, state=ModelsState):
    """Rounds in which every client trains a member of its own; see `strategies.rules.ensemble`."""

    def route(self, state: ModelsState, to: Sequence[str], context: RoundContext) -> Route:
        """Give each client all members."""
        members = models_of(state, context.names)
        return {"models": dict.fromkeys(to, members)}
