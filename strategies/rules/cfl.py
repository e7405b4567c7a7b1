"""CFL, server half. Sattler, Müller and Samek 2019, arXiv 1910.01991, recursive bipartition.

delta_k = w_k - theta_c, of each client k of cluster c. Before the step, c is cut in two where
|mean_k delta_k| < epsilon_1 and max_k |delta_k| > epsilon_2: the clients of c have no step in common, and
still want to go somewhere. The halves are those of complete linkage of 1 - cos(delta_i, delta_j). Then
theta_c <- theta_c + mean_k delta_k, in each cluster over its own clients.

=========  ============================  ====================  ======================
symbol     variable                      shape, dtype          where
=========  ============================  ====================  ======================
theta_c    state.models, see `several`   as the model          server, down ``model``
w_k        up ``arrays``                 as the model          wire
c(k)       state.members[k]              int64 [1]             server
epsilon_1  ``cfl.epsilon1``              as delta_k            run config
epsilon_2  ``cfl.epsilon2``              as delta_k            run config
--         ``cfl.clusters``              most clusters         run config
--         ``cfl.warmup``                rounds without a cut  run config
=========  ============================  ====================  ======================

A run begins with one cluster. As in the authors' code means are plain, a cluster of two clients is not cut,
and the clients of a cut go on from the model that they had. Here a cluster is cut only in a round in which
all its clients sent a good update, so that no client is put into a half unseen, and only while there are less
than ``cfl.clusters``; the half with the first client by name keeps the number. A client that is new gets the
model of the largest cluster, and belongs to it once it has trained. Norms and cosines are over the
parameters. ``mean-norm-c`` and ``largest-norm-c`` in the round's metrics are what the two epsilons are
compared with, by which they are to be chosen for a model; ``cluster-c`` says how many clients trained
theta_c.
``arrays`` is the model of the largest cluster.

Of four clients two go one way and two the other:

>>> inner = np.array([[1.0, 1, -1, -1], [1, 1, -1, -1], [-1, -1, 1, 1], [-1, -1, 1, 1]])
>>> halves(inner)
[[0, 1], [2, 3]]
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from strategies.engine.rule import RoundContext, Route
from strategies.engine.state import AggregatedReplies, Number, Updated
from strategies.rules.robust_math import gram
from strategies.rules.several import SeveralModels, SeveralState, model_in
from task.catalogue.several import model_name
from task.config.knobs import Config
from task.numerics.arrays import Arrays, flattened
from task.numerics.reduce import mean_of


@dataclass(frozen=True)
class CFLState(SeveralState):
    """The clusters' models, and who is in which."""

    members: Arrays = field(default_factory=dict)
    """Number of its cluster, by client that trained."""


def sizes(state: CFLState) -> list[int]:
    """Return how many clients each cluster has."""
    homes = [int(c[0]) for c in state.members.values()]
    first = next(iter(state.arrays))
    return [homes.count(c) for c in range(sum(key.endswith(f"/{first}") for key in state.models))]


def home(state: CFLState, client: str) -> int:
    """Return the cluster of a client, of a new one the largest, the first of several."""
    if client in state.members:
        return int(state.members[client][0])
    return int(np.argmax(sizes(state)))


def halves(inner: np.ndarray) -> list[list[int]]:
    """Return which rows are in each half, the first row's half first, from inner products [K, K]."""
    from sklearn.cluster import AgglomerativeClustering  # costs a second

    norms = np.sqrt(np.maximum(np.diag(inner), np.finfo(np.float64).tiny))
    apart = 1.0 - np.clip(inner / norms / norms[:, None], -1.0, 1.0)
    found = AgglomerativeClustering(2, metric="precomputed", linkage="complete").fit(apart).labels_
    return [[k for k, label in enumerate(found) if (label == found[0]) == first] for first in (True, False)]


def server_update(state: CFLState, reduced: AggregatedReplies, config: Config) -> Updated[CFLState]:
    """Cut the clusters whose clients disagree, and take each cluster's mean."""
    knobs, stack, names = config.cfl, reduced.arrays["arrays"], reduced.trainable
    count, metrics = len(sizes(state)), dict[str, Number]()
    homes = [home(state, client) for client in reduced.clients]
    models, members = dict(state.models), dict(state.members)
    members |= {client: np.array([c]) for client, c in zip(reduced.clients, homes, strict=True)}
    for c in sorted(set(homes)):
        rows = [k for k, at in enumerate(homes) if at == c]
        own = {n: stack[n] if len(rows) == len(homes) else stack[n][rows] for n in names}
        inner = gram(own, model_in(state, model_name(c)), names)
        mean = math.sqrt(max(float(inner.sum()), 0.0)) / len(rows)
        largest = math.sqrt(float(inner.diagonal().max()))
        metrics |= {f"mean-norm-{c}": mean, f"largest-norm-{c}": largest}
        parts = [(c, rows)]
        if (
            reduced.round > knobs.warmup
            and count < knobs.clusters
            and mean < knobs.epsilon1
            and largest > knobs.epsilon2
            and len(rows) > 2
            and len(rows) == sum(int(at[0]) == c for at in members.values())
        ):
            first, second = halves(inner)
            parts = [(c, [rows[k] for k in first]), (count, [rows[k] for k in second])]
            count += 1
        for number, part in parts:
            models |= flattened({model_name(number): mean_of(stack, part, np.ones(len(homes), np.int64))})
            members |= {reduced.clients[k]: np.array([number]) for k in part}
            metrics[f"cluster-{number}"] = len(part)
    new = replace(state, models=models, members=members)
    return replace(new, arrays=model_in(new, model_name(int(np.argmax(sizes(new)))))), metrics


class CFL(SeveralModels, algorithm="cfl", update=server_update, state=CFLState):
    """Clustered federated learning; see `strategies.rules.cfl`."""

    def count(self) -> int:
        """Return one, with which a run begins."""
        return 1

    def route(self, state: CFLState, to: Sequence[str], context: RoundContext) -> Route:
        """Give each client its cluster's model."""
        given = {client: model_in(state, model_name(home(state, client))) for client in to}
        return {"model": {client: {client: model} for client, model in given.items()}}
