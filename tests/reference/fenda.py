"""FENDA-FL: Tavakoli et al., MLHC 2024, arXiv 2309.16825, section 3.

Two extractors side by side, "shared.1" and "local.1", each a layer of ReLU, and a "head" on both outputs:
    z = [ReLU(x W_g^T + b_g), ReLU(x W_l^T + b_l)],  scores = z H^T + c
Client: E epochs of SGD on everything; the local extractor and the head stay, the first time those of w^0
Server: the global extractor is the mean by n_k
"""

from dataclasses import dataclass

import numpy as np

from tests.reference.fedper import CASES, PrivateLayers
from tests.reference.mlp import Params, cross_entropy, flat

EXTRACTORS = ("shared.1", "local.1")


def forward(w: Params, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return z and the scores."""
    hidden = [np.maximum(flat(x) @ w[f"{name}.weight"].T + w[f"{name}.bias"], 0.0) for name in EXTRACTORS]
    z = np.concatenate(hidden, axis=1)
    return z, z @ w["head.weight"].T + w["head.bias"]


def loss_and_gradient(w: Params, x: np.ndarray, y: np.ndarray) -> tuple[float, Params]:
    z, scores = forward(w, x)
    loss, error = cross_entropy(scores, y)
    g = {"head.weight": error.T @ z, "head.bias": error.sum(axis=0)}
    by_z = error @ w["head.weight"] * (z > 0)
    for name, part in zip(EXTRACTORS, np.split(by_z, [len(w["shared.1.bias"])], axis=1), strict=True):
        g |= {f"{name}.weight": part.T @ flat(x), f"{name}.bias": part.sum(axis=0)}
    return loss, g


def score(w: Params, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    scores = forward(w, x)[1]
    return cross_entropy(scores, y)[0], float((scores.argmax(1) == y).mean())


@dataclass
class Fenda(PrivateLayers):
    algorithm, score = "fenda", staticmethod(score)
    cases = {name: CASES[name] for name in ("stragglers in a stack", "one batch")}

    def private(self) -> set[str]:
        return {name for name in self.w0 if not name.startswith("shared.")}

    def by(self, w: Params, x: np.ndarray, y: np.ndarray) -> Params:
        return loss_and_gradient(w, x, y)[1]
