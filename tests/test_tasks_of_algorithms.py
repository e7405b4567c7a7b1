"""Other tasks than classification under every algorithm, from clients to nodes to the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, mean_absolute_error, r2_score

from client_app.data.node import open_node
from task.errors import ConfigError
from task.resolve.read import read_config
from tests.support.federation import SIZES, Played, owners_config, play, read_by
from tests.support.shapes import by_shape
from tests.test_catalogue import ACTIVE, NAMES

REFUSED = {
    "ensemble", "feddf", "fedem", "fedlc", "fedmd", "fedntd", "fedphp", "fedproto", "fedrod", "knn-per",
    "moon",
}  # fmt: skip
TASKS: dict[str, dict[str, Any]] = {
    "regression": {"learning-rate": 0.02},
    "multi-label": {"metrics": "f1-macro,auroc", "num-classes": 3},
    "reconstruction": {"model": "autoencoder", "loss": "mae", "metrics": "mae"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, rng = tmp_path_factory.mktemp("tasks"), np.random.default_rng(5)
    names = rng.permutation([name for name, n in SIZES.items() for _ in range(n)])
    x = rng.normal(size=(len(names), 4)).astype(np.float32)
    numbers = (x @ rng.normal(size=4) + rng.normal(scale=0.1, size=len(x))).astype(np.float32)
    labels = (x @ rng.normal(size=(4, 3)) > 0).astype(np.int64)
    for task, y in (("regression", numbers), ("multi-label", labels), ("reconstruction", labels[:, 0])):
        np.savez(path / f"{task}.npz", x=x, y=y, client=names, x_test=x[:6], y_test=y[:6])
    return path


def config(folder: Path, task: str, algorithm: str) -> dict[str, Any]:
    keys = owners_config(
        folder / f"{task}.npz", task=task, fraction_evaluate=1.0, local_test_fraction=0.3, num_server_rounds=2
    )
    mine = {"algorithm": algorithm, "model": "mlp", **TASKS[task]}
    keys |= mine | {k: v for k, v in ACTIVE[algorithm].items() if k not in mine}
    if algorithm == "fedbn":
        keys["model"] = "mlp-bn"
    return read_by(keys) | {"cache-dir": str(folder / "cache"), "state-dir": ""}


def measured(played: Played, name: str) -> Any:
    return played.rows[-1][f"client_{name}"]


@pytest.mark.parametrize("name", by_shape((n,) for n in sorted(set(NAMES) - REFUSED)))
def test_a_regression_does_not_depend_on_the_nodes(name: str, folder: Path, tmp_path: Path) -> None:
    """A loss or a metric that is computed otherwise where a node has many clients changes bits."""
    keys = config(folder, "regression", name)
    runs = [play(keys | {"state-dir": str(tmp_path / f"{n}")}, nodes=n, seed=n) for n in (1, 5)]
    for key in ("model_sha256", "train_loss", "client_loss", "client_mae", "client_r2"):
        assert runs[0].rows[-1][key] == runs[1].rows[-1][key], key
    assert runs[0].rows[-1]["client_accuracy"] is None
    assert runs[0].rows[-1]["quarantined"] == []


@pytest.mark.parametrize("task", ["multi-label", "reconstruction"])
@pytest.mark.parametrize(
    "name", ["fedavg", "fedprox", "scaffold", "fedadam", "ditto", "krum", "fedrep", "qfedavg"]
)
def test_the_other_tasks_do_not_either(task: str, name: str, folder: Path, tmp_path: Path) -> None:
    keys = config(folder, task, name)
    runs = [play(keys | {"state-dir": str(tmp_path / f"{n}")}, nodes=n, seed=n) for n in (1, 5)]
    further = "f1-macro" if task == "multi-label" else "mae"
    for key in ("model_sha256", "client_loss", f"client_{further}"):
        assert runs[0].rows[-1][key] == runs[1].rows[-1][key], key
    assert runs[0].rows[-1]["quarantined"] == []


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_an_algorithm_that_needs_classes_refuses_numbers(name: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=r'"task": .* expected classification or language'):
        play(config(folder, "regression", name))


def predictions(played: Played, keys: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return outputs of the last model and targets, over all clients' test examples."""
    node = open_node(read_config(keys), {})
    model = node.model()
    model.load_state_dict({k: torch.from_numpy(a) for k, a in played.arrays(2).items()})
    data = [node.data(client, "test") for client in node.clients.names]
    with torch.no_grad():
        outputs = [model.eval()(x) for x, _ in data]
    return torch.cat(outputs).double().numpy(), torch.cat([y for _, y in data]).double().numpy()


def test_the_clients_metrics_are_scikit_learns_over_all_their_examples(folder: Path) -> None:
    """Not a mean of the clients' own metrics, which for R2 and F1 is another number."""
    keys = config(folder, "regression", "fedavg")
    played = play(keys)
    outputs, y = predictions(played, keys)
    assert measured(played, "r2") == pytest.approx(r2_score(y, outputs), rel=1e-6)
    assert measured(played, "mae") == pytest.approx(mean_absolute_error(y, outputs[:, 0]), rel=1e-6)
    keys = config(folder, "multi-label", "fedavg")
    played = play(keys)
    outputs, y = predictions(played, keys)
    assert measured(played, "f1-macro") == f1_score(y, outputs > 0, average="macro", zero_division=0)
