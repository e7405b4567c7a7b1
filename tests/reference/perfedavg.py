"""Per-FedAvg: Fallah et al., NeurIPS 2020, arXiv 2002.07948, Algorithm 1 and section 5.

Client: a batch of b examples is D (the first floor(b/2)) and D' (the rest); one example is both.
        w_tilde = w - alpha grad f(w; D),  g' = grad f(w_tilde; D')
        FO:  w <- w - beta g'                      (the paper's beta is the learning rate here)
        HF:  w <- w - beta (g' - alpha H g'),  H = the Hessian of f(.; D) at w
        The paper has a third batch D'' for H; here it is D.
Server: plain mean of the local models
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
    features,
    flat,
    gradient,
    passes,
    plus,
    sgd,
)


def times_hessian(w: Params, v: Params, x: np.ndarray, y: np.ndarray) -> Params:
    """Return H v, H the Hessian of the mean loss at w: what the gradient changes by along v, written out."""
    z, n = features(w, x), len(y)
    p = np.exp(z @ w["3.weight"].T + w["3.bias"])
    p /= p.sum(axis=1, keepdims=True)
    error = (p - np.eye(p.shape[1])[y]) / n
    dz = (flat(x) @ v["1.weight"].T + v["1.bias"]) * (z > 0)
    dscores = dz @ w["3.weight"].T + z @ v["3.weight"].T + v["3.bias"]
    derror = p * (dscores - (p * dscores).sum(axis=1, keepdims=True)) / n
    dhidden = (derror @ w["3.weight"] + error @ v["3.weight"]) * (z > 0)
    return {
        "1.weight": dhidden.T @ flat(x),
        "1.bias": dhidden.sum(axis=0),
        "3.weight": derror.T @ z + error.T @ dz,
        "3.bias": derror.sum(axis=0),
    }


def meta_gradient(w: Params, x: np.ndarray, y: np.ndarray, alpha: float, form: str) -> Params:
    half = len(y) // 2
    inner = slice(0, half) if half else slice(0, 1)
    outer = slice(half, None)
    adapted = plus(w, gradient(w, x[inner], y[inner]), -alpha)
    g = gradient(adapted, x[outer], y[outer])
    return g if form == "fo" else plus(g, times_hessian(w, g, x[inner], y[inner]), -alpha)


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
    lr_decay: float = 1.0,
) -> Trace:
    """Run Per-FedAvg; personal[t][k] = w^t - alpha grad F_k(w^t), on all data of client k."""
    w = double(w0)
    trace = Trace([w], [{k: adapted(w, data[k], alpha) for k in sorted(data)}])
    for t, cohort in enumerate(cohorts, 1):
        trained = [
            sgd(
                w, data[k], passes(batches, t, k, 0, epochs), lr * lr_decay ** (t - 1),
                lambda v, x, y: meta_gradient(v, x, y, alpha, form),
            )
            for k in sorted(cohort)
        ]  # fmt: skip
        w = average(trained, [1] * len(trained))
        trace.models.append(w)
        trace.personal.append({k: adapted(w, data[k], alpha) for k in sorted(data)})
    return trace


def adapted(w: Params, client: tuple[np.ndarray, np.ndarray], alpha: float) -> Params:
    return plus(w, gradient(w, *client), -alpha)
