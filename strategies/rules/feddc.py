"""FedDC, server half. Gao, Fu, Li, Chen, Xu and Xu, CVPR 2022, arXiv 2203.11751, Algorithm 1.

w^{t+1} = (1/m) sum_{k in S_t} w_k + (1/K) sum_k h_k   over all K clients
g <- g + (1/K) sum_{k in S_t} v_k (g_k^+ - g_k)

=================  =======================  ====================================  ============
symbol             variable                 shape, dtype                          where
=================  =======================  ====================================  ============
w^t                state.arrays             as the model                          server, down
g                  state.gradient           as the parameters                     server, down
mean of all h_k    state.drift              as the parameters, float64            server
w_k                up ``arrays``            as the model                          wire
v_k (g_k^+ - g_k)  up ``gradient-delta``    as the parameters                     wire
n / K              ``mean-examples``        float; v_k = n_k K / n                server, down
K, m               population, clients      who is or was online, who answered
=================  =======================  ====================================  ============

The mean of the local models is uniform, as in the authors' code: n_k enters by v_k. h_k grows by w_k - w^t,
so the server follows the mean of all h_k without a record for it. K clients are those that the run has known,
and n their examples, of one that is away as it last had them. With others that join, or examples that arrive,
n grows: g is (1/n) sum n_k g_k over all clients, n_k as of a client's last training. What is said of c in
`strategies.rules.scaffold` holds for g and for the mean of h_k too. Buffers are averaged and have neither.

No value gives FedAvg: with alpha = 0 the corrections of gradient and drift stay. At rest h_k sum to 0, g = 0
and sum n_k grad F_k = 0: that is the optimum of the pooled data.

The only client goes from 0 to 2: h = 2, and the model takes it on top of the mean, 2 + 2.

>>> zero = {"w": np.array([0.0])}
>>> replies = AggregatedReplies(
...     {"arrays": {"w": np.array([2.0])}, "gradient-delta": {"w": np.array([3.0])}}, ("anna",), np.array([7])
... )
>>> state, _ = server_update(FedDCState(zero, zero, zero), replies, Config())
>>> [a["w"].tolist() for a in (state.arrays, state.gradient, state.drift)]
[[4.0], [3.0], [2.0]]
"""

from dataclasses import dataclass, field, replace

import numpy as np

from strategies.engine.rule import RoundContext, Rule
from strategies.engine.state import AggregatedReplies, MeansState, Updated, rescaled
from strategies.rules.steps import step
from task.config.knobs import Config
from task.numerics.arrays import Arrays


@dataclass(frozen=True)
class FedDCState(MeansState):
    """The model, g, the mean of all h_k, and n / K."""

    gradient: Arrays = field(default_factory=dict)
    drift: Arrays = field(default_factory=dict)
    mean_examples: float = 1.0


def server_update(state: FedDCState, reduced: AggregatedReplies, config: Config) -> Updated[FedDCState]:
    """Put the model at the mean plus the mean drift, and move g; rounded once, from float64."""
    mean = reduced.arrays["arrays"]
    gradient = step(state.gradient, reduced.arrays["gradient-delta"], reduced.share)
    stepped, drift = {}, {}
    for name in gradient:
        wide = mean[name].astype(np.float64)
        drift[name] = state.drift[name] + reduced.share * (wide - state.arrays[name].astype(np.float64))
        stepped[name] = (wide + drift[name]).astype(mean[name].dtype)
    return replace(state, arrays=mean | stepped, gradient=gradient, drift=drift), {}


_ZEROS = {"gradient": None, "drift": np.float64}
_SENDS = {"mean-examples": "mean_examples"}


class FedDC(Rule, algorithm="feddc", update=server_update, state=FedDCState, zeros=_ZEROS, sends=_SENDS):
    """Local drift decoupling and correction; see `strategies.rules.feddc`."""

    counts_examples = True

    def counted(self, state: FedDCState, context: RoundContext) -> FedDCState:
        """Take the mean number of examples of all clients that the run has known, and g over these."""
        counts = context.examples(context.everybody).values()
        before = state.mean_examples * state.population
        new: FedDCState = super().counted(state, context)
        new = replace(new, mean_examples=sum(counts) / len(counts))
        factor = before / (new.mean_examples * new.population) if before else 1.0
        return replace(new, gradient=rescaled(state.gradient, factor))
