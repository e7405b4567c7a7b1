"""Ditto: Li et al., ICML 2021, arXiv 2012.04221, Algorithm 1. See `tests.reference.mlp` for the arguments.

Client: first  v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w^t)), s epochs; the first time from v_k = w^t
        then   w_k: E epochs of SGD from w^t
Server: as in FedAvg
"""

from tests.reference.mlp import Batches, Client, Data, Params, Trace, average, double, passes, proximal, sgd


def run(
    data: Data,
    w0: Params,
    *,
    cohorts: list[list[Client]],
    batches: Batches,
    epochs: int,
    lr: float,
    lam: float,
    personal_epochs: int = 0,
    lr_decay: float = 1.0,
) -> Trace:
    """Run Ditto; personal[t][k] = v_k, or w^t of a client that has none. personal_epochs 0 = `epochs`."""
    w, v = double(w0), dict[Client, Params]()
    s = personal_epochs or epochs
    trace = Trace([w], [dict.fromkeys(sorted(data), w)])
    for t, cohort in enumerate(cohorts, 1):
        eta, trained = lr * lr_decay ** (t - 1), []
        for k in sorted(cohort):
            v[k] = sgd(v.get(k, w), data[k], passes(batches, t, k, 0, s), eta, proximal(w, lam))
            trained.append(sgd(w, data[k], passes(batches, t, k, s, epochs), eta))
        w = average(trained, [len(data[k][1]) for k in sorted(cohort)])
        trace.models.append(w)
        trace.personal.append({k: v.get(k, w) for k in sorted(data)})
    return trace
