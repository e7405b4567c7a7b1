"""signSGD with majority vote: Bernstein et al., ICML 2018, arXiv 1802.04434, Algorithm 1.

v_k = sign(grad l(w^t; b_k)), b_k one minibatch;   w^{t+1} = w^t - eta_t sign(sum_{k in S_t} v_k)

Where a gradient is exactly 0 the paper's sign is 0; the app's clients toss a coin. No case here has one.
"""

from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.mlp import gradient


@dataclass
class SignSGD(Reference):
    algorithm = "signsgd"
    active = {"lr-decay": 0.96}
    cases = {
        "everybody": {"fraction_train": 1.0, "learning_rate": 0.1, "batch_size": 5},
        "some": {"learning_rate": 0.1, "batch_size": 0},
        "one": {"fraction_train": 0.0, "learning_rate": 0.1, "batch_size": 6, "lr_decay": 0.7},
    }

    def round(self, r: Round) -> None:
        votes = {name: np.zeros_like(a) for name, a in self.w.items()}
        for k in r.cohort:
            x, y = r.data[k]
            rows = r.batches(r.t, k, 0)[0]
            for name, g in gradient(self.w, x[rows], y[rows]).items():
                votes[name] += np.sign(g)
        self.w = {name: a - r.eta * np.sign(votes[name]) for name, a in self.w.items()}
