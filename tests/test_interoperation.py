"""Drop-in both ways: our rules with somebody else's ClientApp, Flower's FedAvg with our ClientApp."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
from flwr.serverapp.strategy import FedAdam as FlowerFedAdam
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg

import bouquet.strategies
from client_app.app import make_app
from strategies import STRATEGIES, FedAvg, FedProx, Strategy
from task.catalogue.algorithms import ALGORITHMS
from task.config.knobs import Config
from task.errors import ConfigError
from task.models import build_model
from task.numerics.arrays import Arrays, state_of
from task.resolve.contract import contract_of
from task.resolve.read import read_config
from task.wire.messages import pack_arrays, read_arrays
from tests.promise import stock_classes
from tests.support import quickstart
from tests.support.federation import Keep
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


@pytest.mark.parametrize("model", ["logistic", "mlp-bn"])
def test_flowers_server_optimisers_run_our_client(model: str) -> None:
    """FedAdam computes in float64 and makes floats of counters; the client trains with its own dtypes."""
    keys = {"num-clients": 4, "model": model, "learning-rate": 0.1}
    configs = [{"partition-id": i, "num-partitions": 2} for i in range(2)]
    initial = pack_arrays(state_of(build_model(model, (8, 8), 10, seed=1)))
    result = FlowerFedAdam(
        min_train_nodes=2, min_available_nodes=2, fraction_evaluate=1.0, min_evaluate_nodes=2, eta=0.01
    ).start(LocalGrid(make_app(keys), configs), initial, num_rounds=3)
    arrays = read_arrays(result.arrays)
    assert {str(a.dtype) for a in arrays.values()} == {"float64"}
    assert len(result.train_metrics_clientapp) == 3
    assert 0 < result.evaluate_metrics_clientapp[3]["accuracy"] <= 1


PRIVATE = [
    (DifferentialPrivacyServerSideFixedClipping, {"clipping_norm": 1e6}, None),
    (DifferentialPrivacyClientSideFixedClipping, {"clipping_norm": 1e6}, fixedclipping_mod),
    (DifferentialPrivacyServerSideAdaptiveClipping, {"initial_clipping_norm": 1e6}, None),
    (DifferentialPrivacyClientSideAdaptiveClipping, {"initial_clipping_norm": 1e6}, adaptiveclipping_mod),
]


def private_app(keys: dict[str, Any], mod: Any) -> ClientApp:
    app = make_app(keys)
    if mod is None:
        return app

    def call(message: Message, context: Context) -> Message:
        return (
            mod(message, context, app) if message.metadata.message_type == "train" else app(message, context)
        )

    return cast(ClientApp, call)


@pytest.mark.parametrize(("wrapper", "more", "mod"), PRIVATE)
@pytest.mark.parametrize("clients", [3, 6])
def test_flowers_privacy_wrappers_run_our_rules(
    wrapper: Any, more: dict[str, Any], mod: Any, clients: int
) -> None:
    """Without noise, and with a norm that clips nothing, each gives what Flower's FedAvg gives."""
    keys = {"num-clients": clients, "model": "logistic", "learning-rate": 0.2}
    configs = [{"partition-id": i, "num-partitions": 3} for i in range(3)]
    initial = pack_arrays(state_of(build_model("logistic", (8, 8), 10, seed=1)))

    def run(strategy: Any, seed: int) -> Arrays:
        wrapped = wrapper(strategy, noise_multiplier=0.0, num_sampled_clients=3, **more)
        result = wrapped.start(LocalGrid(private_app(keys, mod), configs, seed=seed), initial, num_rounds=3)
        assert len(result.train_metrics_clientapp) == 3
        return read_arrays(result.arrays)

    theirs = run(FlowerFedAvg(min_train_nodes=3, min_available_nodes=3, fraction_evaluate=0.0), 0)
    start = read_arrays(initial)
    for rule in (FedAvg, FedProx):
        config = {**keys, "algorithm": rule.algorithm, "fedprox.mu": 0.0} if rule is FedProx else keys
        ours = run(rule(read_config(config)), 0)
        for name in theirs:
            assert not np.allclose(ours[name], start[name], atol=1e-3)
            assert np.allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-5), name


def test_a_privacy_wrapper_clips_the_update_of_each_node() -> None:
    """Three nodes, six clients, a norm that every update exceeds: the mean moves by at most that norm."""
    keys = {"num-clients": 6, "model": "logistic", "learning-rate": 0.5}
    configs = [{"partition-id": i, "num-partitions": 3} for i in range(3)]
    initial = pack_arrays(state_of(build_model("logistic", (8, 8), 10, seed=1)))
    wrapped = DifferentialPrivacyServerSideFixedClipping(FedAvg(read_config(keys)), 0.0, 0.01, 3)
    result = wrapped.start(LocalGrid(make_app(keys), configs), initial, num_rounds=1)
    a, b = read_arrays(initial), read_arrays(result.arrays)
    moved = math.sqrt(sum(float(np.square(b[n] - a[n]).sum()) for n in a))
    assert 0.005 < moved <= 0.01 * (1 + 1e-5)


@pytest.mark.parametrize("name", ["scaffold", "fedsgd", "fednova", "qfedavg", "fsvrg", "krum", "apple"])
def test_a_wrapper_around_a_rule_that_needs_more_than_models_is_refused(name: str, tmp_path: Path) -> None:
    keys = {"algorithm": name, "num-clients": 6, "model": "logistic", "state-dir": str(tmp_path)}
    configs = [{"partition-id": i, "num-partitions": 3} for i in range(3)]
    initial = pack_arrays(state_of(build_model("logistic", (8, 8), 10, seed=1)))
    strategy = STRATEGIES[ALGORITHMS[name].rule](read_config(keys))
    wrapped = DifferentialPrivacyServerSideFixedClipping(strategy, 0.0, 1.0, 3)
    with pytest.raises(
        ConfigError, match=r"expected `start` to drive the rounds; got another loop or a wrapper"
    ):
        wrapped.start(LocalGrid(make_app(keys), configs), initial, num_rounds=1)


def test_a_rule_that_was_wrapped_can_be_started_itself() -> None:
    keys = {"num-clients": 6, "model": "logistic"}
    configs = [{"partition-id": i, "num-partitions": 3} for i in range(3)]
    initial = pack_arrays(state_of(build_model("logistic", (8, 8), 10, seed=1)))
    grid, strategy = LocalGrid(make_app(keys), configs), FedAvg(read_config(keys))
    DifferentialPrivacyServerSideFixedClipping(strategy, 0.0, 1.0, 3).start(grid, initial, num_rounds=1)
    assert len(strategy.registry.names) == 3
    keep = Keep()
    strategy.start(grid, initial, num_rounds=1, journal=keep)
    assert keep.rows[-1]["answered"] == 6


@pytest.mark.parametrize("name", stock_classes())
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_strategy_that_is_said_to_work_with_any_client_app_does(name: str) -> None:
    torch.manual_seed(0)
    initial = ArrayRecord(quickstart.Net().state_dict())
    result = getattr(bouquet.strategies, name)().start(quickstart_grid(7), initial, num_rounds=1)
    before, after = read_arrays(initial), read_arrays(result.arrays)
    assert any(not np.array_equal(before[n], after[n]) for n in before)


FOREIGN = sorted(
    {
        name
        for name, entry in ALGORITHMS.items()
        if (entry.personal or entry.keeps or entry.solver not in ("sgd", "fedprox"))
        and not any(r.layout.of == "shared-table" for r in entry.up)  # whose server begins with no model
    }
)


@pytest.mark.parametrize("name", FOREIGN)
def test_an_algorithm_with_a_client_half_refuses_clients_that_have_none(name: str) -> None:
    strategy = STRATEGIES[ALGORITHMS[name].rule](Config(algorithm=name))
    initial, grid = ArrayRecord(quickstart.Net().state_dict()), quickstart_grid()
    with pytest.raises(
        ConfigError, match=rf"node .*expected Bouquet's ClientApp.*{re.escape(strategy.entry.title)}"
    ):
        strategy.start(grid, initial, num_rounds=1)
    assert not [m for m in grid.sent if m.metadata.message_type.startswith("train")]


@pytest.mark.parametrize(
    "keys", [{"ala": True}, {"selection": "oort"}, {"algorithm": "fedprox", "fedprox.adaptive": True}]
)
def test_so_do_keys_that_need_one(keys: dict[str, Any]) -> None:
    config = read_config(keys)
    strategy = STRATEGIES[contract_of(config).rule](config)
    with pytest.raises(
        ConfigError, match=r"expected Bouquet's ClientApp; got another, which (cannot|does not)"
    ):
        strategy.start(quickstart_grid(), ArrayRecord(quickstart.Net().state_dict()), num_rounds=1)


class MixedGrid(LocalGrid):
    """The first node runs the quickstart's ClientApp, the others run ours."""

    def __init__(self, keys: dict[str, Any], nodes: int) -> None:
        super().__init__(make_app(keys), [{"partition-id": i, "num-partitions": nodes} for i in range(nodes)])
        self.first = next(n for n, i in self.index.items() if i == 0)

    def _deliver(self, message: Message) -> Message | None:
        ours = self.app
        self.app = quickstart.app if message.metadata.dst_node_id == self.first else ours
        try:
            return super()._deliver(message)
        finally:
            self.app = ours


def test_one_such_node_among_ours_is_left_out_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {"algorithm": "ditto", "num-clients": 4, "model": "logistic", "state-dir": str(tmp_path)}
    grid, keep = MixedGrid(keys, 3), Keep()
    initial = pack_arrays(state_of(build_model("logistic", (8, 8), 10, seed=1)))
    with caplog.at_level("WARNING", "flwr"):
        FedAvg(read_config(keys)).start(grid, initial, num_rounds=1, journal=keep)
    assert f"node {grid.first} is refused: it runs a ClientApp that is not Bouquet's" in caplog.text
    assert keep.rows[-1]["answered"] == 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_client_that_is_not_ours_is_named_once_where_it_can_take_part(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("WARNING", "flwr"):
        FedAvg().start(quickstart_grid(), ArrayRecord(quickstart.Net().state_dict()), num_rounds=2)
    assert caplog.text.count("ignores run-config keys") == 1  # a warning for all three nodes


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
        "import strategies, task.config.read; from strategies import FedAvg; "
        "print(FedAvg(fraction_train=0.5).config.server.fraction_train, strategies.__file__, "
        "len(task.config.read.recipes()) > 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(site), "PATH": ""},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.startswith(f"0.5 {site}")
    assert done.stdout.rstrip().endswith("True")
