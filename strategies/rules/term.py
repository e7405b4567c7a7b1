"""TERM, server half. Li, Beirami, Sanjabi and Smith, ICLR 2021, arXiv 2007.01162, Algorithm 2 over clients.

min_w (1/t) log (1/K) sum_k e^{t F_k(w)}
w^{t+1} = sum_{k in S_t} v_k w_k,   v_k = e^{t F_k(w^t)} / sum_{j in S_t} e^{t F_j(w^t)}

=========  =======================  ================================  ==========
symbol     variable                 shape, dtype                      where
=========  =======================  ================================  ==========
w_k        up ``arrays``            [m, ...] as the model             wire
F_k(w^t)   ``loss-before``          mean loss over local examples     wire
t          ``term.t``               float                             run config
v_k        `weights`                float64 [m], of sum 1             server
=========  =======================  ================================  ==========

t > 0 favours clients with a large loss, as a minimax does for t to infinity; t < 0 leaves them out as
outliers. The authors' code normalises by a running mean that starts at 0 and divides by the number of clients
once more; here the weights are the softmax itself. Losses are the clients' own word. Buffers have the same
weights.

Neutral: t = 0 is FedAvg, sizes being equal.

Losses 0 and 24 at t = 0.1:

>>> weights([0.0, 24.0], 0.1).round(6)
array([0.083173, 0.916827])
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from strategies.engine.rule import Rule
from strategies.engine.state import AggregatedReplies, S, Updated
from strategies.rules.robust_math import combine
from task.config.knobs import Config


def weights(losses: Sequence[float], t: float) -> np.ndarray:
    """Return softmax(t F), float64 [m]."""
    tilted = t * np.asarray(losses, np.float64)
    raised = np.exp(tilted - tilted.max())
    return np.asarray(raised / raised.sum())


def server_update(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Take the mean of the models by the exponentials of their losses."""
    losses = reduced.scalars["loss-before"]
    share = weights(losses, config.term.t)
    arrays = combine(reduced.arrays["arrays"], share)
    return replace(state, arrays=arrays), {"worst-loss": max(losses), "largest-weight": float(share.max())}


class TERM(Rule, algorithm="term", update=server_update):
    """Tilted empirical risk minimisation; see `strategies.rules.term`."""
