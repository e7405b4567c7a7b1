"""FedNTD: Lee et al., NeurIPS 2022, arXiv 2106.03097, equations (3) to (5).

Client: steps on CE(z, y) + beta T^2 sum_{c != y} q_c log(q_c / p_c), q and p the softmax over the classes
        other than y of z^g / T and z / T; z^g are the logits of w^t.   Server: as FedAvg
"""

from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params, cross_entropy, features, scores


def not_true(z: np.ndarray, z_g: np.ndarray, y: np.ndarray, T: float) -> tuple[float, np.ndarray]:
    """Return the mean of T^2 KL and its gradient by z, one example after the other."""
    loss, error = 0.0, np.zeros_like(z)
    for i in range(len(y)):
        others = [c for c in range(z.shape[1]) if c != y[i]]
        q, p = (np.exp(v[i, others] / T) for v in (z_g, z))
        q, p = q / q.sum(), p / p.sum()
        loss += T * T * float((q * np.log(q / p)).sum())
        error[i, others] = T * (p - q)
    return loss / len(y), error / len(y)


@dataclass
class FedNTD(Reference):
    algorithm = "fedntd"
    active = {"fedntd.beta": 3.0}
    cases = {
        "everybody": {"local_epochs": 2, "fraction_train": 1.0},
        "stronger": {"fraction_train": 0.6, "fedntd__beta": 3.0, "fedntd__temperature": 3.0},
        "alone": {"stack": 1, "fedntd__beta": 3.0},
    }

    beta: float = 1.0
    temperature: float = 1.0

    def round(self, r: Round) -> None:
        self.w = r.mean({k: self.trained(r, k) for k in r.cohort})

    def trained(self, r: Round, k: Client) -> Params:
        start = self.w

        def by(w: Params, x: np.ndarray, y: np.ndarray) -> Params:
            h, z = features(w, x), scores(w, x)
            error = cross_entropy(z, y)[1] + self.beta * not_true(z, scores(start, x), y, self.temperature)[1]
            return {"1.weight": error.T @ h, "1.bias": error.sum(axis=0)}

        return r.sgd(k, start, by)
