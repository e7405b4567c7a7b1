"""The apps in docs/apps: Flower bundles and runs them with the strategies of the installed package."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.cli.build import build

from task.text import logger
from tests.support.flwr_run import flwr_run, local_superlink
from tests.support.grid import LocalGrid

ROOT = Path(__file__).resolve().parents[1]
APPS = {path.name: path for path in sorted((ROOT / "docs/apps").iterdir())}
NODES = 10


def config_of(name: str) -> dict[str, Any]:
    project = tomllib.loads((APPS[name] / "pyproject.toml").read_text(encoding="utf-8"))
    return dict(project["tool"]["flwr"]["app"]["config"])


Played = Callable[..., tuple[LocalGrid, list[str]]]


@pytest.fixture
def played(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> Iterator[Played]:
    """Return a function that runs an app on ten nodes; it returns the grid and the lines of the rounds."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def play(name: str, **keys: Any) -> tuple[LocalGrid, list[str]]:
        monkeypatch.syspath_prepend(str(APPS[name]))
        config = config_of(name) | {key.replace("_", "-"): value for key, value in keys.items()}
        client, server = (importlib.import_module(f"{name}.{half}_app").app for half in ("client", "server"))
        nodes = [{"partition-id": i, "num-partitions": NODES} for i in range(NODES)]
        grid = LocalGrid(client, nodes, config)
        caplog.clear()
        monkeypatch.setattr(logger, "propagate", True)  # else nothing comes to `caplog`
        server(grid, Context(1, 1, {}, RecordDict(), config))
        return grid, [line for line in caplog.messages if line.startswith("round ")]

    yield play
    torch.set_num_threads(threads)


def accuracy(line: str) -> float:
    return float(line.partition("accuracy ")[2].partition(",")[0])


def test_fedprox_keeps_the_clients_near_the_model(played: Played) -> None:
    """A mu that the strategy does not send, or that the clients leave out."""

    def change(mu: float) -> float:
        grid, lines = played("fedprox", mu=mu, num_server_rounds=1)
        assert len(lines) == 2
        orders = [m for m in grid.sent if m.metadata.message_type == "train"]
        assert {m.content["config"]["proximal-mu"] for m in orders} == {mu}
        assert len(orders) == NODES // 2
        before = orders[0].content["arrays"].to_numpy_ndarrays()  # type: ignore[union-attr]
        after = list(torch.load("final_model.pt").values())
        return sum(float(((b - a.numpy()) ** 2).sum()) for b, a in zip(before, after, strict=True))

    assert change(10.0) < change(0.0) / 4


def test_fedala_keeps_a_model_for_each_client(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights that learn nothing: with a step of 0 the global layer replaces a client's own."""
    grid, _ = played("fedala", num_server_rounds=3)
    shown = capsys.readouterr().out.splitlines()[-1]
    own, common = (
        float(shown.partition(f"'{key}': ")[2].partition(",")[0]) for key in ("eval_acc", "global_acc")
    )
    assert own > 0.9 > common
    learnt = [c.state["weights"].to_torch_state_dict() for c in grid.contexts.values()]  # type: ignore[union-attr]
    assert all(0 <= float(w.min()) < 1 and float(w.max()) <= 1 for one in learnt for w in one.values())


def test_a_robust_rule_learns_where_fedavg_does_not(played: Played) -> None:
    """A rule that is not told of the malicious clients, or clients that do no harm."""
    reached = [
        accuracy(played("robust", strategy=s, num_server_rounds=4)[1][-1]) for s in ("multi-krum", "fedavg")
    ]
    assert reached[0] > 0.6 > 0.3 > reached[1]


@pytest.mark.parametrize("name", APPS)
def test_an_app_is_small_and_flower_bundles_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [path for path in APPS[name].rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert len(files) <= 15
    monkeypatch.chdir(tmp_path)
    build(APPS[name])
    assert [path.name.split(".")[1] for path in tmp_path.glob("*.fab")] == [f"bouquet-{name}"]


@pytest.mark.system
@pytest.mark.full
def test_flower_runs_the_apps(tmp_path: Path) -> None:
    with local_superlink(tmp_path) as env:
        for path in APPS.values():
            shown = flwr_run(env, path, "num-server-rounds=2", NODES)
            assert "round 2: " in shown, shown[-4000:]
