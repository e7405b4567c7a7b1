"""FedNova, server half. Wang et al., NeurIPS 2020, arXiv 2007.07481, section 5 (normalised averaging).

w^{t+1} = w^t + tau_eff sum_{k in S_t} p_k (w_k - w^t) / |a_k|_1
tau_eff = sum_{k in S_t} p_k |a_k|_1,  p_k = n_k / n_S, or 1/m where the selection draws by n_k

==========  =====================  ============================  ==========
symbol      variable               shape, dtype                  where
==========  =====================  ============================  ==========
w^t         state.arrays           as the model                  server
update      up ``update``          as the model                  wire
a_k         ``step-weight``        float > 0                     wire
n_k         ``num-examples``       positive integer              wire
==========  =====================  ============================  ==========

|a_k|_1 is how far the client's solver goes along a constant gradient in its tau_k steps, in units of eta:
tau_k for plain SGD. The paper's d_k = (w^t - w_k) / (eta |a_k|_1) has the other sign. The paper leaves
tau_eff open; the mean of |a_k|_1 makes a round as long as FedAvg's. Buffers are averaged.

Neutral: equal numbers of local steps, ``local-steps`` > 0, are FedAvg.

Equal clients that took 2 and 4 steps: tau_eff = 3, and w = 1 + 3 * 0.5 = 2.5.

>>> n, steps = np.array([1, 1]), {"step-weight": [2.0, 4.0]}
>>> replies = AggregatedReplies({"update": {"w": np.array([0.5])}}, ("a", "b"), n, steps, trainable=("w",))
>>> server_update(ServerState({"w": np.array([1.0])}), replies, Config())[0].arrays["w"]
array([2.5])
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from strategies.engine.rule import Limits, Rule
from strategies.engine.state import AggregatedReplies, S, Updated
from strategies.rules.steps import step
from task.config.knobs import Config
from task.numerics.arrays import only


def server_update(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Take tau_eff steps of the mean normalised update; the sum is rounded once, from float64."""
    steps = reduced.needed("step-weight")
    update = reduced.arrays["update"]
    stepped = step(state.arrays, only(update, reduced.trainable), steps)
    return replace(state, arrays=update | stepped), {"effective-steps": steps}


def most_steps(config: Config, examples: Mapping[str, int], epochs: Mapping[str, int]) -> Limits:
    """Return the largest |a_k|_1 of the steps that clients were asked for: none exceeds tau_k / (1 - rho)."""
    train, found = config.train, {}
    for client, n in examples.items():
        passes = epochs.get(client, train.local_epochs)
        steps = train.local_steps or passes * math.ceil(n / (train.batch_size or n))
        found[client] = {"step-weight": steps / (1.0 - train.momentum) * (1 + 1e-9)}
    return found


class FedNova(Rule, algorithm="fednova", update=server_update):
    """Normalised averaging; see `strategies.rules.fednova`."""

    def limits(self, examples: Mapping[str, int], epochs: Mapping[str, int]) -> Limits:
        """Hold |a_k|_1 to the steps that a client was asked for."""
        return most_steps(self.config, examples, epochs)
