"""FedProto: Tan, Long, Liu, Zhou, Lu, Jiang, Zhang, AAAI 2022, arXiv 2105.00243, Algorithm 1.

Client: E epochs of SGD on its own model, CE(x, y) + lambda (1/f) |h(x) - C^(y)|^2 where C^(y) is there;
        C_i^(j) = mean of h(x) over its examples of class j, after training
Server: C^(j) = sum_i w_i C_i^(j) / sum_i w_i over the clients of the round with class j
"""

from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params, features, flat, gradient, plus


def distance(
    w: Params, x: np.ndarray, y: np.ndarray, prototypes: dict[int, np.ndarray]
) -> tuple[float, Params]:
    """Return the mean over the examples of |h(x) - C^(y)|^2 / f, 0 without C^(y), and its gradient by w."""
    h, loss = features(w, x), 0.0
    by_h = np.zeros_like(h)
    for i, j in enumerate(y):
        if int(j) in prototypes:
            away = h[i] - prototypes[int(j)]
            loss += float(away @ away) / h.shape[1] / len(y)
            by_h[i] = 2 * away / h.shape[1] / len(y)
    by_h *= h > 0
    still = {name: np.zeros_like(w[name]) for name in ("3.weight", "3.bias")}
    return loss, {"1.weight": by_h.T @ flat(x), "1.bias": by_h.sum(axis=0), **still}


@dataclass
class FedProto(Reference):
    """own[k] = client k's model; prototypes[j] = C^(j), behind[j] = sum_i w_i."""

    algorithm, model, tolerance = "fedproto", "mlp", 1e-4
    active = {"fedproto.lambda": 3.0}
    cases = {
        "in a stack": {"num_server_rounds": 4, "fedproto__lambda": 3.0},
        "alone, clients alike": {
            "stack": 1, "num_server_rounds": 4, "fedproto__lambda": 3.0, "fedproto__weights": "clients",
            "nodes": 2,
        },
        "rare classes are not sent": {"num_server_rounds": 4, "fedproto__least": 3, "stragglers": 0.7},
    }  # fmt: skip
    keys = {"lam": "fedproto.lambda"}

    lam: float = 1.0
    weights: str = "examples"
    least: int = 1
    classes: int = 3

    def begin(self) -> None:
        self.start = self.w
        self.own: dict[Client, Params] = {}
        self.prototypes: dict[int, np.ndarray] = {}
        self.behind: dict[int, int] = {}
        self._show()

    def _show(self) -> None:
        """Let the server's model be the table of prototypes."""
        f = self.start["3.weight"].shape[1]
        table = [self.prototypes.get(j, np.zeros(f)) for j in range(self.classes)]
        counts = np.array([self.behind.get(j, 0) for j in range(self.classes)])
        self.w = {"features": np.stack(table), "counts": counts}

    def round(self, r: Round) -> None:
        sent: dict[int, list[tuple[int, np.ndarray]]] = {}
        for k in r.cohort:

            def by(v: Params, x: np.ndarray, y: np.ndarray) -> Params:
                return plus(gradient(v, x, y), distance(v, x, y, self.prototypes)[1], self.lam)

            self.own = self.own | {k: r.sgd(k, self.personal(k), by)}
            x, y = r.data[k]
            h = features(self.own[k], x)
            for j in range(self.classes):
                mine = h[y == j]
                if len(mine) >= self.least:
                    weight = len(mine) if self.weights == "examples" else 1
                    sent.setdefault(j, []).append((weight, mine.mean(axis=0)))
        new = {j: sum(w * c for w, c in of) / sum(w for w, _ in of) for j, of in sent.items()}
        self.prototypes = self.prototypes | new
        self.behind = self.behind | {j: sum(w for w, _ in of) for j, of in sent.items()}
        self._show()

    def personal(self, k: Client) -> Params:
        return self.own.get(k, self.start)

    def kept(self) -> dict[str, dict[Client, Params]]:
        return {"personal": self.own}
