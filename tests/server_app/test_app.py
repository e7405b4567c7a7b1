"""The ServerApp puts a run together: what its folder holds, and what it refuses."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from safetensors import SafetensorError
from safetensors.numpy import load_file

from client_app.app import make_app
from server_app import app
from server_app.app import run
from server_app.results import folder as results
from server_app.run import run_lock as holding
from server_app.run.naming import folder_of_run
from task.datasets import cache
from task.errors import ConfigError
from task.numerics.arrays import sha256
from task.resolve.model_card import read_model
from task.resolve.read import read_config
from task.storage import files
from tests.support.grid import LocalGrid

KEYS: dict[str, Any] = {
    "num-server-rounds": 2, "fraction-train": 0.5, "fraction-evaluate": 1.0, "run-name": "trial",
    "progress": "none", "partition": "dirichlet", "learning-rate": 0.2,
}  # fmt: skip


def go(tmp_path: Path, **more: Any) -> Path:
    keys = {**KEYS, "runs-dir": str(tmp_path / "runs"), **{k.replace("_", "-"): v for k, v in more.items()}}
    grid = LocalGrid(make_app(keys), [{"partition-id": i, "num-partitions": 2} for i in range(2)])
    return run(grid, read_config(keys))


def test_a_run_leaves_everything_that_the_readme_names(tmp_path: Path) -> None:
    folder = go(tmp_path)
    names = {p.name for p in folder.iterdir()}
    files = {
        "config.json",
        "rounds.jsonl",
        "clients.jsonl",
        "result.json",
        "model.safetensors",
        "report.html",
        "nodes.json",
        ".lock",
    }
    assert names == files | {"checkpoint", "plots"}
    config = json.loads((folder / "config.json").read_text())
    assert config["run"]["partition"] == "dirichlet"
    assert config["data"]["clients"] == 10
    assert config["data"]["train_examples"] + config["data"]["test_examples"] == 1797
    assert 0 < config["data"]["skew"]["label_tv_mean"] < 1
    result = json.loads((folder / "result.json").read_text())
    assert result["rounds"] == 2
    assert set(result["clients"]) >= {"mean", "std", "worst_decile", "jain"}
    assert result["quarantined"] == 0


@pytest.mark.parametrize("part", ["summarise", "write_report"])
def test_what_fails_after_the_last_round_costs_neither_result_nor_model(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: Any) -> Any:
        raise ZeroDivisionError("from what clients sent")

    monkeypatch.setattr(f"server_app.run.finish.{part}", breaks)
    folder = go(tmp_path)
    assert (folder / "model.safetensors").exists()
    result = json.loads((folder / "result.json").read_text())
    assert result["algorithm"] == "fedavg"
    assert ("summary_error" in result) is (part == "summarise")


def test_what_a_run_leaves_is_its_users_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        go(tmp_path, cache_dir=str(tmp_path / "cache"))
    finally:
        os.umask(before)
    made = [top for name in ("runs", "cache") for top in (tmp_path / name, *(tmp_path / name).rglob("*"))]
    assert len(made) > 20
    odd = {
        str(p): oct(p.stat().st_mode)
        for p in made
        if stat.S_IMODE(p.stat().st_mode) != (0o700 if p.is_dir() else 0o600)
    }
    assert not odd


@pytest.mark.parametrize(("key", "value"), [("seed", 2), ("learning_rate", 0.1), ("partition", "iid")])
def test_a_resume_under_other_keys_is_refused_and_changes_nothing(
    tmp_path: Path, key: str, value: Any
) -> None:
    folder = go(tmp_path)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(ConfigError, match=f'"{key.replace("_", "-")}": expected'):
        go(tmp_path, resume=True, num_server_rounds=4, **{key: value})
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_a_finished_run_can_be_lengthened(tmp_path: Path) -> None:
    go(tmp_path)
    longer = go(tmp_path, resume=True, num_server_rounds=4)
    at_once = go(tmp_path, run_name="at-once", num_server_rounds=4)
    assert (longer / "model.safetensors").read_bytes() == (at_once / "model.safetensors").read_bytes()


@pytest.mark.parametrize("more", [{"lr_schedule": "cosine"}, {"algorithm": "nbafl"}, {"algorithm": "fedphp"}])
def test_a_run_whose_rounds_follow_from_how_many_there_are_cannot_be_lengthened(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    go(tmp_path, **more)
    with pytest.raises(ConfigError, match=r'"num-server-rounds": expected .* rounds depend on their number'):
        go(tmp_path, resume=True, num_server_rounds=9, **more)


@pytest.mark.parametrize("name", ["a/b", "..", "."])
def test_a_run_name_is_one_folder(name: str) -> None:
    with pytest.raises(ConfigError, match="one folder"):
        folder_of_run(read_config({"run-name": name}))


def test_models_of_the_clients_that_nobody_measures_are_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match=r'"fraction-evaluate": .* "fedper" are the clients'):
        go(tmp_path, algorithm="fedper", fraction_evaluate=0.0)
    assert not (tmp_path / "runs").exists()


def test_a_personalised_run_is_measured_on_its_clients_and_sends_their_shared_part_only(
    tmp_path: Path,
) -> None:
    from safetensors.numpy import load_file

    folder = go(tmp_path, algorithm="fedper", fraction_evaluate=-1.0)  # the key's default
    assert json.loads((folder / "config.json").read_text())["run"]["fraction-evaluate"] == 1.0
    assert set(load_file(folder / "model.safetensors")) == {"1.weight", "1.bias"}
    result = json.loads((folder / "result.json").read_text())
    assert result["measured_on"] == "clients"
    assert result["accuracy"] == result["clients"]["weighted_mean"] > 0.1
    assert result["clients_after"]["count"] == 5
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [r["accuracy"] for r in rounds] == [None] * 3


def test_a_target_counts_on_the_clients_where_nothing_is_measured_centrally(tmp_path: Path) -> None:
    keys = {"algorithm": "local-only", "fraction_train": 1.0, "num_server_rounds": 12, "target_accuracy": 0.6}
    folder = go(tmp_path, **keys)
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert len(rounds) < 13
    seen = [r["client_accuracy"] for r in rounds[1:]]
    assert seen[-1] >= 0.6 > max(seen[:-1], default=0.0)


def _full(*args: Any, **more: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _unserialised(*args: Any, **more: Any) -> Any:
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


MET: dict[str, tuple[Any, str, Any]] = {
    "the lock": (holding.os, "open", _full),
    "config.json": (results, "write_bytes", _full),
    "rounds.jsonl": (results.RunFolder, "_append", _full),
    "the checkpoint": (files, "save_file", _unserialised),
    "the cache": (cache, "_write", _full),
}


def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> str:
    """Return what Flower would hear of how a run failed."""
    keys = {**KEYS, "runs-dir": str(tmp_path / "runs"), "cache-dir": str(tmp_path / "cache"), **more}
    grid = LocalGrid(make_app(keys), [{"partition-id": i, "num-partitions": 2} for i in range(2)])
    monkeypatch.setattr(app, "PackingGrid", lambda inner: inner)
    with pytest.raises(RuntimeError) as caught:
        app.main(grid, Context(1, 1, {}, RecordDict(), keys))  # type: ignore[operator]
    return str(caught.value)


@pytest.mark.parametrize("place", MET)
def test_a_full_disk_is_no_wrong_key_wherever_it_is_met(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, name, broken = MET[place]
    monkeypatch.setattr(where, name, broken)
    said = told(tmp_path, monkeypatch)
    assert said.startswith("passing: "), said
    assert "No space left" in said


def test_what_does_not_pass_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").write_text("a file")
    assert told(tmp_path, monkeypatch).startswith('config: run-config keys "runs-dir"')
    assert told(tmp_path, monkeypatch, seed="x").startswith("config: ")


class Stopped(LocalGrid):
    """A grid at which the user presses Ctrl-C in a round."""

    stop_in = "3"

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        if any(m.metadata.group_id == self.stop_in for m in messages):
            raise KeyboardInterrupt
        return super().push_messages(messages)


@pytest.mark.parametrize("every", [1, 5])
def test_a_stopped_run_leaves_its_model_and_goes_on_bit_for_bit(every: int, tmp_path: Path) -> None:
    """Ctrl-C left rounds and a checkpoint, and nothing that predict, compare or a reader could open."""
    whole = go(tmp_path, run_name="whole", num_server_rounds=4)
    keys = KEYS | {"runs-dir": str(tmp_path / "runs"), "num-server-rounds": 4, "checkpoint-every": every}
    grid = Stopped(make_app(keys), [{"partition-id": i, "num-partitions": 2} for i in range(2)])
    with pytest.raises(KeyboardInterrupt):
        run(grid, read_config(keys), stop_is_end=True)
    folder = tmp_path / "runs" / "trial"
    result = json.loads((folder / "result.json").read_text())
    assert (result["stopped"], result["rounds"]) == ("by the user", 2)
    row = json.loads((whole / "rounds.jsonl").read_text().splitlines()[2])
    assert result["model_sha256"] == row["model_sha256"]
    assert sha256(load_file(folder / "model.safetensors")) == row["model_sha256"]
    card, arrays = read_model(folder / "model.safetensors")  # as predict and export read it
    assert (card.config.algorithm, card.num_classes, sha256(arrays)) == ("fedavg", 10, row["model_sha256"])
    assert "by the user" in (folder / "report.html").read_text()
    with pytest.raises(ConfigError, match="holds a stopped run"):
        go(tmp_path, num_server_rounds=4)
    assert go(tmp_path, num_server_rounds=4, resume=True) == folder
    assert "stopped" not in json.loads((folder / "result.json").read_text())
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_a_run_that_died_without_a_checkpoint_begins_again_with_its_clients_as_new(tmp_path: Path) -> None:
    """Their state was of rounds that the resumed run had yet to do, and every version before was gone."""

    class Dying(Stopped):
        stop_in = "6"

        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            try:
                return super().push_messages(messages)
            except KeyboardInterrupt:
                raise RuntimeError("killed") from None

    more: dict[str, Any] = {
        "algorithm": "ditto",
        "fraction_train": 1.0,
        "num_server_rounds": 6,
        "checkpoint_every": 0,
    }
    whole = go(tmp_path, run_name="whole", **more)
    folders = {"runs_dir": str(tmp_path / "runs"), "state_dir": str(tmp_path / "states")}
    keys = KEYS | {k.replace("_", "-"): v for k, v in (more | folders).items()}
    grid = Dying(make_app(keys), [{"partition-id": i, "num-partitions": 2} for i in range(2)])
    with pytest.raises(RuntimeError, match="killed"):
        run(grid, read_config(keys))
    folder = go(tmp_path, resume=True, **more, **folders)
    hashes = {json.loads((f / "result.json").read_text())["model_sha256"] for f in (whole, folder)}
    assert len(hashes) == 1


def test_a_run_that_its_link_goes_on_with_leaves_no_result_when_it_is_interrupted(tmp_path: Path) -> None:
    """The link would take the result of a ServerApp that it stopped for the end of the job."""
    keys = KEYS | {"runs-dir": str(tmp_path / "runs"), "num-server-rounds": 4}
    grid = Stopped(make_app(keys), [{"partition-id": i, "num-partitions": 2} for i in range(2)])
    with pytest.raises(KeyboardInterrupt):
        run(grid, read_config(keys))
    assert not (tmp_path / "runs" / "trial" / "result.json").exists()


@pytest.mark.parametrize("keep", [True, False])
def test_a_run_says_what_clients_keep_or_deletes_it(
    keep: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Personal models of every run stayed on the disk, and nothing said so."""
    states = tmp_path / "states"
    folder = go(tmp_path, algorithm="ditto", state_dir=str(states), keep_state=keep)
    run_id = json.loads((folder / "config.json").read_text())["id"][:12]
    kept = states / "trial" / run_id
    text = capsys.readouterr().out
    assert kept.exists() is keep
    assert (f"in {kept}; delete it with `bouquet state trial/{run_id} --delete --yes`" in text) is keep
    assert ("deleted (--no-keep-state)" in text) is not keep


def test_a_run_whose_clients_keep_nothing_says_nothing_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    go(tmp_path, state_dir=str(tmp_path / "states"))
    assert "Kept state" not in capsys.readouterr().out


def test_a_run_of_own_models_says_what_its_global_model_does_on_the_global_test_set(tmp_path: Path) -> None:
    """Fine-tuning trains fedavg's global model; one whose layers stay with the clients is no whole model."""
    keys: dict[str, Any] = {"local_test_fraction": 0.2, "fraction_train": 1.0}
    plain = json.loads((go(tmp_path, **keys) / "result.json").read_text())
    own = json.loads(
        (go(tmp_path, algorithm="fine-tune", run_name="own", **keys) / "result.json").read_text()
    )
    assert own["measured_on"] == "clients"
    assert own["global_model"]["accuracy"] == plain["accuracy"]
    assert own["global_model"]["loss"] == plain["loss"]
    assert "global_model" not in plain
    part = json.loads((go(tmp_path, algorithm="fedper", run_name="part", **keys) / "result.json").read_text())
    assert part["global_model"] is None
