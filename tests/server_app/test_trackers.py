"""Trackers: what each receives, in its own API, and that none of them can end a run."""

from __future__ import annotations

import importlib.util
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_app.app import make_app
from server_app.app import prepare, run
from server_app.results.folder import RunFolder
from server_app.run.trackers import (
    TRACKERS,
    TrackedRun,
    Tracker,
    Trackers,
    check_trackers,
    scalars,
    tracking,
)
from task.config.read import as_run_config
from task.errors import ConfigError
from task.resolve.read import read_config
from tests.support.grid import LocalGrid

ROWS = [
    {"round": 0, "accuracy": 0.1, "loss": 2.0, "skipped": False, "seconds": {"total": 0.5}},
    {
        "round": 1,
        "accuracy": 0.5,
        "loss": 1.0,
        "skipped": False,
        "seconds": {"total": 1.5},
        "quarantined": [],
    },
]
RESULT = {
    "accuracy": 0.5,
    "loss": 1.0,
    "rounds": 1,
    "algorithm": "fedprox",
    "seed": 1,
    "rounds_to_target": {"0.5": 1},
}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run of FedProx, whose own key it reads, and with it its finished rounds."""
    config = read_config({"algorithm": "fedprox", "fedprox.mu": 0.5, "tracker": "mlflow"})
    made = RunFolder.create(tmp_path / "runs" / "one", {"run": as_run_config(config)}, resume=False)
    for row in ROWS:
        made.append_round(row)
    (made.path / "report.html").write_text("<p>report")
    return made


def record(folder: RunFolder, name: str, *, resumed: bool = False) -> None:
    trackers = Trackers((name,))
    trackers.begin(folder, resumed)
    for row in ROWS:
        trackers.round(row)
    trackers.finish(RESULT, folder.path)
    trackers.close(failed=False)


def test_a_run_without_the_key_does_without_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "server_app.run.trackers", None)  # an import of it raises
    keys = {"runs-dir": str(tmp_path), "dataset": "digits", "num-server-rounds": 1, "progress": "none"}
    prepare(keys)
    grid = LocalGrid(make_app(keys), [{}])
    assert (run(grid, read_config(keys)) / "result.json").exists()
    with pytest.raises(ImportError):
        prepare({**keys, "tracker": "mlflow"})


def test_numbers_of_a_row() -> None:
    assert scalars(ROWS[1]) == {"accuracy": 0.5, "loss": 1.0, "skipped": 0, "seconds/total": 1.5}
    assert scalars({"round": 1, "loss": None, "accuracy": float("nan"), "name": "x"}) == {}


class Fake:
    """A module of a tracker: it writes down every call, as (name, arguments)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def method(self, name: str, answer: Any = None) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            return answer

        return called

    def of(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(args, kwargs) for called, args, kwargs in self.calls if called == name]


def test_mlflow_is_told_everything(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    run = types.SimpleNamespace(info=types.SimpleNamespace(run_id="7f"))
    client = types.SimpleNamespace(
        get_experiment_by_name=lambda name: None,
        create_experiment=fake.method("create_experiment", "3"),
        create_run=fake.method("create_run", run),
        **{n: fake.method(n) for n in ("update_run", "log_batch", "log_metric", "set_tag", "log_figure")},
        **{n: fake.method(n) for n in ("log_artifact", "set_terminated")},
    )
    entities = types.SimpleNamespace(
        Param=lambda key, value: (key, value), Metric=lambda key, value, at, step: (key, value, step)
    )
    module = types.SimpleNamespace(MlflowClient=fake.method("client", client), entities=entities)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    record(folder, "mlflow")
    ((address,), _) = fake.of("client")[0]
    assert address == f"sqlite:///{folder.path.parent / 'mlflow.db'}"
    params = dict(p for _, kwargs in fake.of("log_batch") for p in kwargs.get("params", ()))
    assert params["fedprox.mu"] == "0.5"
    assert "moon.mu" not in params  # nothing in this run reads it
    metrics = [m for _, kwargs in fake.of("log_batch") for m in kwargs.get("metrics", ())]
    assert ("accuracy", 0.1, 0) in metrics
    assert ("seconds/total", 1.5, 1) in metrics
    assert (("7f", "final/accuracy", 0.5), {}) in fake.of("log_metric")
    assert (("7f", str(folder.path / "report.html"), None), {}) in fake.of("log_artifact")
    assert len(fake.of("log_figure")) == 1
    keys = [args[1] for name in ("set_tag", "log_metric") for args, _ in fake.of(name)]
    assert all(re.fullmatch(r"[\w.\- :/]+", key) for key in keys)  # or MLflow refuses it
    assert fake.of("set_terminated") == [(("7f", "FINISHED"), {})]
    # A resumed run goes on in the same record.
    record(folder, "mlflow", resumed=True)
    assert len(fake.of("create_run")) == 1
    assert fake.of("update_run") == [(("7f",), {"status": "RUNNING"})]


def test_wandb_is_offline_and_told_everything(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    run = types.SimpleNamespace(log=fake.method("log"), finish=fake.method("finish"), summary={})
    module = types.SimpleNamespace(
        init=fake.method("init", run), Settings=dict, Image=lambda figure: "image", Html=lambda text: text,
        Table=lambda columns, data: dict(data),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    record(folder, "wandb")
    _, options = fake.of("init")[0]
    assert options["mode"] == "offline"
    assert options["config"]["fedprox.mu"] == 0.5
    assert options["id"] == folder.config()["id"]
    logged = fake.of("log")
    assert logged[0][0] == ({"accuracy": 0.1, "loss": 2.0, "skipped": 0, "seconds/total": 0.5},)
    assert logged[1][1] == {"step": 1}
    assert [args[0] for args, _ in logged[3:]] == [{"curves": "image"}, {"report": "<p>report"}]
    assert run.summary["final/rounds_to_target/0.5"] == 1
    assert fake.of("finish") == [((), {"exit_code": 0})]


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="the extra is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_holds_the_rounds_once_after_a_resume(folder: RunFolder) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record(folder, "tensorboard")
    record(folder, "tensorboard", resumed=True)  # without a checkpoint: from round 0 again
    events = EventAccumulator(str(folder.path / "tensorboard"))
    events.Reload()
    found = events.Scalars("accuracy")
    assert [(e.step, round(e.value, 6)) for e in found] == [(0, 0.1), (1, 0.5)]
    assert "final/accuracy" in events.Tags()["scalars"]
    assert "curves" in events.Tags()["images"]
    assert {"keys/text_summary", "result/text_summary"} <= set(events.Tags()["tensors"])


class Failing(Tracker):
    """It breaks at one of its methods."""

    at = "round"

    def __init__(self, run: TrackedRun) -> None:
        self.told: list[str] = []
        self._go("begin")

    def _go(self, what: str) -> None:
        self.told.append(what)
        if what == self.at:
            raise RuntimeError("no disk")

    def round(self, values: Any, step: int) -> None:
        """Record."""
        self._go("round")

    def finish(self, result: Any, folder: Path, figure: Any) -> None:
        """Finish."""
        self._go("finish")

    def close(self, failed: bool) -> None:
        """Close."""
        self._go("close")


@pytest.mark.parametrize("at", ["begin", "round", "finish", "close"])
def test_a_tracker_that_fails_ends_nothing(
    at: str, folder: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    broken = type("Broken", (Failing,), {"at": at})
    whole = type("Whole", (Failing,), {"at": ""})
    made = list[Failing]()

    def keep(run: TrackedRun) -> Failing:
        made.append(whole(run))
        return made[0]

    trackers = Trackers(("broken", "whole"), {"broken": broken, "whole": keep})  # type: ignore[dict-item]
    trackers.begin(folder, resumed=False)
    for row in ROWS:
        trackers.round(row)
    trackers.finish(RESULT, folder.path)
    trackers.close(failed=False)
    line = "tracker broken failed, the run continues without it: RuntimeError: no disk"
    assert caplog.text.count(line) == 1
    assert made[0].told == ["begin", "round", "round", "finish", "close"]


def test_a_package_that_is_missing_is_said_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_config({"tracker": "wandb, wandb"})
    assert config.output.trackers == ("wandb",)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'bouquet\[wandb\]'"):
        check_trackers(config)
    with pytest.raises(ConfigError, match=r"got .tensorbord.*Expected one of mlflow, tensorboard, wandb"):
        read_config({"tracker": "mlflow,tensorbord"})


def test_a_run_that_ends_in_an_error_is_recorded_as_failed(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[bool]()
    kind = type("Seen", (Failing,), {"at": "", "close": lambda self, failed: seen.append(failed)})
    monkeypatch.setitem(TRACKERS, "mlflow", kind)
    monkeypatch.setattr("server_app.run.trackers.check_trackers", lambda config: None)
    config = read_config({"tracker": "mlflow"})

    def interrupted() -> None:
        with tracking(config) as trackers:
            trackers.begin(folder, resumed=False)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert seen == [True]
