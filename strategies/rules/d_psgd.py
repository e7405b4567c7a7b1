"""D-PSGD, server half. Lian, Zhang, Zhang, Hsieh, Zhang, Liu, NeurIPS 2017, arXiv 1705.09056, Algorithm 1.

adapt then combine (default):  x_i <- sum_j W_ij y_j
combine then adapt (paper):    x_i <- sum_j W_ij x_j + y_i - x_i

Every message passes the server: peer to peer says whose models are mixed. The server holds each node's model
(`strategies.rules.client_models`), mixes, and sends each client its own.

=======  ============================  =========================  ======================
symbol   variable                      shape, dtype               where
=======  ============================  =========================  ======================
x_i      state.models["i/parameter"]   as the model               server, down ``model``
y_i      up ``arrays``                 as the model               wire
x-bar    state.arrays                  as the model               server
W_ij     c_ij / D                      whole numbers              `task.numerics.graphs`
w_i      state.weights["i"]            float64, > 0, 1 at first   server
=======  ============================  =========================  ======================

The nodes are the clients that have been online, in the order of names. One that is new begins with x-bar,
which it does not move. If the route has no graph with it (`task.numerics.graphs.why_not`) it gets x-bar and
what it sends is not mixed, until the route has one.

Absent is who was not drawn, is offline or sent no good reply. It keeps x_i, and the weights of a round are
those of the graph among the others, so that x-bar moves by the mean change of those that were there.

On a directed graph rows of W need not sum to one, and w carries what is missing (push-sum; Nedic and
Olshevsky 2016; Assran et al. 2019): w_i x_i + (y_i - x_i) is sent on and w <- W w, x_i is what came in over
w_i. All w_i are 1 while all clients are online, as the directed routes are regular. Integers, and buffers,
are mixed by c_ij alone.

Sums are exact (`task.numerics.reduce.Mean`, weights c_ij). On a complete graph, with all clients online, all
x_i are FedAvg's model of equal weights, bit for bit. The round's metrics have the consensus distance
(1/n) sum_i |x_i - x-bar|^2 over the parameters and, where the server has a test set, mean and worst loss and
accuracy of the nodes' models on it. The row's own loss and accuracy are those of x-bar, which no node has.

Three on a ring of three are on a complete graph:

>>> y = {"w": np.array([[1.0], [2.0], [6.0]])}
>>> replies = AggregatedReplies({"arrays": y}, ("a", "b", "c"), np.array([1, 1, 1]))
>>> made, metrics = server_update(PeersState({"w": np.array([0.0])}), replies, Config())
>>> made.models["b/w"].tolist(), metrics
([3.0], {'consensus-distance': 0.0})
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from strategies.engine.rule import Round, RoundContext, Route, Rule, over_models
from strategies.engine.state import AggregatedReplies, Updated
from strategies.rules.client_models import ModelsState, models_of, table
from task.config.knobs import Config
from task.errors import ConfigError
from task.numerics import seeds
from task.numerics.arrays import Arrays
from task.numerics.collect import release
from task.numerics.graphs import DIRECTED, links, mixing, why_not
from task.numerics.reduce import mean_of_models
from task.text import logger


@dataclass(frozen=True)
class PeersState(ModelsState):
    """The nodes' models, and their weights in a push-sum."""

    weights: Arrays = field(default_factory=dict)
    """w_i by node."""


def nodes_of(state: PeersState, names: Sequence[str], config: Config) -> list[str]:
    """Return the nodes of the graph, sorted: those of before, and those of `names` if the route fits them.

    Raises:
        ConfigError: There is no graph yet, and the route has none for this number of clients.
    """
    knobs, nodes = config.d_psgd, sorted({*state.weights, *names})
    why = why_not(knobs.route, len(nodes), knobs.degree)
    if not why:
        return nodes
    if not state.weights:
        raise ConfigError(
            f'run-config key "d-psgd.route": {len(nodes)} clients are online before round 1, but {why}; wait '
            f'for more ("min-nodes"), or choose another route; got "{knobs.route}"'
        )
    logger.warning(
        "new clients %s are not part of the graph: %s", ", ".join(sorted({*names} - {*state.weights})), why
    )
    return sorted(state.weights)


@dataclass(frozen=True)
class _Mixing:
    """The mixing of one round; i is the place of a node among the nodes of the graph."""

    state: PeersState
    reduced: AggregatedReplies
    nodes: Sequence[str]
    sent: Mapping[int, int]  # by i, the place of its reply
    trained: frozenset[str]
    rows: Sequence[Mapping[int, int]]  # by i, c_ij by j
    D: int

    def w(self, i: int) -> float:
        """Return w_i."""
        return float(self.state.weights.get(self.nodes[i], np.ones(())))

    def x(self, i: int) -> Arrays:
        """Return x_i."""
        return {n: self.state.models.get(f"{self.nodes[i]}/{n}", a) for n, a in self.state.arrays.items()}

    def y(self, i: int) -> Arrays:
        """Return y_i."""
        return {n: stack[self.sent[i]] for n, stack in self.reduced.arrays["arrays"].items()}

    def given(self, i: int, *, adapted: bool = True) -> Arrays:
        """Return w_i x_i + (y_i - x_i) or, not `adapted`, w_i x_i; and what is not trained."""
        w, last = self.w(i), self.y(i) if i in self.sent else self.x(i)
        if w == 1.0:
            return last if adapted else last | {n: a for n, a in self.x(i).items() if n in self.trained}
        own, out = self.x(i), dict(last)
        for n in self.trained & out.keys():
            change = last[n].astype(np.float64) - own[n] if adapted else 0.0
            out[n] = (w * own[n].astype(np.float64) + change).astype(own[n].dtype)
        return out

    def arrives(self, i: int) -> float:
        """Return the new w_i, times D."""
        return math.fsum(c * self.w(j) for j, c in self.rows[i].items())

    def models(self, *, combines: bool) -> Iterator[tuple[str, Arrays]]:
        """Yield each node with its new model; `combines` before it adapts, or after."""
        last: tuple[Mapping[int, int], Arrays] = {}, {}
        for i, client in enumerate(self.nodes):
            if i not in self.sent:
                yield client, self.x(i)
                continue
            if self.rows[i] != last[0]:  # those of a complete graph are alike
                last = self.rows[i], self._combined(self.rows[i], adapted=not combines)
            made, share = dict(last[1]), sum(self.rows[i].values()) / self.arrives(i)
            for n in self.trained & made.keys():
                wide = made[n].astype(np.float64) * share
                if combines:
                    wide += (self.y(i)[n].astype(np.float64) - self.x(i)[n]) * (self.D / self.arrives(i))
                made[n] = wide.astype(made[n].dtype)
            yield client, made

    def _combined(self, row: Mapping[int, int], *, adapted: bool) -> Arrays:
        common = math.gcd(*row.values())
        parts = ((self.given(j, adapted=adapted), c // common) for j, c in row.items())
        return mean_of_models(parts, self.state.arrays)


def server_update(state: PeersState, reduced: AggregatedReplies, config: Config) -> Updated[PeersState]:
    """Mix the models of the nodes that are there."""
    nodes = nodes_of(state, sorted({*reduced.names, *reduced.clients}), config)
    knobs, place = config.d_psgd, {client: i for i, client in enumerate(nodes)}
    sent = {place[client]: k for k, client in enumerate(reduced.clients) if client in place}
    rng = seeds.rng_for(config.seeds.train, seeds.GRAPH)
    graph = links(knobs.route, len(nodes), knobs.degree, reduced.round, rng)
    trained = frozenset(reduced.trainable or state.arrays)
    rows, D = mixing(graph, sent, directed=knobs.route in DIRECTED)
    mixed = _Mixing(state, reduced, nodes, sent, trained, rows, D)
    everyone = range(len(nodes))
    centre = mean_of_models(((mixed.given(i), 1) for i in everyone), state.arrays)
    models = table(mixed.models(combines=knobs.order == "combine-then-adapt"), state.arrays)
    weights = {nodes[i]: np.array(mixed.arrives(i) / D) for i in everyone}
    new = replace(state, arrays=centre, models=models, weights=weights)
    return new, {"consensus-distance": consensus_distance(new, sorted(trained))}


def consensus_distance(state: PeersState, names: Sequence[str]) -> float:
    """Return (1/n) sum_i |x_i - x-bar|^2 over the arrays of these names."""
    total = []
    for client in state.weights:
        for name in names:
            a = state.models[f"{client}/{name}"]
            total.append(float(np.square(a.astype(np.float64) - state.arrays[name]).sum()))
            release(a)
    return math.fsum(total) / len(state.weights)


class DecentralizedPSGD(Rule, algorithm="d-psgd", update=server_update, state=PeersState):
    """Decentralised parallel SGD; see `strategies.rules.d_psgd`."""

    def round(self, state: PeersState, context: RoundContext) -> Round:
        """Train and mix, and measure the nodes' models.

        Raises:
            ConfigError: Before round 1: the route has no graph of the clients that are online.
        """
        nodes_of(state, context.names, self.config)
        made, metrics = yield from super().round(state, context)
        new = cast(PeersState, made)
        found = [context.measure(model) for model in models_of(new, new.weights).values()]
        return new, metrics | over_models(found)

    def route(self, state: PeersState, to: Sequence[str], context: RoundContext) -> Route:
        """Give each client its x_i."""
        held = models_of(state, to)
        return {"model": {client: {client: held.get(client, state.arrays)} for client in to}}
