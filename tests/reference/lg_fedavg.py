"""LG-FedAvg: Liang et al. 2020, arXiv 2001.01523, Algorithm 1.

Client: w_k <- last p layers of w^t over its own first ones (the first time: those of w^0); E epochs on all
Server: last p layers of w^{t+1} = sum_{k in S_t} (n_k / n_S) w_k
"""

from dataclasses import dataclass

from tests.reference.fedper import PrivateLayers
from tests.reference.mlp import top


@dataclass
class LGFedAvg(PrivateLayers):
    algorithm = "lg-fedavg"
    cases = {
        "stragglers in a stack": {"stragglers": 0.7},
        "alone, with momentum": {"stack": 1, "momentum": 0.7, "learning_rate": 0.05, "nodes": 2},
    }
    keys = {"layers": "lg-fedavg.layers"}
    layers: int = 1

    def private(self) -> set[str]:
        return set(self.w0) - top(self.w0, self.layers)
