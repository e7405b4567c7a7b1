"""kNN-Per: Marfoq, Neglia, Vidal and Kameni, ICML 2022, arXiv 2111.09360.

Rounds as in FedAvg. A client's own model: p = lambda p_knn + (1 - lambda) softmax of the logits, p_knn(c) the
share of class c among the k nearest training examples, weighed by exp(-|z - z_i|^2 / (d sigma))
"""

from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.fedphp import softmax
from tests.reference.mlp import Client, Params, features, scores


def votes(
    z: np.ndarray, stored: np.ndarray, labels: np.ndarray, classes: int, k: int, scale: float
) -> np.ndarray:
    out = np.zeros((len(z), classes))
    for row, query in zip(out, z, strict=True):
        apart = ((stored - query) ** 2).sum(axis=1)
        for i in np.argsort(apart, kind="stable")[:k]:
            row[labels[i]] += np.exp(-apart[i] / (len(query) * scale))
    return out / out.sum(axis=1, keepdims=True)


def score(own: Params, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    w = {n: a for n, a in own.items() if n not in ("x", "y", "knobs")}
    k, weight, scale = own["knobs"]
    knn = votes(features(w, x), features(w, own["x"]), own["y"], len(w["3.bias"]), int(k), scale)
    p = weight * knn + (1 - weight) * softmax(scores(w, x))
    return float(-np.log(p[np.arange(len(y)), y]).mean()), float((p.argmax(axis=1) == y).mean())


@dataclass
class KNNPer(Reference):
    algorithm, model, score = "knn-per", "mlp", staticmethod(score)
    cases = {
        "stragglers in a stack": {"stragglers": 0.7},
        "alone": {
            "stack": 1, "nodes": 2, "knn_per__neighbours": 3, "knn_per__lambda": 0.8, "knn_per__scale": 0.2,
        },
    }  # fmt: skip
    keys = {"lam": "knn-per.lambda"}
    neighbours: int = 5
    lam: float = 0.5
    scale: float = 1.0

    def round(self, r: Round) -> None:
        self.w = r.mean({k: r.sgd(k, self.w) for k in r.cohort})

    def personal(self, k: Client) -> Params:
        x, y = self.data[k]
        return self.w | {"x": x, "y": y, "knobs": np.array([self.neighbours, self.lam, self.scale])}
