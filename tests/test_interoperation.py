"""Drop-in both ways: our rules with somebody else's ClientApp, Flower's FedAvg with our ClientApp."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg

from client_app.app import make_app
from strategies import FedAvg, FedProx, Strategy
from task.arrays import state_of
from task.config import read_config
from task.models import build_model
from task.wire import pack_arrays, read_arrays
from tests.support import quickstart
from tests.support.grid import LocalGrid

ROOT = Path(__file__).resolve().parents[1]


def quickstart_grid(nodes: int = 3) -> LocalGrid:
    configs = [{"partition-id": i, "num-partitions": nodes} for i in range(nodes)]
    return LocalGrid(quickstart.app, configs, {"local-epochs": 2})


@pytest.mark.parametrize("rule", [FedAvg, FedProx])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_our_rules_run_flowers_quickstart_client_unchanged(rule: type[Strategy]) -> None:
    torch.manual_seed(0)
    initial = ArrayRecord(quickstart.Net().state_dict())
    lr = ConfigRecord({"lr": 0.1})
    ours = rule(fraction_evaluate=1.0).start(quickstart_grid(), initial, num_rounds=3, train_config=lr)
    # Flower's own FedAvg on the same messages gives the same parameters to float32.
    flower = FlowerFedAvg(min_train_nodes=3, min_evaluate_nodes=3, min_available_nodes=3).start(
        quickstart_grid(), initial, num_rounds=3, train_config=lr
    )
    a, b = read_arrays(ours.arrays), read_arrays(flower.arrays)
    assert a.keys() == b.keys()
    for name in a.keys() - {"norm.num_batches_tracked"}:
        assert np.allclose(a[name], b[name], rtol=1e-5, atol=1e-6), name
    # Flower makes a float of the counter: 4, 5 and 6 batches an epoch, weighted by 40, 50 and 60.
    assert b["norm.num_batches_tracked"] == pytest.approx(30.2667, abs=1e-3)
    assert a["norm.num_batches_tracked"] == 30
    assert a["norm.num_batches_tracked"].dtype == np.int64
    assert ours.evaluate_metrics_clientapp[3]["eval_acc"] == pytest.approx(
        flower.evaluate_metrics_clientapp[3]["eval_acc"]
    )
    assert ours.evaluate_metrics_clientapp[3]["eval_acc"] > 0.5
    assert ours.train_metrics_clientapp[1]["train_loss"] == pytest.approx(
        flower.train_metrics_clientapp[1]["train_loss"]
    )


@pytest.mark.parametrize("nodes", [1, 3])
def test_flowers_fedavg_runs_our_client_unchanged(nodes: int) -> None:
    """Each node answers for its whole share of the clients, so the mean over nodes is that over clients."""
    keys = {"num-clients": 6, "model": "logistic", "learning-rate": 0.2, "local-epochs": 1}
    configs = [{"partition-id": i, "num-partitions": nodes} for i in range(nodes)]
    initial = pack_arrays(state_of(build_model("logistic", (8, 8), 10, seed=1)))
    flower = FlowerFedAvg(
        min_train_nodes=nodes, min_available_nodes=nodes, fraction_evaluate=1.0, min_evaluate_nodes=nodes
    ).start(LocalGrid(make_app(keys), configs), initial, num_rounds=2)
    ours = FedAvg(read_config(keys)).start(LocalGrid(make_app(keys), configs), initial, num_rounds=2)
    a, b = read_arrays(flower.arrays), read_arrays(ours.arrays)
    for name in a:
        assert np.allclose(a[name], b[name], rtol=1e-4, atol=1e-6), name
    assert 0 < flower.evaluate_metrics_clientapp[2]["accuracy"] <= 1


def test_strategies_can_be_imported_after_pip_install(tmp_path: Path) -> None:
    """Build the wheel, unpack it elsewhere and use it from a project that has none of this tree."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(ROOT)], check=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        names = archive.namelist()
    assert "task/recipes/demo.toml" in names
    assert not [n for n in names if n.startswith("tests/")]
    code = (
        "import strategies, task.config; from strategies import FedAvg; "
        "print(FedAvg(fraction_train=0.5).config.server.fraction_train, strategies.__file__, "
        "len(task.config.recipes()) > 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(site), "PATH": ""},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.startswith(f"0.5 {site}")
    assert done.stdout.rstrip().endswith("True")
