"""FedExP, server half. Jhunjhunwala, Wang and Joshi, ICLR 2023, arXiv 2301.09604, Algorithm 1.

eta_g = max(1, (1/m) sum_{k in S_t} |Delta_k|^2 / (2 (|Delta|^2 + epsilon))),  Delta = (1/m) sum Delta_k
w^{t+1} = w^t + eta_g Delta,  Delta_k = w_k - w^t

============  ====================  =========================  ==========
symbol        variable              shape, dtype               where
============  ====================  =========================  ==========
w^t           state.arrays          as the model               server
w_k           up ``arrays``         as the model               wire
|Delta_k|^2   ``square-norm``       float >= 0                 wire
epsilon       ``fedexp.epsilon``    float > 0, as |Delta|^2    run config
eta_g         metric ``server-lr``  float >= 1
============  ====================  =========================  ==========

Under a codec, or of a client that falsifies its model, |Delta_k|^2 is that of what is sent. Of the uncoded
update it would be a small share of |Delta|^2 under a sparse code that is scaled up, and eta_g always 1.

Means are uniform, and epsilon is added to |Delta|^2 once, as in the paper. The authors' code differs: it
weighs by n_k, adds m epsilon, lets epsilon shrink with the square of the learning rate's decay, and evaluates
the mean of the last two models; here the model after the round is evaluated. Norms are over the parameters
alone. Buffers are averaged and never stepped.

Where clients differ, their updates cancel at FedAvg's point of rest while the norms do not vanish: eta_g
grows to mean |Delta_k|^2 / (2 epsilon) there. The model converges only if epsilon keeps that below
2 / (1 - contraction of a round); otherwise it swings around the point.

Neutral: a huge epsilon gives eta_g = 1; sizes being equal, that is FedAvg.

Updates 6 and -2: mean 2, mean of the squares 20, and with epsilon = 1 eta_g = 20 / (2 (4 + 1)).

>>> from task.config.algorithm_sections import FedExPConfig
>>> replies = AggregatedReplies(
...     {"arrays": {"w": np.array([2.0])}}, ("a", "b"), np.array([1, 1]), {"square-norm": [36.0, 4.0]},
...     trainable=("w",),
... )
>>> state, metrics = server_update(
...     ServerState({"w": np.array([0.0])}), replies, Config(fedexp=FedExPConfig(epsilon=1.0))
... )
>>> state.arrays["w"].tolist(), metrics
([4.0], {'server-lr': 2.0})
"""

from collections.abc import Mapping
from dataclasses import replace

from strategies.engine.rule import Limits, Rule
from strategies.engine.state import AggregatedReplies, S, Updated
from strategies.rules.steps import moved, step
from task.config.knobs import Config
from task.numerics.arrays import squared_norm


def server_update(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Step beyond the mean by as much as the clients' updates disagree; rounded once, from float64."""
    mean, norm = reduced.arrays["arrays"], reduced.needed("square-norm")
    change = moved(state.arrays, mean, reduced.trainable)
    square = squared_norm(change)
    lr = max(1.0, norm / (2.0 * (square + config.fedexp.epsilon)))
    if lr == 1.0:  # the mean itself, to the last bit
        return replace(state, arrays=mean), {"server-lr": lr}
    return replace(state, arrays=mean | step(state.arrays, change, lr)), {"server-lr": lr}


class FedExP(Rule, algorithm="fedexp", update=server_update):
    """Federated averaging with an extrapolated step; see `strategies.rules.fedexp`."""

    def limits(self, examples: Mapping[str, int], epochs: Mapping[str, int]) -> Limits:
        """Hold |Delta_k|^2 to the bound on the update itself, if the run sets one."""
        most = self.config.server.max_update_norm
        return {client: {"square-norm": most**2 * (1 + 1e-5)} for client in examples} if most else {}
