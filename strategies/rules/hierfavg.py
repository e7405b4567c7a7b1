"""HierFAVG, server half. Liu, Zhang, Song, Letaief, ICC 2020, arXiv 1905.06641, Algorithm 1.

kappa_2 times, at each edge l:  w_l <- sum_{k in l} (n_k / n_l) w_k,  w_k after kappa_1 local steps from w_l
then in the cloud:              w   <- sum_l (n_l / n) w_l, and every w_l <- w

=======  ===========================  ==========================  ==============
symbol   variable                     shape, dtype                where
=======  ===========================  ==========================  ==============
w        state.arrays                 as the model                server
w_l      ``models`` in a round        as the model                down
w_k      up ``arrays``                as the model                wire
n_l      ``weights`` in a round       positive integer            server
l        state.edges                  name of the edge by client  server
kappa_1  ``local-steps``, or epochs   positive integer            run config
kappa_2  ``hierfavg.kappa2``          positive integer            run config
=======  ===========================  ==========================  ==============

A round is one of the cloud. It asks each edge's clients kappa_2 times; every message passes the server, and
an edge is a group of names, wherever its clients run: the part of a client's name that ``hierfavg.pattern``
matches (its first group, if it has one), or one of ``hierfavg.edges``. To these the clients of round 1 are
shared out in blocks, in the order of names, and one that comes later joins the smallest. An edge keeps its
clients while they are away.

An edge without enough good replies keeps its model in that edge round, and one without any in the whole round
is left out of the cloud's mean. Edge round j of round t draws batches by (t - 1) kappa_2 + j: with one edge R
rounds are kappa_2 R rounds of FedAvg at the same learning rate, bit for bit. So are R rounds with kappa_2 = 1
those of FedAvg, whatever the edges, as the mean of the edges' means is that of all clients, and is taken at
once. Else the edges' means are rounded before the cloud's is taken.

Five clients at two edges:

>>> [(edge, client) for client, edge in share_out({}, list("abcde"), Config()).items()]
[('edge-1', 'a'), ('edge-1', 'b'), ('edge-1', 'c'), ('edge-2', 'd'), ('edge-2', 'e')]
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from strategies.engine.rule import TRAIN, Round, RoundContext, Rule, TooFewRepliesError, few
from strategies.engine.state import ServerState
from strategies.rules.fedavg import server_update
from task.config.knobs import Config
from task.errors import ConfigError
from task.numerics.arrays import Arrays, of_text, text_in
from task.numerics.reduce import mean_of_models
from task.text import logger


@dataclass(frozen=True)
class EdgesState(ServerState):
    """The global model, and which edge each client belongs to."""

    training: int = 1  # the number of the next training
    edges: Arrays = field(default_factory=dict)
    """The name of its edge by client, uint8."""


def share_out(known: Mapping[str, str], names: Sequence[str], config: Config) -> dict[str, str]:
    """Return the edge of every client, given those of the clients that were there before.

    Raises:
        ConfigError: There were no clients before, and a name has no edge, or there are more edges than
        clients.
    """
    knobs, new = config.hierfavg, sorted({*names} - {*known})
    edges = dict(known)
    if knobs.pattern:
        found = {c: m for c in new if (m := re.search(knobs.pattern, c))}
        if strange := [c for c in new if c not in found]:
            text = f'run-config key "hierfavg.pattern": {knobs.pattern!r} does not match {strange[0]!r}'
            if not known:
                raise ConfigError(
                    f"{text}; expected an edge in every client's name, or hierfavg.edges instead"
                )
            logger.warning("%s, so it does not take part", text)
        return edges | {c: m[1 if m.re.groups else 0] or "" for c, m in found.items()}
    if not known:
        if len(new) < knobs.edges:
            raise ConfigError(
                f'run-config key "hierfavg.edges": expected at most the {len(new)} clients that are online '
                f"before round 1; got {knobs.edges}"
            )
        blocks = np.array_split(np.arange(len(new)), knobs.edges)
        return {new[i]: f"edge-{number}" for number, block in enumerate(blocks, 1) for i in block.tolist()}
    for client in new:
        count = Counter(edges.values())
        edges[client] = min(count, key=lambda edge: (count[edge], edge))
    return edges


class HierFAVG(
    Rule, algorithm="hierfavg", update=server_update, state=EdgesState, sends={"training": "training"}
):
    """Client-edge-cloud federated averaging; see `strategies.rules.hierfavg`."""

    def round(self, state: EdgesState, context: RoundContext) -> Round:
        """Train and average at the edges, kappa_2 times, then over the edges."""
        known = {client: text_in(name) for client, name in state.edges.items()}
        edge_of, kappa2 = share_out(known, context.names, self.config), self.config.hierfavg.kappa2
        groups: dict[str, list[str]] = {}
        for client in (c for c in context.cohort if c in edge_of):
            groups.setdefault(edge_of[client] if kappa2 > 1 else "all", []).append(client)
        context = replace(context, groups=tuple(map(tuple, groups.values())))
        models, weights, trained = dict.fromkeys(groups, state.arrays), dict[str, int](), set[str]()
        first = (context.round - 1) * kappa2 + 1
        for j in range(kappa2):
            for edge, clients in groups.items():
                start = replace(state, arrays=models[edge], training=first + j)
                try:
                    replies = yield context.phase(TRAIN, start, clients)
                except TooFewRepliesError:
                    continue
                models[edge], weights[edge] = replies.arrays["arrays"], int(replies.counts.sum())
                trained |= set(replies.clients)
        if len(trained) < (least := max(self.config.server.min_replies, 1)):
            raise TooFewRepliesError(few(len(trained), least))
        edges = {client: of_text(edge) for client, edge in edge_of.items()}
        arrays = _mean({edge: models[edge] for edge in weights}, weights)
        took = len({edge_of[client] for client in trained})
        return replace(state, arrays=arrays, training=first + kappa2, edges=edges), {"edges": took}


def _mean(models: Mapping[str, Arrays], weights: Mapping[str, int]) -> Arrays:
    """Return sum_l (n_l / n) w_l; of one edge its own model."""
    common, (arrays, *others) = math.gcd(*weights.values()), models.values()
    if not others:
        return arrays
    return mean_of_models(((model, weights[edge] // common) for edge, model in models.items()), arrays)
