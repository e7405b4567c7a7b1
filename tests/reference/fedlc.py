"""FedLC: Zhang et al., ICML 2022, arXiv 2209.00189, equation (8), with the usual denominator.

Client: steps on -log( e^{z_y - tau n_y^(-1/4)} / sum_c e^{z_c - tau n_c^(-1/4)} ), n_c its examples of c;
        a class without any is not in the sum.   Server: as FedAvg
"""

from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params, features


def calibrated(z: np.ndarray, y: np.ndarray, counts: np.ndarray, tau: float) -> tuple[float, np.ndarray]:
    """Return the mean loss and its gradient by the logits, one example after the other."""
    there = [c for c, n in enumerate(counts) if n]
    loss, error = 0.0, np.zeros_like(z)
    for i in range(len(y)):
        e = {c: np.exp(z[i, c] - tau * float(counts[c]) ** -0.25) for c in there}
        p = {c: e[c] / sum(e.values()) for c in there}
        loss -= np.log(p[y[i]])
        for c in there:
            error[i, c] = p[c] - (c == y[i])
    return loss / len(y), error / len(y)


@dataclass
class FedLC(Reference):
    algorithm = "fedlc"
    cases = {
        "everybody": {"local_epochs": 2, "fraction_train": 1.0},
        "stronger": {"fraction_train": 0.6, "fedlc__tau": 3.0, "num_server_rounds": 4},
        "alone": {"stack": 1, "fedlc__tau": 3.0},
    }

    tau: float = 1.0

    def round(self, r: Round) -> None:
        self.w = r.mean({k: self.trained(r, k) for k in r.cohort})

    def trained(self, r: Round, k: Client) -> Params:
        counts = np.bincount(r.data[k][1], minlength=len(self.w["1.bias"]))

        def by(w: Params, x: np.ndarray, y: np.ndarray) -> Params:
            h = features(w, x)
            _, error = calibrated(h @ w["1.weight"].T + w["1.bias"], y, counts, self.tau)
            return {"1.weight": error.T @ h, "1.bias": error.sum(axis=0)}

        return r.sgd(k, self.w, by)
