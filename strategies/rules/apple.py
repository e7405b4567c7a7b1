"""APPLE, server half. Luo and Wu, IJCAI 2022, arXiv 2110.08394, Algorithm 1.

The server keeps all clients' core models and sends all of them to each client of the round, which mixes them
to a model of its own and trains its core model within the mixture.

=======  ======================  ==================  =======================
symbol   variable                shape, dtype        where
=======  ======================  ==================  =======================
w_j      state.models            as the model        server, down ``models``
w_i      up ``arrays``           as the model        wire
p0_j     down ``start-ratios``   float32 [N]         down
n_j      registered              positive integer    server
=======  ======================  ==================  =======================

w_j of a client that is not known yet (see `strategies.rules.client_models`) is the run's initial model; every
client has it and it does not travel. p0_j = n_j / n, over the N clients that were ever online, goes to all:
the clients do not know how many examples the others have. The relationships p_ij stay at their client i. A
client that is away, or has left, stays in all mixtures with its last core model: without it their weights
would not add up to one.

A core model whose reply is lost stays the one before, while its client's p_i goes on.

The server keeps the core models by client:

>>> replies = AggregatedReplies({"arrays": {"w": np.array([[1.0], [3.0]])}}, ("a", "b"), np.array([1, 1]))
>>> server_update(ModelsState({"w": np.array([0.0])}), replies, Config())[0].models
{'a/w': array([1.]), 'b/w': array([3.])}
"""

from collections.abc import Sequence

import numpy as np

from strategies.engine.rule import RoundContext, Route, Rule
from strategies.rules.client_models import ModelsState, known_clients, models_of, server_update
from task.numerics.arrays import Arrays


class Apple(Rule, algorithm="apple", update=server_update, state=ModelsState):
    """Adaptive personalised cross-silo learning; see `strategies.rules.apple`."""

    counts_examples = True

    def down_record(self, state: ModelsState, name: str, context: RoundContext) -> Arrays:
        """Return p0."""
        names = sorted(context.everybody)
        counts = context.examples(names)
        n = np.array([counts[name] for name in names], np.float64)
        return {"clients": (n / n.sum()).astype(np.float32)}

    def routed_per_client(self, state: ModelsState) -> int:
        """Return how many core models there are."""
        return len(known_clients(state))

    def route(self, state: ModelsState, to: Sequence[str], context: RoundContext) -> Route:
        """Give each client all core models."""
        core = models_of(state, context.everybody)
        return {"models": dict.fromkeys(to, core)}
