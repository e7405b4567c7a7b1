"""FedDF, server half. Lin, Kong, Stich and Jaggi, NeurIPS 2020, arXiv 2006.07242, Algorithms 1 and 3.

x_{t,0} = sum_{k in S_t^P} (n_k / n_S^P) x_k
x_{t,j} = x_{t,j-1} - eta_j grad KL(sigma(1/|S_t| sum_{k in S_t} f(x_k, d_j)) || sigma(f(x_{t,j-1}, d_j)))

for j = 1 .. N and each kind of model P, which the clients S_t^P of S_t have; all have one in Algorithm 1.

========  ========================  ================================  ===========
symbol    variable                  shape, dtype                      where
========  ========================  ================================  ===========
x_k       up ``arrays``, stacked    [K, ...], in the order of names   wire
x_{t,N}   state.arrays              as the model, of each kind        server
P         ``models.levels``         names; "" = all have one kind     run config
d_j       batches of `Distiller`    [b, ...]                          server
N         ``feddf.steps``           integer, 0 = FedAvg               run config
eta_j     ``feddf.lr``              of Adam, along half a cosine      run config
b         ``feddf.batch-size``      integer                           run config
========  ========================  ================================  ===========

The clients are FedAvg's. The d_j are public examples, which only the server needs and whose labels it does
not read. The batches of a round are drawn once and gone through in turn; Adam restarts in each round. Of
clients whose models are equal, such as one alone, the mean is the ensemble, and the steps change nothing.

A kind that no client of the round has begins its steps at its last model.

The paper stops when a validation set no longer gains, after 10,000 steps at most; here N is fixed. Models are
in evaluation mode throughout, so that running statistics stay the clients' mean.

The mean before the steps, of n = (1, 3):

>>> stack = {"w": np.array([[5.0], [1.0]])}
>>> replies = AggregatedReplies({"arrays": stack}, ("a", "b"), np.array([1, 3]))
>>> server_update(ServerState({"w": np.array([0.0])}), replies, Config())[0].arrays["w"]
array([2.])
"""

from dataclasses import replace

import numpy as np

from strategies.engine.rule import TRAIN, Round, RoundContext, Rule
from strategies.engine.state import AggregatedReplies, Number, S, ServerState, Updated
from task.config.knobs import Config
from task.errors import ConfigError
from task.models.family import Kinds
from task.numerics import seeds
from task.numerics.arrays import Arrays
from task.numerics.reduce import mean_of


def server_update(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Replace the model by the weighted mean of the local models, FedAvg's to the bit."""
    stack = reduced.arrays["arrays"]
    return replace(state, arrays=mean_of(stack, range(len(reduced.clients)), reduced.counts)), {}


def _by_kind(kinds: Kinds, replies: AggregatedReplies) -> Arrays:
    """Return the mean of each kind of model that clients of the round have, over these clients."""
    stacks, means = replies.arrays["arrays"], dict[str, np.ndarray]()
    for kind, rows in kinds.groups(replies.clients).items():
        mine = kind.take(stacks)
        means |= mean_of(mine, range(len(rows)), replies.counts[rows]) if rows else {}
    return means


class FedDF(Rule, algorithm="feddf", update=server_update):
    """FedAvg whose mean learns from the clients' ensemble; see `strategies.rules.feddf`."""

    def round(self, state: ServerState, context: RoundContext) -> Round:
        """Let the cohort train, and distil its ensemble into the mean.

        Raises:
            ConfigError: There is to be a distillation, and nothing that does it.
        """
        knobs, metrics = self.config.feddf, dict[str, Number]()
        if knobs.steps and context.distil is None:
            raise ConfigError(
                'run-config key "feddf.steps": expected `strategy.engine.distil`, which has model and public '
                "examples (task.tasks.distil.Distiller), or 0; got none"
            )
        replies = yield context.phase(TRAIN, state)
        if isinstance(context.family, Kinds):
            averaged = replace(state, arrays=state.arrays | _by_kind(context.family, replies))
        else:
            averaged, _ = server_update(state, replies, self.config)
        if knobs.steps and context.distil is not None:
            rng = seeds.rng_for(self.config.seeds.train, seeds.PUBLIC, context.round)
            ensemble = replies.arrays["arrays"]
            arrays, found = context.distil(
                averaged.arrays, ensemble, knobs.steps, knobs.lr, knobs.batch_size, rng
            )
            averaged, metrics = replace(averaged, arrays=arrays), {**found}
        return averaged, metrics
