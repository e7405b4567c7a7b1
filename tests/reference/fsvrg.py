"""FSVRG: Konečný et al. 2016, arXiv 1610.02527, Algorithm 4; without S_k and A it is the dense form.

g = sum_k (n_k / n_S) grad F_k(w^t)
Client, for each example i of each pass in a new order, h_k = h / n_k:
        w <- w - h_k ( S_k [grad f_i(w) - grad f_i(w^t)] + g ),   S_k = Diag(phi^j / phi_k^j)
        a batch takes the steps of its b examples at once, from one point
Server: w^{t+1} = w^t + A sum_k (n_k / n_S) (w_k - w^t),   A = Diag(K / omega^j)
phi^j = n^j / n,  phi_k^j = n_k^j / n_k,  n^j = examples with non-zero feature j, omega^j = clients with one.
phi_k^j = 0 -> 1, omega^j = 0 -> 1. Columns of the weights belong to features; the bias is dense.
L2: f_i(w) + wd/2 |w|^2, whose gradient is taken at w.
"""

from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Params, gradient, plus

CASES = {
    "single steps": {"batch_size": 1, "fraction_train": 1.0, "local_epochs": 1},
    "batches and passes": {"fraction_train": 1.0},
    "few clients, L2": {"batch_size": 3, "weight_decay": 0.1, "local_epochs": 1, "nodes": 3},
    "full batches": {"batch_size": 0, "local_epochs": 2, "fraction_train": 1.0},
}


def scaled(S: np.ndarray, w: Params) -> Params:
    """Return the diagonal matrix S, by feature, times a model of one layer."""
    return w | {"1.weight": w["1.weight"] * S[None, :]}


@dataclass
class FSVRG(Reference):
    algorithm = "fsvrg"
    cases = CASES

    weight_decay: float = 0.0
    sparse = False

    def round(self, r: Round) -> None:
        start = self.w
        n_S = sum(len(r.data[k][1]) for k in r.cohort)
        g = r.mean({k: gradient(start, *r.data[k]) for k in r.cohort})
        counts = {k: (r.data[k][0] != 0).sum(axis=0) for k in r.cohort}
        phi = sum(counts.values()) / n_S
        omega = sum((c > 0).astype(int) for c in counts.values())
        local = {}
        for k in r.cohort:
            (X, y), w = r.data[k], start
            S = np.ones(X.shape[1])
            for j in range(X.shape[1]):
                if self.sparse and counts[k][j] > 0:
                    S[j] = phi[j] / (counts[k][j] / len(y))
            for rows in r.steps(k):
                away = plus(gradient(w, X[rows], y[rows]), gradient(start, X[rows], y[rows]), -1.0)
                d = plus(plus(scaled(S, away), g), w, self.weight_decay)
                w = plus(w, d, -len(rows) * r.eta / len(y))
            local[k] = plus(w, start, -1.0)
        A = np.array([len(r.cohort) / o if self.sparse and o > 0 else 1.0 for o in omega])
        self.w = plus(start, scaled(A, r.mean(local)))


@dataclass
class SparseFSVRG(FSVRG):
    algorithm = "fsvrg-sparse"
    cases = CASES
    sparse = True
