"""FedAvg: McMahan et al., AISTATS 2017, arXiv 1602.05629, Algorithm 1.

Client: w <- w^t; for each of E epochs, for each batch b: w <- w - eta_t grad l(w; b)
Server: w^{t+1} = sum_{k in S_t} (n_k / n_S) w_k,  n_S over the cohort (the paper's erratum), not over all K
"""

from dataclasses import dataclass

from tests.reference.driver import Reference, Round


@dataclass
class FedAvg(Reference):
    algorithm = "fedavg"
    cases = {
        "everybody, full batch": {"fraction_train": 1.0, "batch_size": 0, "local_epochs": 1},
        "short last batches": {"batch_size": 5},
        "a batch larger than most clients": {"fraction_train": 1.0, "batch_size": 12, "local_epochs": 2},
        "one client a round": {"fraction_train": 0.0, "local_epochs": 1},
        "decay": {"lr_decay": 0.7, "batch_size": 6, "learning_rate": 0.4},
        "stragglers dropped": {"fraction_train": 1.0, "stragglers": 0.5, "drop_stragglers": True},
    }

    def round(self, r: Round) -> None:
        self.w = r.mean({k: r.sgd(k, self.w) for k in r.cohort})
