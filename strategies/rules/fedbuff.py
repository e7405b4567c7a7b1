"""FedBuff, server half. Nguyen et al., AISTATS 2022, arXiv 2106.06639, Algorithm 1.

w^{t+1} = w^t + (eta_g / K) sum_k s(tau_k) (w_k - w^{v_k}),  s(tau) = (1 + tau)^-a, a = 1/2 in the paper

=======  ==========================  ===============================  ==========
symbol   variable                    meaning                          where
=======  ==========================  ===============================  ==========
K        ``fedbuff.buffer``          updates of a server step         run config
eta_g    ``fedbuff.server-lr``       server learning rate             run config
a        ``fedbuff.exponent``        how fast stale updates fade      run config
w_k      up ``arrays``               the client's model               wire
v_k      state.arriving["k"]         version that it began from       server
=======  ==========================  ===============================  ==========

Clients count alike, whatever their examples, and the sum is divided by the number of updates, not by the sum
of s, so that a stale buffer makes a short step. Of K updates those that are refused are left out, and the
others divided by their own number. Differences and their sum are float64, in the order of names, rounded
once. Buffers, such as running statistics, become the plain mean of the clients'.

With K = all clients nothing is stale, and the step is FedAvg's of equal weights but for that rounding.

An update of 1 from the present version and one of 4 that is three versions old, s = 1/2:

>>> state = AsyncState({"w": np.array([10.0])}, version=3,
...     arriving={"a": np.array([5.0, 3.0]), "b": np.array([6.0, 0.0])}, versions={"0/w": np.array([2.0])})
>>> models = {"arrays": {"w": np.array([[11.0], [6.0]])}}
>>> replies = AggregatedReplies(models, ("a", "b"), np.array([1, 1]))
>>> made, metrics = server_update(state, replies, Config())
>>> made.arrays["w"].tolist(), metrics["staleness-mean"]
([11.5], 1.5)
"""

import numpy as np

from strategies.engine.state import AggregatedReplies, Updated
from strategies.rules.asynchronous import Asynchronous, AsyncState, given_to, staleness_metrics, stepped
from strategies.rules.steps import step
from task.config.algorithm_sections import FedBuffConfig
from task.config.knobs import Config
from task.numerics.reduce import plain_mean


def discount(tau: int, knobs: FedBuffConfig) -> float:
    """Return s(tau)."""
    return float((1.0 + tau) ** -knobs.exponent)


def server_update(state: AsyncState, reduced: AggregatedReplies, config: Config) -> Updated[AsyncState]:
    """Add the weighted mean of the clients' changes, each from the version that it began from."""
    knobs, sent = config.fedbuff, reduced.arrays["arrays"]
    trained = [n for n in state.arrays if n in (reduced.trainable or state.arrays)]
    total = {n: np.zeros(state.arrays[n].shape) for n in trained}
    for k, client in enumerate(reduced.clients):
        start, tau = given_to(state, client)
        weight = discount(tau, knobs)
        for n in trained:
            total[n] += weight * (sent[n][k].astype(np.float64) - start[n])
    scale = knobs.server_lr / len(reduced.clients)
    rest = {n: a for n, a in sent.items() if n not in total}
    arrays = plain_mean(rest) | step(state.arrays, total, scale)
    metrics = staleness_metrics(state, reduced.clients)
    return stepped(state, {n: arrays[n] for n in state.arrays}), metrics


class FedBuff(Asynchronous, algorithm="fedbuff", update=server_update):
    """Federated learning with buffered asynchronous aggregation; see `strategies.rules.fedbuff`."""

    def buffer(self, at_once: int) -> int:
        """Return ``fedbuff.buffer``; 0 = half of the clients that are at work."""
        return self.config.fedbuff.buffer or -(-at_once // 2)

    def weight(self, tau: int) -> float:
        """Return s(tau)."""
        return discount(tau, self.config.fedbuff)
