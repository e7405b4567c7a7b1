"""Survival: the loss of a Weibull regression with censoring, and the pairs whose order a model predicts.

Targets [N, 2] are a time t > 0 and whether the event happened then (1) or the person was last seen then (0).
Outputs [N, 2] are log lambda and s of a Weibull distribution with scale lambda and shape
k = exp(tanh s), between 1/e and e; the median time is lambda (log 2)^(1/k).

The loss is minus the log-likelihood of log t. With the cumulative hazard H = (t / lambda)^k it is H of those
without the event and H - log H - log k of those with it (Kalbfleisch and Prentice 2002, *The Statistical
Analysis of Failure Time Data*, section 3.2). It is at least 0, as log k is at most 1. It is that of an
example alone, which Cox's partial likelihood is not: a term of that sums over all who are still at risk.
"""

from __future__ import annotations

import math

import torch

LOG_LOG_2 = math.log(math.log(2))


def weibull(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the loss of each example, [N], of outputs [N, 2] and targets [N, 2].

    >>> weibull(torch.zeros(2, 2), torch.tensor([[1.0, 1.0], [1.0, 0.0]])).tolist()  # H = k = 1
    [1.0, 1.0]
    """
    log_k = outputs[:, 1].tanh()
    log_hazard = log_k.exp() * (y[:, 0].log() - outputs[:, 0])
    return log_hazard.exp() - y[:, 1] * (log_hazard + log_k)


def medians(outputs: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of each example's median time, [N], of outputs [N, 2]."""
    return outputs[:, 0] + LOG_LOG_2 * (-outputs[:, 1].tanh()).exp()


def ordered_pairs(outputs: torch.Tensor, y: torch.Tensor) -> tuple[int, int]:
    """Return twice the pairs of examples in the right order, and twice those whose order is known.

    A pair's order is known if the one with the shorter time has the event; of two equal times the one with
    the event is the shorter, if the other has none. It is right if the medians are in this order, and half
    right if they are equal. The quotient is Harrell's concordance (Harrell et al. 1996).

    >>> ordered_pairs(torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([[2.0, 1.0], [3.0, 0.0]]))
    (2, 2)
    """
    score, time, event = medians(outputs), y[:, 0], y[:, 1] > 0
    right = known = 0
    for i in event.nonzero().flatten().tolist():
        later = (time > time[i]) | ((time == time[i]) & ~event)
        known += 2 * int(later.sum())
        right += 2 * int((score[later] > score[i]).sum()) + int((score[later] == score[i]).sum())
    return right, known
