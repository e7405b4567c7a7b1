"""FedAtt: Ji et al., IJCNN 2019, arXiv 1812.07108, attentive aggregation.

Client: as in FedAvg.  Server, for each layer l (here each array):
    s_k = |w^l - w_k^l|_p,  alpha = softmax of s_1 .. s_K (divided by a temperature; 1 in the paper)
    w^l <- w^l - epsilon sum_k alpha_k (w^l - w_k^l)
"""

import math
from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round


@dataclass
class FedAtt(Reference):
    algorithm = "fedatt"
    active = {"fedatt.temperature": 0.5}
    cases = {
        "defaults": {"nodes": 3},
        "everybody, sharp": {"fraction_train": 1.0, "fedatt__temperature": 0.05, "fedatt__epsilon": 0.7},
        "p = 1": {"fedatt__p": 1.0, "fedatt__temperature": 0.3},
    }

    epsilon: float = 1.2
    p: float = 2.0
    temperature: float = 1.0

    def round(self, r: Round) -> None:
        local = [r.sgd(k, self.w) for k in r.cohort]
        new = {
            n: layer(a, [w_k[n] for w_k in local], self.epsilon, self.p, self.temperature)
            for n, a in self.w.items()
        }
        self.w = {n: a for n, (a, _) in new.items()}
        self.largest = max(top for _, top in new.values())

    def metrics(self) -> dict[str, float]:
        return {"attention-max": self.largest}


def layer(
    w: np.ndarray, local: list[np.ndarray], epsilon: float, p: float, temperature: float
) -> tuple[np.ndarray, float]:
    """Return the new layer and its largest attention."""
    s = [sum(abs(x) ** p for x in (w - w_k).reshape(-1).tolist()) ** (1 / p) for w_k in local]
    total = sum(math.exp(s_k / temperature) for s_k in s)
    alpha = [math.exp(s_k / temperature) / total for s_k in s]
    new = np.array(w, np.float64)
    for a_k, w_k in zip(alpha, local, strict=True):
        new -= epsilon * a_k * (w - w_k)
    return new, max(alpha)
