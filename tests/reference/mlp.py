"""The references' models, softmax regression and one hidden layer of ReLU, and sums of models.

A model is a dict of float64 arrays with torch's names and layout: "1.weight" [C, d], "1.bias" [C]; or
"1.weight" [h, d], "1.bias" [h], "3.weight" [C, h], "3.bias" [C].
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

Params = dict[str, np.ndarray]
Client = Any  # a name or an index
Data = dict[Client, tuple[np.ndarray, np.ndarray]]
Batches = Callable[[int, Client, int], list[np.ndarray]]
Gradient = Callable[[Params, np.ndarray, np.ndarray], Params]


def double(w: Params) -> Params:
    return {name: np.array(a, np.float64) for name, a in w.items()}


def features(w: Params, x: np.ndarray) -> np.ndarray:
    """Return z, the input of the last layer: x, or ReLU(x W1^T + b1)."""
    if "3.weight" not in w:
        return flat(x)
    return np.maximum(flat(x) @ w["1.weight"].T + w["1.bias"], 0.0)


def flat(x: np.ndarray) -> np.ndarray:
    return np.asarray(x, np.float64).reshape(len(x), -1)


def cross_entropy(scores: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the mean loss and its gradient by the scores, (softmax - onehot) / n."""
    scores = scores - scores.max(axis=1, keepdims=True)
    log_p = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    n = len(y)
    error = np.exp(log_p)
    error[np.arange(n), y] -= 1.0
    return float(-log_p[np.arange(n), y].mean()), error / n


def scores(w: Params, x: np.ndarray) -> np.ndarray:
    last = "3" if "3.weight" in w else "1"
    return features(w, x) @ w[f"{last}.weight"].T + w[f"{last}.bias"]


def loss_and_gradient(w: Params, x: np.ndarray, y: np.ndarray) -> tuple[float, Params]:
    """Return mean cross-entropy over the examples, and its gradient."""
    z = features(w, x)
    loss, error = cross_entropy(scores(w, x), y)
    if "3.weight" not in w:
        return loss, {"1.weight": error.T @ z, "1.bias": error.sum(axis=0)}
    hidden = error @ w["3.weight"] * (z > 0)
    return loss, {
        "1.weight": hidden.T @ flat(x),
        "1.bias": hidden.sum(axis=0),
        "3.weight": error.T @ z,
        "3.bias": error.sum(axis=0),
    }


def gradient(w: Params, x: np.ndarray, y: np.ndarray) -> Params:
    return loss_and_gradient(w, x, y)[1]


def numeric(f: Callable[[Params], float], w: Params, h: float = 1e-6) -> Params:
    """Central differences of f at w."""
    w = double(w)
    out = {name: np.zeros_like(a) for name, a in w.items()}
    for name, a in w.items():
        for i in np.ndindex(a.shape):
            before, values = a[i], []
            for step in (h, -h):
                a[i] = before + step
                values.append(f(w))
            a[i] = before
            out[name][i] = (values[0] - values[1]) / (2 * h)
    return out


def proximal(anchor: Params, mu: float) -> Gradient:
    """Return the gradient of F(w) + mu/2 |w - anchor|^2."""
    return lambda w, x, y: plus(gradient(w, x, y), plus(w, anchor, -1.0), mu)


def plus(a: Params, b: Params, scale: float = 1.0) -> Params:
    """Return a + scale b."""
    return {name: a[name] + scale * b[name] for name in a}


def zero(like: Params) -> Params:
    return {name: np.zeros_like(a) for name, a in like.items()}


def norm(a: Params) -> float:
    return math.sqrt(dot(a, a))


def dot(a: Params, b: Params) -> float:
    return float(sum((a[name] * b[name]).sum() for name in a))


def average(models: Sequence[Params], sizes: Sequence[float]) -> Params:
    """Return sum_k (n_k / n_S) w_k."""
    share = [n_k / sum(sizes) for n_k in sizes]
    return {name: sum(p * w[name] for p, w in zip(share, models, strict=True)) for name in models[0]}


def top(w: Params, layers: int) -> set[str]:
    """Return the names of the last layers; a layer's weight and bias belong together."""
    prefixes = list(dict.fromkeys(name.rpartition(".")[0] for name in w))
    return {name for name in w if name.rpartition(".")[0] in prefixes[len(prefixes) - layers :]}


def passes(batches: Batches, t: int, k: Client, first: int, count: int) -> list[np.ndarray]:
    """Return the batches of the draws first, first + 1, .., first + count - 1."""
    return [rows for draw in range(first, first + count) for rows in batches(t, k, draw)]


def sgd(
    w: Params,
    client: tuple[np.ndarray, np.ndarray],
    steps: Iterable[np.ndarray],
    lr: float,
    by: Gradient = gradient,
    *,
    names: Iterable[str] | None = None,
    momentum: float = 0.0,
) -> Params:
    """Return w after one step for each batch; the other parameters than `names` stay as they are."""
    (x, y), v = client, Params()
    for rows in steps:
        g = by(w, x[rows], y[rows])
        v = {name: momentum * v.get(name, 0.0) + g[name] for name in (w if names is None else names)}
        w = w | {name: w[name] - lr * v[name] for name in v}
    return w
