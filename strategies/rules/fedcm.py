"""FedCM, server half. Xu, Wang, Wang and Yao 2021, arXiv 2106.10874, Algorithm 1.

w^{t+1} = (1/m) sum_{k in S_t} w_k
M_{t+1} = (w^t - w^{t+1}) / (eta_t tau),   tau = (1/m) sum_{k in S_t} tau_k

============  ====================  ========================  ============
symbol        variable              shape, dtype              where
============  ====================  ========================  ============
w^t           state.arrays          as the model              server, down
M_t           state.momentum        as the parameters         server, down
w_k           up ``arrays``         as the model              wire
tau_k         ``step-weight``       float > 0                 wire
eta_t         reduced.lr            float                     run config
============  ====================  ========================  ============

M_1 = 0, so that the first round is alpha times FedAvg's. The mean is uniform, as in the paper. M is in units
of a gradient: it is divided by the learning rate that made it, so that a decay does not apply twice. The
paper has one tau; of clients with unequal work M is the mean over all their steps, not over clients. The
server's step is 1. Buffers are averaged and have no M.

Neutral: alpha = 1 is FedAvg, sizes being equal.

From 1 to 0.4 in mean, by 2 and 4 steps at eta = 0.1: M = 0.6 / (0.1 * 3).

>>> replies = AggregatedReplies(
...     {"arrays": {"w": np.array([0.4])}}, ("a", "b"), np.array([1, 1]), {"step-weight": [2.0, 4.0]},
...     lr=0.1, trainable=("w",),
... )
>>> state, _ = server_update(MomentumState({"w": np.array([1.0])}, {"w": np.array([0.0])}), replies, Config())
>>> state.momentum["w"].round(9).tolist()
[2.0]
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from strategies.engine.rule import Limits, Rule
from strategies.engine.state import AggregatedReplies, ServerState, Updated
from strategies.rules.fednova import most_steps
from task.config.knobs import Config
from task.numerics.arrays import Arrays


@dataclass(frozen=True)
class MomentumState(ServerState):
    """The model and the direction that all clients share."""

    momentum: Arrays = field(default_factory=dict)


def server_update(state: MomentumState, reduced: AggregatedReplies, config: Config) -> Updated[MomentumState]:
    """Take the mean, and its way from w^t over eta_t tau as the next momentum; rounded once, from float64."""
    mean, length = reduced.arrays["arrays"], reduced.lr * reduced.needed("step-weight")
    momentum = {
        n: ((state.arrays[n].astype(np.float64) - mean[n].astype(np.float64)) / length).astype(a.dtype)
        for n, a in state.momentum.items()
    }
    return replace(state, arrays=mean, momentum=momentum), {}


class FedCM(Rule, algorithm="fedcm", update=server_update, state=MomentumState, zeros={"momentum": None}):
    """Client-level momentum; see `strategies.rules.fedcm`."""

    def limits(self, examples: Mapping[str, int], epochs: Mapping[str, int]) -> Limits:
        """Hold tau_k to the steps that a client was asked for."""
        return most_steps(self.config, examples, epochs)
