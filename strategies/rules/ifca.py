"""IFCA, server half. Ghosh, Chung, Yin and Ramchandran, NeurIPS 2020, arXiv 2006.04088, Algorithm 1.

theta_j <- sum_{k in S_j} n_k w_k / sum_{k in S_j} n_k, over S_j, the clients of the round that chose theta_j

=======  ============================  ==================  ======================
symbol   variable                      shape, dtype        where
=======  ============================  ==================  ======================
theta_j  state.models, see `several`   as the model        server, down ``model-j``
w_k      up ``arrays``                 as the model        wire
j        up ``cluster``                integer             wire
p        ``ifca.clusters``             >= 1                run config
=======  ============================  ==================  ======================

A model that no client chose stays. Weights are n_k, as in the authors' code for FEMNIST; that for rotated
MNIST, where all clients have as many examples, takes the plain mean. ``arrays``, which a central evaluation
measures, is the model that most clients of the round chose, the first of several. ``cluster-j`` in the
round's metrics says how many chose theta_j.

Of three clients two chose theta_0:

>>> import numpy as np
>>> models = {"model-0/w": np.array([0.0]), "model-1/w": np.array([10.0])}
>>> state = SeveralState({"w": np.array([0.0])}, models)
>>> stack, n = {"arrays": {"w": np.array([[1.0], [9.0], [2.0]])}}, np.array([1, 1, 1])
>>> replies = AggregatedReplies(stack, ("a", "b", "c"), n, scalars={"cluster": [0, 1, 0]})
>>> new, metrics = server_update(state, replies, Config())
>>> new.models, metrics
({'model-0/w': array([1.5]), 'model-1/w': array([9.])}, {'cluster-0': 2, 'cluster-1': 1})
"""

from collections.abc import Mapping
from dataclasses import replace

from strategies.engine.rule import Limits
from strategies.engine.state import AggregatedReplies, Number, Updated
from strategies.rules.several import SeveralModels, SeveralState, model_in
from task.catalogue.several import model_name
from task.config.knobs import Config
from task.numerics.arrays import flattened
from task.numerics.reduce import mean_of


def server_update(state: SeveralState, reduced: AggregatedReplies, config: Config) -> Updated[SeveralState]:
    """Replace each model by the mean of those that were trained from it."""
    models, metrics = dict(state.models), dict[str, Number]()
    chosen = [int(j) for j in reduced.scalars["cluster"]]
    for j in range(config.ifca.clusters):
        rows = [k for k, choice in enumerate(chosen) if choice == j]
        metrics[f"cluster-{j}"] = len(rows)
        if rows:
            models |= flattened({model_name(j): mean_of(reduced.arrays["arrays"], rows, reduced.counts)})
    most = max(range(config.ifca.clusters), key=lambda j: (metrics[f"cluster-{j}"], -j))
    new = replace(state, models=models)
    return replace(new, arrays=model_in(new, model_name(most))), metrics


class IFCA(SeveralModels, algorithm="ifca", update=server_update):
    """Iterative federated clustering; see `strategies.rules.ifca`."""

    def count(self) -> int:
        """Return p."""
        return self.config.ifca.clusters

    def limits(self, examples: Mapping[str, int], epochs: Mapping[str, int]) -> Limits:
        """Return the largest number of a cluster."""
        return {client: {"cluster": float(self.count() - 1)} for client in examples}
