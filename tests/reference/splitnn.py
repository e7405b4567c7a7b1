"""SplitNN over columns, in windows: one process, float64, gradients written out; from the papers alone.

Bottoms f_k(x) = W_k x + b_k, top g(a) = V relu(U relu(a) + d) + e on their outputs side by side, those of the
party with the labels first; mean cross-entropy over a batch. For a window of S batches

* A_k of all its rows, with theta_k as it stood before (Vepakomma et al. 2018, arXiv 1812.00564);
* Q passes of the labels' party over its batches, one step of SGD each on the others' fixed A_k, which moves
  its own bottom, too; G_k = dL/dA_k of the first pass;
* Q passes of the others, one step each along the fixed G_k (FedBCD-p, Liu et al. 2022).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Bottom = dict[str, np.ndarray]  # W [c, p], b [c]
Top = dict[str, np.ndarray]  # U [h, Kc], d [h], V [C, h], e [C]


def top_gradients(top: Top, a: np.ndarray, y: np.ndarray) -> tuple[Top, np.ndarray]:
    """Return the gradients of the mean cross-entropy by the top and by a [b, Kc]."""
    r = np.maximum(a, 0)
    h = r @ top["U"].T + top["d"]
    z = np.maximum(h, 0) @ top["V"].T + top["e"]
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    dz = p / len(y)
    dh = (dz @ top["V"]) * (h > 0)
    found = {"U": dh.T @ r, "d": dh.sum(0), "V": dz.T @ np.maximum(h, 0), "e": dz.sum(0)}
    return found, (dh @ top["U"]) * (a > 0)


def bottom_gradients(x: np.ndarray, g: np.ndarray) -> Bottom:
    """Return the gradients of a bottom, given those of its outputs."""
    return {"W": g.T @ x, "b": g.sum(0)}


def window(
    top: Top,
    bottoms: Sequence[Bottom],
    xs: Sequence[np.ndarray],
    y: np.ndarray,
    batch: int,
    passes: int,
    eta: float,
) -> None:
    """Train on one window in place; the first bottom is that of the party with the labels."""

    def out(k: int, rows: slice) -> np.ndarray:
        return xs[k][rows] @ bottoms[k]["W"].T + bottoms[k]["b"]

    def step(part: dict[str, np.ndarray], gradients: dict[str, np.ndarray]) -> None:
        for name, g in gradients.items():
            part[name] -= eta * g

    c = len(bottoms[0]["b"])
    batches = [slice(i, i + batch) for i in range(0, len(y), batch)]
    sent = [out(k, slice(None)) for k in range(1, len(xs))]
    back = [np.zeros_like(a) for a in sent]
    for turn in range(passes):
        for rows in batches:
            a = np.concatenate([out(0, rows), *(s[rows] for s in sent)], axis=1)
            of_top, of_a = top_gradients(top, a, y[rows])
            step(top, of_top)
            step(bottoms[0], bottom_gradients(xs[0][rows], of_a[:, :c]))
            if turn == 0:
                for k, g in enumerate(back):
                    g[rows] = of_a[:, (k + 1) * c : (k + 2) * c]
    for k, g in enumerate(back, 1):
        for _ in range(passes):
            for rows in batches:
                step(bottoms[k], bottom_gradients(xs[k][rows], g[rows]))
