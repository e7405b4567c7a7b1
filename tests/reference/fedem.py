"""FedEM: Marfoq, Neglia, Bellet, Kameni and Vidal, NeurIPS 2021, arXiv 2108.10252, Algorithms 1 and 2.

Client: q_s(m) = pi_m exp(-l_m(s)) / sum;  pi_m = mean_s q_s(m), both with the received components;  then for
        each component E epochs of SGD on mean_{s in b} q_s(m) l_m(s)
Server: each component: sum (n_k / n_S) theta_km
A client's own model has p(y | x) = sum_m pi_m softmax(theta_m(x))_y.
"""

from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.fedphp import backward, softmax
from tests.reference.ifca import starts
from tests.reference.mlp import Client, Params, plus, scores


def losses(w: Params, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return -np.log(softmax(scores(w, x))[np.arange(len(y)), y])


def posterior(pi: np.ndarray, l: np.ndarray) -> np.ndarray:  # noqa: E741 - the paper's letter
    """Return q [n, M] of losses [n, M]."""
    q = pi * np.exp(-l)
    return q / q.sum(axis=1, keepdims=True)


def weighted(w: Params, x: np.ndarray, y: np.ndarray, q: np.ndarray) -> Params:
    error = softmax(scores(w, x))
    error[np.arange(len(y)), y] -= 1.0
    return backward(w, x, error * q[:, None] / len(y), np.zeros((len(x), len(w["1.bias"]))))


def score(own: Params, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return loss and accuracy of a mixture; its parameters have the component's number before their name."""
    p = sum(
        share * softmax(scores({n[2:]: a for n, a in own.items() if n[:2] == f"{m}/"}, x))
        for m, share in enumerate(own["pi"])
    )
    p = np.asarray(p)
    return float(-np.log(p[np.arange(len(y)), y]).mean()), float((p.argmax(axis=1) == y).mean())


@dataclass
class FedEM(Reference):
    """w = the first component."""

    algorithm, model, score = "fedem", "mlp", staticmethod(score)
    cases = {
        "stragglers in a stack": {"stragglers": 0.7, "fedem__components": 2},
        "alone": {"stack": 1, "nodes": 2, "num_server_rounds": 2},
    }
    components: int = 3
    seed: int = 0

    def begin(self) -> None:
        self.models = starts(self.w, self.components, self.seed)
        self.pi: dict[Client, np.ndarray] = {}

    def e_step(self, k: Client) -> np.ndarray:
        pi = self.pi.get(k, np.full(self.components, 1 / self.components))
        return posterior(pi, np.stack([losses(w, *self.data[k]) for w in self.models], axis=1))

    def round(self, r: Round) -> None:
        trained: dict[Client, list[Params]] = {}
        for k in r.cohort:
            (x, y), q, E = r.data[k], self.e_step(k), r.epochs(r.t, k)
            self.pi[k] = q.mean(axis=0)
            trained[k] = []
            for m, w in enumerate(self.models):
                for rows in r.steps(k, m * E, E):
                    w = plus(w, weighted(w, x[rows], y[rows], q[rows, m]), -r.eta)
                trained[k].append(w)
        self.models = [r.mean({k: of[m] for k, of in trained.items()}) for m in range(self.components)]
        self.w = self.models[0]

    def personal(self, k: Client) -> Params:
        named = {f"{m}/{n}": a for m, w in enumerate(self.models) for n, a in w.items()}
        return named | {"pi": self.pi[k] if k in self.pi else self.e_step(k).mean(axis=0)}

    def kept(self) -> dict[str, dict[Client, Params]]:
        return {"weights": {k: {"weights": pi} for k, pi in self.pi.items()}}

    def server(self) -> dict[str, Params]:
        return {f"models/model-{m}": w for m, w in enumerate(self.models)}
