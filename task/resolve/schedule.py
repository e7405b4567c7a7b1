"""The learning rate of a round, eta_t; rounds count from 1.

===========  ===============================================  ==========================================
symbol       variable                                         run-config key
===========  ===============================================  ==========================================
eta_0        ``learning_rate``                                ``learning-rate``
gamma        ``lr_decay``                                     ``lr-decay``
S            ``lr_step``                                      ``lr-step``
W            ``lr_warmup``                                    ``lr-warmup``
T            `rounds`                                         ``num-server-rounds``
===========  ===============================================  ==========================================

In the first W rounds eta_t = eta_0 t / (W + 1). After them, with s = t - W from 1 on,

constant     eta_0
exponential  eta_0 gamma^(s - 1)
step         eta_0 gamma^floor((s - 1) / S)
cosine       eta_0 (1 + cos(pi (s - 1) / (T - W))) / 2, which would be 0 in round T + 1
"""

import math

from task.config.sections import TrainConfig


def learning_rate(train: TrainConfig, server_round: int, rounds: int) -> float:
    """Return eta_t of a round, given the run's number of rounds; later rounds have the last one's."""
    eta, warmup = train.learning_rate, train.lr_warmup
    if server_round <= warmup:
        return eta * server_round / (warmup + 1)
    over = server_round - warmup - 1
    if train.lr_schedule == "cosine":
        span = max(rounds - warmup, 1)
        return eta * (1.0 + math.cos(math.pi * min(over, span - 1) / span)) / 2.0
    if train.lr_schedule == "constant":
        return eta
    return eta * train.lr_decay ** (over // train.lr_step if train.lr_schedule == "step" else over)
