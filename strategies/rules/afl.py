"""Agnostic federated learning, server half. Mohri, Sivek and Suresh, ICML 2019, arXiv 1902.00146, section 4.

min_w max_{lambda in simplex} sum_k lambda_k F_k(w)
w^{t+1} = sum_{k in S_t} lambda_k w_k,   lambda_k relative to the cohort
projected       lambda <- Proj(lambda + gamma F(w^t)), the nearest point of the simplex
exponentiated   lambda_k <- lambda_k e^{gamma F_k(w^t)}, normalised     (Ro et al. 2021, arXiv 2104.02748)

=========  ========================  ====================================  ==========
symbol     variable                  shape, dtype                          where
=========  ========================  ====================================  ==========
w_k        up ``arrays``             [m, ...] as the model                 wire
F_k(w^t)   ``loss-before``           mean loss over local examples         wire
lambda_k   state.mass, by client     float64, in units of examples         server
gamma      ``afl.lambda-lr``         float >= 0                            run config
=========  ========================  ====================================  ==========

A client is a domain of the paper. lambda begins at n_k / n, of a client that is new too: the server keeps the
mass of each client that took part, in units of examples, and a round moves mass among its cohort only. With
C = 1 that is the paper's step; with less, the clients of a round share what they had. If none of them has any
mass, their plain mean is taken. The paper takes one gradient a round and the mean of all iterates; here
clients train as in FedAvg, and the last model counts. Losses are the clients' own word: a client that
overstates its own takes over, so this is no rule for malicious ones. Buffers have the weights of the models.

Neutral: gamma = 0 is FedAvg.

Losses 0 and 24, gamma = 0.01: (0.5, 0.74) is projected to (0.38, 0.62).

>>> projected(np.array([0.5, 0.74]))
array([0.38, 0.62])
"""

from dataclasses import dataclass, field, replace

import numpy as np

from strategies.engine.rule import Rule
from strategies.engine.state import AggregatedReplies, ServerState, Updated
from strategies.rules.robust_math import combine
from task.config.knobs import Config
from task.numerics.arrays import Arrays


@dataclass(frozen=True)
class AFLState(ServerState):
    """The model and the mass of each client that took part so far, by name."""

    mass: Arrays = field(default_factory=dict)


def projected(x: np.ndarray) -> np.ndarray:
    """Return the point of the probability simplex that is nearest to x [m] (Duchi et al., ICML 2008)."""
    falling = np.sort(x)[::-1]
    excess = (np.cumsum(falling) - 1) / np.arange(1, len(x) + 1)
    (above,) = np.nonzero(falling > excess)
    return np.asarray(np.maximum(x - excess[above[-1]], 0.0))


def moved(share: np.ndarray, losses: np.ndarray, rate: float, form: str) -> np.ndarray:
    """Return the shares [m], of sum 1, after a step along the losses."""
    if form == "projected":
        return projected(share + rate * losses)
    raised = share * np.exp(rate * (losses - losses.max()))
    return np.asarray(raised / raised.sum()) if raised.sum() > 0 else share


def server_update(state: AFLState, reduced: AggregatedReplies, config: Config) -> Updated[AFLState]:
    """Take the mean by the shares of the cohort, then move these along the losses."""
    knobs, losses = config.afl, np.array(reduced.scalars["loss-before"])
    counts = zip(reduced.clients, reduced.counts, strict=True)
    before = np.array([float(state.mass[name][0]) if name in state.mass else float(n) for name, n in counts])
    whole = before.sum()
    share = before / whole if whole > 0 else np.full(len(before), 1 / len(before))
    arrays = combine(reduced.arrays["arrays"], share)
    after = share
    if knobs.lambda_lr:
        after = moved(share, losses, knobs.lambda_lr, knobs.step)
    mass = {name: np.array([whole * s]) for name, s in zip(reduced.clients, after, strict=True)}
    metrics = {"worst-loss": float(losses.max()), "largest-weight": float(after.max())}
    return replace(state, arrays=arrays, mass=state.mass | mass), metrics


class AFL(Rule, algorithm="afl", update=server_update, state=AFLState):
    """Agnostic federated learning; see `strategies.rules.afl`."""
