"""q-FedAvg and q-FedSGD: Li et al., ICLR 2020, arXiv 1905.10497, Algorithms 1 and 2, literally.

F_k = F_k(w^t) over all local data;  L = 1 / eta_t
Dw_k = L (w^t - w_k) (q-FedAvg, w_k after E epochs of SGD), or grad F_k(w^t) (q-FedSGD)
Delta_k = F_k^q Dw_k;   h_k = q F_k^(q-1) |Dw_k|^2 + L F_k^q
w^{t+1} = w^t - sum_k Delta_k / sum_k h_k, plain sums over the drawn clients
"""

from dataclasses import dataclass

from tests.reference.driver import Reference, Round, driven
from tests.reference.mlp import Client, Params, loss_and_gradient, norm, plus, zero

CASES = {
    "q 0": {"qffl__q": 0.0},
    "q 1": {"qffl__q": 1.0, "num_server_rounds": 5},
    "q 5, several epochs": {"qffl__q": 5.0, "fraction_train": 1.0},
    "q below 1": {"qffl__q": 0.3, "fraction_train": 1.0, "batch_size": 0},
    "q 15": {"qffl__q": 15.0, "fraction_train": 1.0, "local_epochs": 1},
}


@dataclass
class QFedAvg(Reference):
    algorithm = "qfedavg"
    active = {"qffl.q": 2.0}
    cases = CASES

    q: float

    def change(self, r: Round, k: Client, g: Params) -> Params:
        """Return Dw_k; g = grad F_k(w^t)."""
        return plus(zero(g), plus(self.w, r.sgd(k, self.w), -1.0), 1.0 / r.eta)

    def round(self, r: Round) -> None:
        L, q = 1.0 / r.eta, self.q
        total, h = zero(self.w), 0.0
        for k in r.cohort:
            F, g = loss_and_gradient(self.w, *r.data[k])
            dw = self.change(r, k, g)
            total = plus(total, dw, F**q)
            h += q * F ** (q - 1) * norm(dw) ** 2 + L * F**q
        self.w = plus(self.w, total, -1.0 / h)


@dataclass
class QFedSGD(QFedAvg):
    algorithm = "qfedsgd"
    active = {"qffl.q": 2.0}
    cases = CASES

    def change(self, r: Round, k: Client, g: Params) -> Params:
        return g


run, run_sgd = driven(QFedAvg), driven(QFedSGD)
