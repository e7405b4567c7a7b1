"""FENDA-FL: Tavakoli et al., MLHC 2024, arXiv 2309.16825, section 3. See `tests.reference.mlp`.

Two extractors side by side, "shared.1" and "local.1", each a layer of ReLU, and a "head" on both outputs:
    z = [ReLU(x W_g^T + b_g), ReLU(x W_l^T + b_l)],  scores = z H^T + c
Client: E epochs of SGD on everything; the local extractor and the head stay, the first time those of w^0
Server: the global extractor is the mean by n_k
"""

from typing import Any

import numpy as np

from tests.reference import fedper
from tests.reference.mlp import Data, Params, Trace, cross_entropy, flat

EXTRACTORS = ("shared.1", "local.1")


def loss_and_gradient(w: Params, x: np.ndarray, y: np.ndarray) -> tuple[float, Params]:
    x = flat(x)
    hidden = [np.maximum(x @ w[f"{name}.weight"].T + w[f"{name}.bias"], 0.0) for name in EXTRACTORS]
    z = np.concatenate(hidden, axis=1)
    loss, error = cross_entropy(z @ w["head.weight"].T + w["head.bias"], y)
    g = {"head.weight": error.T @ z, "head.bias": error.sum(axis=0)}
    by_z = error @ w["head.weight"] * (z > 0)
    for name, part in zip(EXTRACTORS, np.split(by_z, [hidden[0].shape[1]], axis=1), strict=True):
        g |= {f"{name}.weight": part.T @ x, f"{name}.bias": part.sum(axis=0)}
    return loss, g


def run(data: Data, w0: Params, *, epochs: int, **more: Any) -> Trace:
    """Run FENDA; `more` as of `fedper.run`."""
    private = {name for name in w0 if not name.startswith("shared.")}

    def by(w: Params, x: np.ndarray, y: np.ndarray) -> Params:
        return loss_and_gradient(w, x, y)[1]

    return fedper.run(data, w0, private=private, phases=[(epochs, set(w0))], by=by, **more)
