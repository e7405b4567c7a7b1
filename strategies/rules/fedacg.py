"""FedACG, server half. Kim, Kim and Han, CVPR 2024, arXiv 2201.03172, Algorithm 1.

y = w^t + lambda m^t goes down; with Delta_k = w_k - y,
m^{t+1} = lambda m^t + (1/m) sum_{k in S_t} Delta_k,   w^{t+1} = w^t + m^{t+1}

========  =====================  ============================  ==========
symbol    variable               shape, dtype                  where
========  =====================  ============================  ==========
w^t       state.arrays           as the model                  server
m^t       state.momentum         as the parameters, float64    server
y         down ``arrays``        as the model                  wire
w_k       up ``arrays``          as the model                  wire
lambda    ``fedacg.lambda``      share in [0, 1)               run config
========  =====================  ============================  ==========

Put in: w^{t+1} is the mean of the w_k, and m^{t+1} its way from w^t. A message is as large as FedAvg's. The
mean is uniform, as in the authors' code, whose momentum covers running statistics and counters too; here
buffers are averaged and have none. What is measured and written is w, not y.

Neutral: lambda = 0 and beta = 0 are FedAvg, sizes being equal. It rests where FedAvg does.

With lambda = 1/2 and m = 2 the clients begin at y = 2; they come to 3 in mean, 2 further than w = 1.

>>> state = MomentumState({"w": np.array([1.0])}, {"w": np.array([2.0])})
>>> ahead(state, 0.5)["w"].tolist()
[2.0]
>>> replies = AggregatedReplies({"arrays": {"w": np.array([3.0])}}, ("a",), np.array([7]), trainable=("w",))
>>> state, _ = server_update(state, replies, Config())
>>> state.arrays["w"].tolist(), state.momentum["w"].tolist()
([3.0], [2.0])
"""

from dataclasses import replace

import numpy as np

from strategies.engine.rule import RoundContext, Rule
from strategies.engine.state import AggregatedReplies, Updated
from strategies.rules.fedcm import MomentumState
from strategies.rules.steps import moved, step
from task.config.knobs import Config
from task.numerics.arrays import Arrays


def ahead(state: MomentumState, lambda_: float) -> Arrays:
    """Return y in the model's dtypes."""
    return state.arrays | step(state.arrays, state.momentum, lambda_)


def server_update(state: MomentumState, reduced: AggregatedReplies, config: Config) -> Updated[MomentumState]:
    """Take the mean, and its way from w^t as the next momentum."""
    mean = reduced.arrays["arrays"]
    return replace(state, arrays=mean, momentum=moved(state.arrays, mean, state.momentum)), {}


_ZEROS = {"momentum": np.float64}


class FedACG(Rule, algorithm="fedacg", update=server_update, state=MomentumState, zeros=_ZEROS):
    """Accelerated client gradient; see `strategies.rules.fedacg`."""

    def down_record(self, state: MomentumState, name: str, context: RoundContext) -> Arrays:
        """Return y, from which the clients start."""
        return ahead(state, self.config.fedacg.lambda_)
