"""Per-FedAvg: Fallah et al., NeurIPS 2020, arXiv 2002.07948, Algorithm 1 and section 5.

Client: a batch of b examples is D (the first floor(b/2)) and D' (the rest); one example is both.
        w_tilde = w - alpha grad f(w; D),  g' = grad f(w_tilde; D')
        FO:  w <- w - beta g'                      (the paper's beta is the learning rate here)
        HF:  w <- w - beta (g' - alpha d),
             d = [grad f(w + delta g'; D) - grad f(w - delta g'; D)] / (2 delta)
        The paper has a third batch D'' for d; here it is D.
Server: mean of the local models, by n_k
"""

import numpy as np

from tests.reference.mlp import (
    Batches,
    Client,
    Data,
    Params,
    Trace,
    average,
    double,
    gradient,
    passes,
    plus,
    sgd,
)


def meta_gradient(w: Params, x: np.ndarray, y: np.ndarray, alpha: float, form: str, delta: float) -> Params:
    half = len(y) // 2
    inner = slice(0, half) if half else slice(0, 1)
    outer = slice(half, None)
    adapted = plus(w, gradient(w, x[inner], y[inner]), -alpha)
    g = gradient(adapted, x[outer], y[outer])
    if form == "fo":
        return g
    ahead = gradient(plus(w, g, delta), x[inner], y[inner])
    behind = gradient(plus(w, g, -delta), x[inner], y[inner])
    d = {name: (ahead[name] - behind[name]) / (2 * delta) for name in w}
    return plus(g, d, -alpha)


def run(
    data: Data,
    w0: Params,
    *,
    cohorts: list[list[Client]],
    batches: Batches,
    epochs: int,
    lr: float,
    alpha: float = 0.01,
    form: str = "fo",
    delta: float = 0.001,
    lr_decay: float = 1.0,
) -> Trace:
    """Run Per-FedAvg; personal[t][k] = w^t - alpha grad F_k(w^t), on all data of client k."""
    w = double(w0)
    trace = Trace([w], [{k: adapted(w, data[k], alpha) for k in sorted(data)}])
    for t, cohort in enumerate(cohorts, 1):
        trained = [
            sgd(
                w, data[k], passes(batches, t, k, 0, epochs), lr * lr_decay ** (t - 1),
                lambda v, x, y: meta_gradient(v, x, y, alpha, form, delta),
            )
            for k in sorted(cohort)
        ]  # fmt: skip
        w = average(trained, [len(data[k][1]) for k in sorted(cohort)])
        trace.models.append(w)
        trace.personal.append({k: adapted(w, data[k], alpha) for k in sorted(data)})
    return trace


def adapted(w: Params, client: tuple[np.ndarray, np.ndarray], alpha: float) -> Params:
    return plus(w, gradient(w, *client), -alpha)
