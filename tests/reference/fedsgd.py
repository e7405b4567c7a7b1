"""FedSGD: McMahan et al., AISTATS 2017, arXiv 1602.05629, section 2. See the package for the arguments.

g_k = grad F_k(w^t);   w^{t+1} = w^t - eta_t sum_{k in S_t} (n_k / n_S) g_k,   n_S = sum_{k in S_t} n_k
"""

import numpy as np

Model = tuple[np.ndarray, np.ndarray]
Client = tuple[np.ndarray, np.ndarray]


def loss_and_gradient(w: Model, X: np.ndarray, y: np.ndarray) -> tuple[float, Model]:
    """Return mean cross-entropy of softmax(X W + b) over the examples, and its gradient."""
    W, b = w
    X = np.asarray(X, np.float64)
    scores = X @ W + b
    scores = scores - scores.max(axis=1, keepdims=True)
    log_p = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    n = len(y)
    loss = -log_p[np.arange(n), y].sum() / n
    # d loss / d scores = (p - onehot(y)) / n
    error = np.exp(log_p)
    error[np.arange(n), y] -= 1.0
    return float(loss), (X.T @ error / n, error.sum(axis=0) / n)


def double(w: Model) -> Model:
    return np.array(w[0], np.float64), np.array(w[1], np.float64)


def run(
    clients: list[Client],
    w0: Model,
    *,
    rounds: int,
    selected: list[list[int]],
    lr: float,
    lr_decay: float = 1.0,
) -> list[Model]:
    models = [double(w0)]
    for t in range(1, rounds + 1):
        eta = lr * lr_decay ** (t - 1)
        W, b = models[-1]
        cohort = selected[t - 1]
        n_S = sum(len(clients[k][1]) for k in cohort)
        step_W, step_b = np.zeros_like(W), np.zeros_like(b)
        for k in cohort:
            X, y = clients[k]
            _, (g_W, g_b) = loss_and_gradient((W, b), X, y)
            step_W += len(y) / n_S * g_W
            step_b += len(y) / n_S * g_b
        models.append((W - eta * step_W, b - eta * step_b))
    return models
