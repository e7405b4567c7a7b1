"""FedAdagrad, FedAdam, FedYogi and FedAvgM, server half: the mean update drives a server optimiser.

Reddi et al., ICLR 2021, arXiv 2003.00295, Algorithm 2; FedAvgM: Hsu et al. 2019, arXiv 1909.06335.

Delta_t = sum_k (n_k / n_S) w_k - w^t,  m_t = beta1 m_{t-1} + (1 - beta1) Delta_t
FedAdagrad  v_t = v_{t-1} + Delta_t^2
FedAdam     v_t = beta2 v_{t-1} + (1 - beta2) Delta_t^2
FedYogi     v_t = v_{t-1} - (1 - beta2) Delta_t^2 sign(v_{t-1} - Delta_t^2)
all three   w^{t+1} = w^t + eta m_t / (sqrt(v_t) + tau),  m_0 = 0, v_0 = tau^2 before the first round
FedAvgM     m_t = beta m_{t-1} + Delta_t,  w^{t+1} = w^t + eta m_t;  Nesterov: + eta (beta m_t + Delta_t)

==========  ======================  ====================================  ==========
symbol      variable                shape, dtype                          where
==========  ======================  ====================================  ==========
w^t         state.arrays            as the model                          server
w_k         up ``arrays``           as the model                          wire
m_t         state.momentum          parameters, float32 or wider          server
v_t         state.second_moment     the same; FedAvgM has none            server
t           state.steps             rounds in which a step was taken      server
==========  ======================  ====================================  ==========

Only parameters are stepped; buffers are averaged as in FedAvg, since a step may make a variance negative.
Steps are computed in float64 and rounded once to the model's dtype.

Deviations: the mean is weighted by examples, as in the authors' code (the algorithm box has the plain mean).
FedAdagrad has a beta1 of its own, 0 as in the paper's runs. With ``fedopt.bias-correction``, v starts at 0
and m_t / (1 - beta1^t), v_t / (1 - beta2^t) replace m_t, v_t (Kingma & Ba; FedAdagrad's v, a sum, stays).
FedAvgM's momentum is not damped by 1 - beta.

Neutral values: FedAvgM is FedAvg at eta = 1, beta = 0; the others where sqrt(v) + tau stays at eta, see the
catalogue.

FedAvgM, first step: v = 1, and Nesterov's step from w = 1 is 0.9 * 1 + 1 = 1.9.

>>> means = {"arrays": {"w": np.array([2.0])}}
>>> replies = AggregatedReplies(means, ("a", "b"), np.array([1, 3]), trainable=("w",))
>>> server_update(FedOptState({"w": np.array([1.0])}), replies, Config(), fedavgm)[0].arrays["w"]
array([2.9])
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from strategies.engine.rule import Rule, Update
from strategies.engine.state import AggregatedReplies, ServerState, Updated
from task.config.knobs import Config
from task.numerics.arrays import Arrays, blocks

Values = NDArray[np.float64]  # one dimension
Step = Callable[..., tuple[Values, ...]]
"""(Delta_t, memory...) -> (what is added to w^t, new memory...)."""


@dataclass(frozen=True)
class FedOptState(ServerState):
    """The model and the server optimiser's memory, empty before the first step."""

    momentum: Arrays = field(default_factory=dict)
    second_moment: Arrays = field(default_factory=dict)
    steps: int = 0


def fedavgm(config: Config, t: int) -> tuple[Step, tuple[float, ...]]:
    """Return step t of SGD with momentum, and its memory's first values."""
    beta, lr, nesterov = config.fedavgm.momentum, config.fedavgm.server_lr, config.fedavgm.nesterov

    def step(delta: Values, m: Values) -> tuple[Values, ...]:
        m = beta * m + delta
        return lr * (beta * m + delta if nesterov else m), m

    return step, (0.0,)


def adaptive(
    config: Config, t: int, second: Callable[[Values, Values, float], Values]
) -> tuple[Step, tuple[float, ...]]:
    """Return step t of an adaptive optimiser with this second moment, and its memory's first values."""
    knobs = config.fedopt
    sums = second is adagrad
    beta1, beta2 = (knobs.adagrad_beta1, 1.0) if sums else (knobs.beta1, knobs.beta2)
    lr, tau = knobs.server_lr, knobs.tau
    of_m = 1 - beta1**t if knobs.bias_correction else 1.0
    of_v = 1 - beta2**t if knobs.bias_correction and not sums else 1.0

    def step(delta: Values, m: Values, v: Values) -> tuple[Values, ...]:
        m = beta1 * m + (1 - beta1) * delta
        v = second(v, delta * delta, beta2)
        return lr / of_m * m / (np.sqrt(v / of_v if of_v < 1 else v) + tau), m, v

    return step, (0.0, 0.0 if knobs.bias_correction else tau**2)


def adagrad(v: Values, square: Values, beta2: float) -> Values:
    """Return FedAdagrad's v_t; `square` is Delta_t^2."""
    return v + square


def adam(v: Values, square: Values, beta2: float) -> Values:
    """Return FedAdam's v_t."""
    return beta2 * v + (1 - beta2) * square


def yogi(v: Values, square: Values, beta2: float) -> Values:
    """Return FedYogi's v_t."""
    return v - (1 - beta2) * square * np.sign(v - square)


def server_update(
    state: FedOptState,
    reduced: AggregatedReplies,
    config: Config,
    optimizer: Callable[[Config, int], tuple[Step, tuple[float, ...]]],
) -> Updated[FedOptState]:
    """Average the buffers and take the optimiser's step with the parameters."""
    mean, t = reduced.arrays["arrays"], state.steps + 1
    step, first = optimizer(config, t)
    new = FedOptState(dict(mean), steps=t)
    for name in reduced.trainable:
        w = state.arrays[name]
        wide = np.promote_types(w.dtype, np.float32)
        old = [a.get(name) for a in (state.momentum, state.second_moment)]
        memory = [np.full(w.shape, x, wide) if a is None else a for a, x in zip(old, first, strict=False)]
        into = [np.empty(a.shape, a.dtype) for a in (w, *memory)]
        read, write = [a.reshape(-1) for a in (w, mean[name], *memory)], [a.reshape(-1) for a in into]
        for block in blocks(w.size):
            start, end, *kept = (a[block].astype(np.float64) for a in read)
            added, *kept = step(end - start, *kept)
            for a, values in zip(write, (start + added, *kept), strict=True):
                a[block] = values
        for arrays, filled in zip((new.arrays, new.momentum, new.second_moment), into, strict=False):
            arrays[name] = filled
    return new, {}


def with_moment(second: Callable[[Values, Values, float], Values]) -> Update:
    """Return `server_update` with the adaptive optimiser of this second moment."""
    return partial(server_update, optimizer=partial(adaptive, second=second))


class FedAvgM(Rule, algorithm="fedavgm", update=partial(server_update, optimizer=fedavgm), state=FedOptState):
    """Federated averaging with server momentum; see `strategies.rules.fedopt`."""


class FedAdagrad(Rule, algorithm="fedadagrad", update=with_moment(adagrad), state=FedOptState):
    """Adagrad on the server; see `strategies.rules.fedopt`."""


class FedAdam(Rule, algorithm="fedadam", update=with_moment(adam), state=FedOptState):
    """Adam on the server; see `strategies.rules.fedopt`."""


class FedYogi(Rule, algorithm="fedyogi", update=with_moment(yogi), state=FedOptState):
    """Yogi on the server; see `strategies.rules.fedopt`."""
