"""FedBABU: Oh, Kim and Yun, ICLR 2022, arXiv 2106.06042, Algorithm 1.

Client: w_k <- body of w^t under the head of w^0; E epochs on the body, the head as it is
Server: body of w^{t+1} = sum_{k in S_t} (n_k / n_S) body of w_k
Before evaluation both parts are fine-tuned, which is not here.
"""

from dataclasses import dataclass

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params, top


@dataclass
class FedBABU(Reference):
    """w is the body."""

    algorithm, model = "fedbabu", "mlp"
    cases = {
        "stragglers in a stack": {"stragglers": 0.7, "fraction_evaluate": 0.0},
        "alone, with momentum": {"stack": 1, "nodes": 2, "momentum": 0.7, "fraction_evaluate": 0.0},
    }
    keys = {"layers": "personal.layers"}
    momentum: float = 0.0
    layers: int = 1

    def begin(self) -> None:
        head = top(self.w, self.layers)
        self.order = list(self.w)
        self.head = {n: a for n, a in self.w.items() if n in head}
        self.w = {n: a for n, a in self.w.items() if n not in head}

    def round(self, r: Round) -> None:
        trained = {k: r.sgd(k, self.personal(k), names=set(self.w), momentum=self.momentum) for k in r.cohort}
        self.w = r.mean({k: {n: w[n] for n in self.w} for k, w in trained.items()})

    def personal(self, k: Client) -> Params:
        """Return the model before fine-tuning."""
        model = self.w | self.head
        return {n: model[n] for n in self.order}
