"""Shared and private layers: FedPer, Arivazhagan et al. 2019, arXiv 1912.00818; FedRep, Collins et al., ICML
2021, arXiv 2102.07089, Algorithm 1; and training alone. See `tests.reference.mlp` for the arguments.

Client: w_k <- shared part of w^t and own private part (the first time: that of w^0)
        FedPer: E epochs on everything.
        FedRep: epochs on the head h_k with the body fixed, then epochs on the body with the head fixed
Server: shared part w^{t+1} = sum_{k in S_t} (n_k / n_S) w_k; in FedRep their plain mean
"""

from collections.abc import Iterable
from typing import Any

from tests.reference.mlp import (
    Batches,
    Client,
    Data,
    Gradient,
    Params,
    Trace,
    average,
    double,
    gradient,
    passes,
    sgd,
)

Phases = list[tuple[int, set[str]]]  # (epochs, names of what learns), one after another


def run(
    data: Data,
    w0: Params,
    *,
    cohorts: list[list[Client]],
    batches: Batches,
    private: Iterable[str],
    phases: Phases,
    lr: float,
    lr_decay: float = 1.0,
    momentum: float = 0.0,
    by: Gradient = gradient,
    plain: bool = False,
) -> Trace:
    """Run with any private names and phases, and perhaps equal weights; ``models`` holds the shared names."""
    w0, private = double(w0), set(private)
    shared = {n: a for n, a in w0.items() if n not in private}
    own: dict[Client, Params] = {k: {n: w0[n] for n in w0 if n in private} for k in sorted(data)}
    trace = Trace([shared], [{k: shared | own[k] for k in own}])
    for t, cohort in enumerate(cohorts, 1):
        trained = []
        for k in sorted(cohort):
            w = {n: own[k][n] if n in private else shared[n] for n in w0}
            drawn = 0
            for epochs, names in phases:
                steps = passes(batches, t, k, drawn, epochs)
                w = sgd(w, data[k], steps, lr * lr_decay ** (t - 1), by, names=names, momentum=momentum)
                drawn += epochs
            own[k] = {n: w[n] for n in w if n in private}
            trained.append({n: w[n] for n in w if n not in private})
        shared = average(trained, [1 if plain else len(data[k][1]) for k in sorted(cohort)])
        trace.models.append(shared)
        trace.personal.append({k: shared | own[k] for k in own})
    return trace


def fedper(data: Data, w0: Params, *, head: set[str], epochs: int, **more: Any) -> Trace:
    return run(data, w0, private=head, phases=[(epochs, set(w0))], **more)


def fedrep(
    data: Data, w0: Params, *, head: set[str], epochs: int, head_epochs: int = 0, **more: Any
) -> Trace:
    """Run FedRep; head_epochs 0 = `epochs`."""
    phases = [(head_epochs or epochs, head), (epochs, set(w0) - head)]
    return run(data, w0, private=head, phases=phases, plain=True, **more)


def local_only(data: Data, w0: Params, *, epochs: int, **more: Any) -> Trace:
    return run(data, w0, private=set(w0), phases=[(epochs, set(w0))], **more)
