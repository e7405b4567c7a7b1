"""How near to the optimum: SCAFFOLD and FSVRG against FedAvg on a logistic regression among unlike clients.

``python -m tests.support.optimum docs/images/optimum.svg`` runs the algorithms and draws the distance to
scikit-learn's optimum by round. Four owners of 40 examples each; their inputs lie around different means and
each follows a linear model of its own, so that their own optima are far apart.

The model is float32, and a gradient step stands still once eta |gradient| is below half a unit in the last
place of a parameter, at a distance of about ulp(w) / (2 eta lambda). With lambda, the smallest eigenvalue of
the Hessian, 0.19 and parameters below 0.3 that is 1e-7 here. Where lambda is 0.06 and parameters are 1.3
(seed 7 below instead of 2, centres 0.7), SCAFFOLD stands at 1.5e-6 and FSVRG at 3.6e-6.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from task.catalogue.algorithms import ALGORITHMS
from tests.support.federation import Model, owners_config, play

ROUNDS = 100
FEATURES, CLASSES, CLIENTS, EXAMPLES = 3, 3, 4, 40
EPOCHS = 5
COMMON = {"batch_size": 0, "local_epochs": EPOCHS, "learning_rate": 0.5}
# Full batches of E local steps for all; FSVRG's h is per pass, as FedAvg's eta is per step.
RUNS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "scaffold": {},
    "scaffold I": {"scaffold__option": "I"},
    "fsvrg": {},
}


def write_problem(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Write the clients' data as an npz file of owners; return the pooled examples."""
    rng = np.random.default_rng(2)
    x, y, client = [], [], []
    for k in range(CLIENTS):
        centre = rng.normal(0.0, 0.5, FEATURES)
        own = rng.normal(0.0, 1.5, (FEATURES, CLASSES))
        inputs = rng.normal(centre, 1.0, (EXAMPLES, FEATURES)).astype(np.float32)
        x.append(inputs)
        y.append(np.argmax(inputs @ own + rng.gumbel(size=(EXAMPLES, CLASSES)), axis=1))
        client += [f"client-{k}"] * EXAMPLES
    X, Y = np.concatenate(x), np.concatenate(y)
    np.savez(path, x=X, y=Y, client=np.array(client), x_test=X[:4], y_test=Y[:4])
    return X, Y


def centred(model: Model) -> np.ndarray:
    """Return the parameters with the mean over classes taken out: logits are free up to a constant."""
    return np.concatenate([(a - a.mean(axis=-1, keepdims=True)).ravel() for a in model])


def optimum(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Return scikit-learn's optimum of the pooled data, without a penalty."""
    from sklearn.linear_model import LogisticRegression

    found = LogisticRegression(C=np.inf, solver="newton-cg", tol=1e-12, max_iter=1000)
    found.fit(X.astype(np.float64), Y)
    return centred((found.coef_.T, found.intercept_))


def distances(path: Path, name: str, target: np.ndarray, rounds: int = ROUNDS) -> list[float]:
    """Run an algorithm of `RUNS`; return |w^t - w*| for t = 0, 1, ..."""
    keys = COMMON | RUNS[name] | {"algorithm": name.split()[0], "num_server_rounds": rounds}
    keys["state_dir"] = str(path.parent / "state")
    played = play(owners_config(path, **keys), nodes=1)
    return [float(np.linalg.norm(centred(played.linear(t)) - target)) for t in range(rounds + 1)]


def plot(curves: dict[str, list[float]], path: Path) -> None:
    """Draw the distances by round."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, values in curves.items():
        algorithm, _, option = name.partition(" ")
        title = ALGORITHMS[algorithm].title
        axes.semilogy(values, label=f"{title}, option {option}" if option else title)
    axes.axhline(1e-6, color="0.6", linestyle=":", linewidth=1)
    axes.set_xlabel(f"round (full batches, {EPOCHS} local steps)")
    axes.set_ylabel("distance to scikit-learn's optimum")
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "optimum"}):  # equal curves give equal bytes
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)


def main(arguments: list[str]) -> None:
    """Run everything that the catalogue has, print the last distances, draw the plot."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.optimum", description=__doc__)
    parser.add_argument("plot", type=Path, help="file to write: .svg or .png")
    path = parser.parse_args(arguments).plot
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "owners.npz"
        target = optimum(*write_problem(data))
        names = [name for name in RUNS if name.split()[0] in ALGORITHMS]
        curves = {name: distances(data, name, target) for name in names}
    for name, values in curves.items():
        print(f"{name:12} after {ROUNDS} rounds {values[-1]:.2e}, nearest {min(values):.2e}")
    plot(curves, path)


if __name__ == "__main__":
    main(sys.argv[1:])
