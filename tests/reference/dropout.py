"""Federated dropout on FedAvg: Caldas et al. 2018, arXiv 1812.07210, on a network with one hidden layer.

A client's sub-model is played by the whole network whose other hidden units are cut off: zero weights into
and out of a unit stay zero under gradient steps. The server takes each coordinate's mean over its holders:
w_j <- w_j + sum_{k holds j} n_k Delta_kj / sum_{k holds j} n_k; one that nobody holds stays.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round, driven
from tests.reference.mlp import Client, Params


@dataclass
class FederatedDropout(Reference):
    kept: Callable[[int, Client], Sequence[int]]  # hidden units of client k in round t

    def round(self, r: Round) -> None:
        held, trained = {}, {}
        for k in r.cohort:
            held[k] = holds(self.w, self.kept(r.t, k))
            cut = {name: np.where(held[k][name], a, 0.0) for name, a in self.w.items()}
            trained[k] = r.sgd(k, cut)
        after = {name: a.copy() for name, a in self.w.items()}
        for name, a in self.w.items():
            for j in np.ndindex(a.shape):
                holders = [k for k in r.cohort if held[k][name][j]]
                total = sum(len(r.data[k][1]) for k in holders)
                for k in holders:
                    after[name][j] += len(r.data[k][1]) * (trained[k][name][j] - a[j]) / total
        self.w = after


def holds(w: Params, kept: Sequence[int]) -> dict[str, np.ndarray]:
    """Return, for each coordinate, whether a client that keeps these hidden units has it."""
    held = {name: np.zeros(a.shape, bool) for name, a in w.items()}
    held["3.bias"][:] = True
    for unit in kept:
        held["1.weight"][unit, :] = held["1.bias"][unit] = held["3.weight"][:, unit] = True
    return held


run = driven(FederatedDropout)
