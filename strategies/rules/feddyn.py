"""FedDyn, server half. Acar et al., ICLR 2021, arXiv 2111.04263, Algorithm 1.

h^t = h^{t-1} - alpha (1/m) sum_{k in P_t} (theta_k^t - theta^{t-1})
theta^t = (1/|P_t|) sum_{k in P_t} theta_k^t - h^t / alpha

=============  ====================  ============================  ==========
symbol         variable              shape, dtype                  where
=============  ====================  ============================  ==========
theta^{t-1}    state.arrays          as the model                  server
h              state.h               as the parameters, float64    server
theta_k^t      up ``arrays``         as the model                  wire
m              reduced.population    clients that were ever there  server
alpha          ``feddyn.alpha``      float >= 0                    run config
=============  ====================  ============================  ==========

Means are uniform, as in the paper: the objective is the mean of the clients' losses, whatever their sizes.
Buffers are averaged, and have no h. h is the mean of the clients' gradient states as long as every reply
arrives; what is said of c in `strategies.rules.scaffold` holds for it too, joins, absences and those that
left for good included.

Neutral: alpha = 0 switches both halves off, h staying 0 and h/alpha being taken as 0; sizes being equal, that
is FedAvg. It is not the limit for small alpha, in which the server keeps its extrapolation by h/alpha.

With alpha = 0.01 and two of four clients: h = 0 - 0.01 * 2/4 * (3 - 1) = -0.01, theta = 3 + 0.01 / 0.01 = 4.

>>> state = FedDynState({"w": np.array([1.0])}, h={"w": np.array([0.0])})
>>> means = {"arrays": {"w": np.array([3.0])}}
>>> replies = AggregatedReplies(means, ("a", "b"), np.array([1, 1]), population=4)
>>> server_update(state, replies, Config())[0].arrays["w"]
array([4.])
"""

from dataclasses import dataclass, field, replace

import numpy as np

from strategies.engine.rule import Rule
from strategies.engine.state import AggregatedReplies, MeansState, Updated
from task.config.knobs import Config
from task.numerics.arrays import Arrays


@dataclass(frozen=True)
class FedDynState(MeansState):
    """The model and h."""

    h: Arrays = field(default_factory=dict)
    """By parameter, float64: it is never sent, so that nothing is rounded that adds up over rounds."""


def server_update(state: FedDynState, reduced: AggregatedReplies, config: Config) -> Updated[FedDynState]:
    """Move h against the mean step, then put the model at the mean less h/alpha; rounded once."""
    alpha, mean = config.feddyn.alpha, reduced.arrays["arrays"]
    if alpha == 0:
        return replace(state, arrays=mean), {}
    stepped, h = {}, {}
    for name, before in state.h.items():
        wide = mean[name].astype(np.float64)
        h[name] = before - alpha * reduced.share * (wide - state.arrays[name].astype(np.float64))
        stepped[name] = (wide - h[name] / alpha).astype(mean[name].dtype)
    return replace(state, arrays=mean | stepped, h=h), {}


class FedDyn(Rule, algorithm="feddyn", update=server_update, state=FedDynState, zeros={"h": np.float64}):
    """Dynamic regularisation; see `strategies.rules.feddyn`."""
