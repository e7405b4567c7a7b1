"""IFCA: Ghosh, Chung, Yin and Ramchandran, NeurIPS 2020, arXiv 2006.04088, Algorithm 1, model averaging.

Client: j = argmin_j F_k(theta_j);  w_k = theta_j after E epochs
Server: theta_j = sum (n_k / n) w_k over the clients that chose j; a model that nobody chose stays
"""

from dataclasses import dataclass

import numpy as np

from task.numerics import seeds
from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params, loss_and_gradient


def starts(w: Params, count: int, seed: int) -> list[Params]:
    """Return w and others with its numbers in other orders: the app's draw, as no paper says which."""
    models = [w]
    for j in range(1, count):
        rng = seeds.rng_for(seed, seeds.STARTS, j)
        models.append({n: rng.permutation(a.ravel()).reshape(a.shape) for n, a in w.items()})
    return models


def choice(models: list[Params], x: np.ndarray, y: np.ndarray) -> int:
    return int(np.argmin([loss_and_gradient(w, x, y)[0] for w in models]))


@dataclass
class IFCA(Reference):
    """w = the model that most clients of the round chose."""

    algorithm, model = "ifca", "mlp"
    cases = {
        "stragglers in a stack": {"stragglers": 0.7, "num_server_rounds": 4},
        "alone, three clusters": {"stack": 1, "nodes": 2, "ifca__clusters": 3, "fraction_train": 1.0},
    }
    clusters: int = 2
    seed: int = 0

    def begin(self) -> None:
        self.models = starts(self.w, self.clusters, self.seed)
        self.chosen: dict[Client, float] = {}

    def round(self, r: Round) -> None:
        chosen = {k: choice(self.models, *r.data[k]) for k in r.cohort}
        trained = {k: r.sgd(k, self.models[j]) for k, j in chosen.items()}
        self.models = [
            r.mean({k: trained[k] for k in r.cohort if chosen[k] == j}) if j in chosen.values() else w
            for j, w in enumerate(self.models)
        ]
        sizes = [list(chosen.values()).count(j) for j in range(self.clusters)]
        self.w = self.models[int(np.argmax(sizes))]
        self.chosen = {k: float(j) for k, j in chosen.items()}

    def personal(self, k: Client) -> Params:
        return self.models[choice(self.models, *self.data[k])]

    def server(self) -> dict[str, Params]:
        return {f"models/model-{j}": w for j, w in enumerate(self.models)}

    def told(self) -> dict[str, dict[Client, float]]:
        return {"cluster": self.chosen}
