"""pFedMe: Dinh et al., NeurIPS 2020, arXiv 2006.08848, Algorithm 1. See `tests.reference.mlp`.

Client: w_i <- w^t, theta <- w^t. For each of E epochs, for each batch B:
        theta ~ argmin h(theta) = f(theta; B) + lambda/2 |theta - w_i|^2: K steps from the last theta,
                theta <- theta - inner_lr (grad f(theta; B) + lambda (theta - w_i))
        w_i <- w_i - eta lambda (w_i - theta)
Server: w^{t+1} = (1 - beta) w^t + beta mean of the w_i; the paper's mean is uniform
"""

from tests.reference.mlp import Batches, Client, Data, Params, Trace, average, double, gradient, passes, plus


def run(
    data: Data,
    w0: Params,
    *,
    cohorts: list[list[Client]],
    batches: Batches,
    epochs: int,
    lr: float,
    lam: float = 15.0,
    steps: int = 5,
    inner_lr: float = 0.01,
    beta: float = 1.0,
    uniform: bool = True,
    lr_decay: float = 1.0,
) -> Trace:
    """Run pFedMe; steps = K; personal[t][k] = theta_k, or w^t of a client that has none."""
    w, own = double(w0), dict[Client, Params]()
    trace = Trace([w], [dict.fromkeys(sorted(data), w)])
    for t, cohort in enumerate(cohorts, 1):
        trained = []
        for k in sorted(cohort):
            x, y = data[k]
            w_i, theta = w, w
            for rows in passes(batches, t, k, 0, epochs):
                for _ in range(steps):
                    g = plus(gradient(theta, x[rows], y[rows]), plus(theta, w_i, -1.0), lam)
                    theta = plus(theta, g, -inner_lr)
                w_i = plus(w_i, plus(w_i, theta, -1.0), -lr * lr_decay ** (t - 1) * lam)
            own[k] = theta
            trained.append(w_i)
        mean = average(trained, [1 if uniform else len(data[k][1]) for k in sorted(cohort)])
        w = plus(w, plus(mean, w, -1.0), beta)
        trace.models.append(w)
        trace.personal.append({k: own.get(k, w) for k in sorted(data)})
    return trace
