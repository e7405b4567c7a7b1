"""FedAsync, server half. Xie, Koyejo and Gupta 2019, arXiv 1903.03934, Algorithm 1.

w^{t+1} = (1 - alpha_t) w^t + alpha_t w_k,  alpha_t = alpha s(tau_k), at each arrival

=============  =========================================  ============================
s(tau)         ``fedasync.staleness``                     keys
=============  =========================================  ============================
1              ``constant``
(1 + tau)^-a   ``polynomial``                             ``fedasync.poly-a``
1 if tau <= b,
else
1 / (a (tau -  ``hinge``                                  ``fedasync.hinge-a``, ``-b``
b) + 1)
=============  =========================================  ============================

The client minimises F_k(w) + rho/2 |w - w^{v_k}|^2, from the version v_k that it was given. Parameters and
buffers are mixed alike, as in `strategies.rules.steps`; integers are the client's.

One that is three versions old has half a say, here with alpha = 1:

>>> import numpy as np
>>> state = AsyncState({"w": np.array([10.0])}, version=3, arriving={"a": np.array([5.0, 0.0])},
...     versions={"0/w": np.array([2.0])})
>>> replies = AggregatedReplies({"arrays": {"w": np.array([[4.0]])}}, ("a",), np.array([1]))
>>> config = Config(fedasync=FedAsyncConfig(alpha=1.0))
>>> made, metrics = server_update(state, replies, config)
>>> made.arrays["w"].tolist(), metrics["staleness-max"]
([7.0], 3)
"""

from strategies.engine.state import AggregatedReplies, Updated
from strategies.rules.asynchronous import Asynchronous, AsyncState, given_to, staleness_metrics, stepped
from strategies.rules.steps import towards
from task.config.algorithm_sections import FedAsyncConfig
from task.config.knobs import Config
from task.numerics.arrays import Arrays


def discount(tau: int, knobs: FedAsyncConfig) -> float:
    """Return s(tau).

    >>> [discount(tau, FedAsyncConfig(staleness="hinge", hinge_a=10.0, hinge_b=6)) for tau in (6, 7)]
    [1.0, 0.09090909090909091]
    """
    if knobs.staleness == "polynomial":
        return float((1.0 + tau) ** -knobs.poly_a)
    if knobs.staleness == "hinge" and tau > knobs.hinge_b:
        return 1.0 / (knobs.hinge_a * (tau - knobs.hinge_b) + 1.0)
    return 1.0


def mixed(state: AsyncState, reduced: AggregatedReplies, alpha: float) -> Arrays:
    """Return (1 - alpha) w + alpha w_k of the one client that arrives."""
    arrays = {name: stack[0, ...] for name, stack in reduced.arrays["arrays"].items()}
    return arrays | towards(state.arrays, {n: a for n, a in arrays.items() if a.dtype.kind == "f"}, alpha)


def server_update(state: AsyncState, reduced: AggregatedReplies, config: Config) -> Updated[AsyncState]:
    """Mix the model of the client that arrives into the present one."""
    (client,) = reduced.clients
    _, tau = given_to(state, client)
    alpha = config.fedasync.alpha * discount(tau, config.fedasync)
    metrics = staleness_metrics(state, reduced.clients)
    return stepped(state, mixed(state, reduced, alpha)), metrics | {"alpha": alpha}


class FedAsync(Asynchronous, algorithm="fedasync", update=server_update):
    """Asynchronous federated optimisation; see `strategies.rules.fedasync`."""

    def buffer(self, at_once: int) -> int:
        """Return 1: each arrival is a step."""
        return 1

    def weight(self, tau: int) -> float:
        """Return alpha s(tau)."""
        return self.config.fedasync.alpha * discount(tau, self.config.fedasync)

    def down_scalars(self, state: AsyncState) -> dict[str, float]:
        """Return rho."""
        return {"proximal-mu": self.config.fedasync.rho}
