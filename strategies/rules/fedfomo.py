"""FedFomo, server half. Zhang, Sapra, Fidler, Yeung, Alvarez, ICLR 2021, arXiv 2012.08565, section 3.

Each client i of a round gets the models of M others: those of the largest P_ij, some of them at random.
What it then made of them comes back and is remembered:  P_i <- P_i + w_i

========  ============================  ==========================  =======================
symbol    variable                      shape, dtype                where
========  ============================  ==========================  =======================
theta_n   state.models                  as the model                server, down ``models``
theta_i   up ``arrays``                 as the model                wire
w_i       up ``affinity``               float32 [N], sum 1 or 0     wire
P         state.affinity["P"]           float64 [n, n], n known     server
M         ``fedfomo.download``          others; 0 = all             run config
epsilon   ``fedfomo.epsilon``           share drawn at random       run config
========  ============================  ==========================  =======================

Rows and columns of P are the known clients (see `strategies.rules.client_models`) in the order of their
names. A client has its own model already and is never given it, so that P_ii, 1 at first in the paper and 0
here, chooses nothing; it adds up what the client made of its own training (``fedfomo.baseline``). Of the M,
epsilon M rounded to the nearest are drawn by (seed, round, client) among those that are not the best. Of
equal P the first name comes first.

The two of the largest affinity, as epsilon = 0 draws none:

>>> choose({"a": 0.0, "b": 2.0, "c": 1.0}, 2, 0.0, np.random.default_rng(1))
['b', 'c']
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from strategies.engine.rule import RoundContext, Route, Rule
from strategies.engine.state import AggregatedReplies, Updated
from strategies.rules.client_models import ModelsState, known_clients, models_of, take_in
from task.config.knobs import Config
from task.numerics import seeds
from task.numerics.arrays import Arrays


@dataclass(frozen=True)
class FedFomoState(ModelsState):
    """The clients' models, and who had how much use for whose."""

    affinity: Arrays = field(default_factory=dict)
    """``P``, over the known clients."""


def affinities(state: FedFomoState, client: str) -> dict[str, float]:
    """Return P_ij of a client i, by the known client j; 0 of a client that is not known."""
    known = known_clients(state)
    row = state.affinity["P"][known.index(client)] if client in known else np.zeros(len(known))
    return dict(zip(known, row.tolist(), strict=True))


def server_update(state: FedFomoState, reduced: AggregatedReplies, config: Config) -> Updated[FedFomoState]:
    """Take the models in, and add what the clients made of the others to P."""
    new = take_in(state, reduced)
    known = known_clients(new)
    place = {client: i for i, client in enumerate(known)}
    P = np.zeros((len(known), len(known)))
    before = [place[client] for client in known_clients(state)]
    if before:
        P[np.ix_(before, before)] = state.affinity["P"]
    affinity = reduced.arrays["affinity"]["clients"]
    for client, row in zip(reduced.clients, affinity, strict=True):
        for other, w in zip(reduced.names, row.tolist(), strict=True):
            if other in place:
                P[place[client], place[other]] += w
    return replace(new, affinity={"P": P}), {}


def choose(P_i: Mapping[str, float], m: int, epsilon: float, rng: np.random.Generator) -> list[str]:
    """Return whose models a client gets, sorted: `m` of them (0 = all), the share `epsilon` drawn at random.

    `P_i` is its affinity to each of the others.
    """
    m = min(m or len(P_i), len(P_i))
    explored = math.floor(epsilon * m + 0.5)
    ranked = sorted(P_i, key=lambda j: (-P_i[j], j))
    best, rest = ranked[: m - explored], sorted(ranked[m - explored :])
    drawn = rng.permutation(len(rest))[:explored].tolist()
    return sorted([*best, *(rest[i] for i in drawn)])


class FedFomo(Rule, algorithm="fedfomo", update=server_update, state=FedFomoState):
    """First-order model optimisation; see `strategies.rules.fedfomo`."""

    def routed_per_client(self, state: FedFomoState) -> int:
        """Return M, or how many others there are."""
        others = max(len(known_clients(state)) - 1, 0)
        return min(self.config.fedfomo.download or others, others)

    def route(self, state: FedFomoState, to: Sequence[str], context: RoundContext) -> Route:
        """Give each client the models that were chosen for it."""
        knobs, models = self.config.fedfomo, models_of(state, context.names)
        given = {}
        for client in to:
            P_i = {j: p for j, p in affinities(state, client).items() if j in models and j != client}
            rng = seeds.rng_for(self.config.seeds.train, seeds.PEERS, context.round, client)
            given[client] = {j: models[j] for j in choose(P_i, knobs.download, knobs.epsilon, rng)}
        return {"models": given}
