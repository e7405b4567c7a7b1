"""FedAMP, server half. Huang, Chu, Zhou, Wang, Liu, Pei, Zhang, AAAI 2021, arXiv 2007.03797, Algorithm 1.

u_i = (1 - sum_{j != i} xi_ij) w_i + sum_{j != i} xi_ij w_j,  xi_ij = alpha A'(|w_i - w_j|^2)
A(x) = 1 - exp(-x / sigma),  so that  xi_ij = alpha / sigma exp(-|w_i - w_j|^2 / sigma)

=======  =========================  ===========================  ======================
symbol   variable                   shape, dtype                 where
=======  =========================  ===========================  ======================
w_i      state.models               as the model                 server
         up ``arrays``              as the model                 wire
xi       state.attention["xi"]      float64 [n, n], n known      server
u_i      down ``cloud``             as the model                 down
alpha    ``fedamp.alpha``           alpha_k, > 0                 run config
sigma    ``fedamp.sigma``           > 0                          run config
=======  =========================  ===========================  ======================

Rows and columns of xi are the known clients (see `strategies.rules.client_models`) in the order of their
names; those that are offline have no part in u_i. Distances are over the parameters, in float64
(`strategies.rules.robust_math.gram`), and so is u_i, rounded once. Buffers are not mixed, since weights may
be negative and variances must not be: u_i has those of w_i. A client that is not known gets the mean of all
that are, before any the initial model.

The paper asks for an alpha so small that no weight is negative; alpha <= sigma / (n - 1) always is. Of n
clients at distance 0, u_i - mean = (1 - n alpha / sigma) (w_i - mean), which alpha > 2 sigma / n drives apart
until the distances let xi fall. ``self-weight`` in the round's metrics is the least 1 - sum_{j != i} xi_ij.

At |w_a - w_b|^2 = sigma = 100 and alpha = 1 a client keeps 1 - exp(-1) / 100 of its own model:

>>> models, n = {"arrays": {"w": np.array([[0.0], [10.0]])}}, np.array([1, 1])
>>> replies = AggregatedReplies(models, ("a", "b"), n, trainable=("w",))
>>> round(server_update(FedAMPState({"w": np.array([0.0])}), replies, Config())[1]["self-weight"], 5)
0.99632
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from strategies.engine.rule import RoundContext, Route, Rule
from strategies.engine.state import AggregatedReplies, Updated
from strategies.rules.client_models import ModelsState, known_clients, models_of, take_in
from strategies.rules.robust_math import columns, one_thread, size_of, squared_distances
from task.config.knobs import Config
from task.numerics.arrays import Arrays


@dataclass(frozen=True)
class FedAMPState(ModelsState):
    """The clients' models, and how much each attends to each."""

    attention: Arrays = field(default_factory=dict)
    """``xi``, over the known clients; its diagonal is 0."""


def server_update(state: FedAMPState, reduced: AggregatedReplies, config: Config) -> Updated[FedAMPState]:
    """Take the models in and weigh each pair."""
    new, knobs = take_in(state, reduced), config.fedamp
    stack = stacked(models_of(new, known_clients(new)), reduced.trainable)
    D = squared_distances(stack, new.arrays, reduced.trainable)
    xi = knobs.alpha / knobs.sigma * np.exp(-D / knobs.sigma)
    np.fill_diagonal(xi, 0.0)
    least = float((1.0 - xi.sum(axis=1)).min())
    return replace(new, attention={"xi": xi}), {"self-weight": least}


def stacked(models: Mapping[str, Arrays], names: Sequence[str]) -> Arrays:
    """Return models of clients side by side, [n, ...] each."""
    return {name: np.stack([model[name] for model in models.values()]) for name in names}


def clouds(
    models: Mapping[str, Arrays], xi: np.ndarray, wanted: Sequence[str], trainable: Sequence[str]
) -> dict[str, Arrays]:
    """Return u_i of the clients `wanted`; the arrays that are not `trainable` are those of w_i.

    `xi` is the attention in the order of the models, [n, n], 0 on the diagonal.
    """
    if not wanted:
        return {}
    place = {client: i for i, client in enumerate(models)}
    rows = [place[client] for client in wanted]
    weights = xi[rows]
    weights[np.arange(len(rows)), rows] = 1.0 - weights.sum(axis=1)
    mixed: dict[str, np.ndarray] = {}
    with one_thread():
        for name, stack in stacked(models, trainable).items():
            out = np.empty((len(rows), size_of(stack)), stack.dtype)
            for part, block in columns(stack):
                out[:, part] = weights @ block.astype(np.float64)
            mixed[name] = out.reshape(len(rows), *stack.shape[1:])
    return {
        client: models[client] | {name: a[k, ...] for name, a in mixed.items()}
        for k, client in enumerate(wanted)
    }


class FedAMP(Rule, algorithm="fedamp", update=server_update, state=FedAMPState):
    """Attentive message passing; see `strategies.rules.fedamp`."""

    def route(self, state: FedAMPState, to: Sequence[str], context: RoundContext) -> Route:
        """Give each client its u_i, under its own name."""
        models = models_of(state, context.names)
        there = [i for i, client in enumerate(known_clients(state)) if client in models]
        xi = state.attention["xi"][np.ix_(there, there)] if there else np.zeros((0, 0))
        u = clouds(models, xi, [client for client in to if client in models], context.trainable)
        return {"cloud": {client: {client: u.get(client, state.arrays)} for client in to}}
