from __future__ import annotations

import json
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from server_app.results import folder as results
from server_app.results.folder import RunFolder, environment, to_json
from server_app.results.summary import summarise
from task.errors import ConfigError, StateError

RUN = {"algorithm": "fedavg", "dataset": "digits", "model": "mlp", "seed": 7, "target-accuracy": 0.625}


def row(number: int, accuracy: float | None) -> dict[str, Any]:
    return {"round": number, "accuracy": accuracy, "model_sha256": f"sha-{number}"}


def client(name: str, server_round: int, accuracy: float) -> dict[str, Any]:
    return {"name": name, "round": server_round, "phase": "evaluate", "metrics": {"accuracy": accuracy}}


def new(path: Path, *, resume: bool = False) -> RunFolder:
    return RunFolder.create(path, {"run": RUN}, resume=resume)


def finish(folder: RunFolder) -> None:
    folder.finish(summarise(folder.rounds(), folder.clients(), RUN), {"w": np.zeros(2, np.float32)})


# ---------------------------------------------------------------- config.json and the name of a run


def test_a_new_folder_holds_its_config(tmp_path: Path) -> None:
    folder = new(tmp_path / "runs" / "a")
    config = folder.config()
    assert config["run"] == RUN
    assert config["seed"] == 7
    assert config["started"].endswith("+00:00")
    assert set(config["environment"]) == set(environment())
    assert [p.name for p in folder.path.iterdir()] == ["config.json"]  # no temporary file
    assert folder.rounds() == folder.clients() == []
    assert folder.result() is None


@pytest.mark.parametrize(
    ("keys", "used"),
    [({}, True), ({"device": "cuda"}, True), ({"device": "cpu"}, False), ({"portable": True}, False)],
)
def test_a_run_names_the_gpu_that_computes_it(
    keys: dict[str, Any], used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("task.numerics.devices.gpu_model", lambda: "NVIDIA H100 80GB HBM3")
    found = environment(keys)
    assert found["machine"].endswith(", NVIDIA H100 80GB HBM3") is used
    assert (found["processor"] == "NVIDIA H100 80GB HBM3") is used


def test_a_run_has_begun_once_there_is_something_to_lose(tmp_path: Path) -> None:
    folder = new(tmp_path / "a")
    new(tmp_path / "a")  # failed before its first round
    assert not folder.begun()
    folder.append_round(row(0, 0.1))
    assert folder.begun()
    (folder.path / "rounds.jsonl").unlink()
    (folder.path / "checkpoint").mkdir()
    assert not folder.begun()
    (folder.path / "checkpoint" / "latest.json").touch()
    assert folder.begun()
    assert not folder.finished()
    finish(folder)
    assert folder.finished()


def test_a_resume_keeps_the_start_and_the_rows(tmp_path: Path) -> None:
    first = new(tmp_path / "a")
    first.append_round(row(0, 0.1))
    started = first.config()["started"]
    for times in (1, 2):
        again = new(tmp_path / "a", resume=True)
        assert again.config()["started"] == started
        assert len(again.config()["resumed"]) == times
    assert len(again.rounds()) == 1


def test_a_lengthened_run_is_unfinished_from_its_next_round_on(tmp_path: Path) -> None:
    folder = new(tmp_path / "a")
    folder.append_round(row(0, 0.1))
    finish(folder)
    again = new(tmp_path / "a", resume=True)
    assert again.result() is not None  # still there if the resume fails
    again.append_round(row(1, 0.2))
    assert again.result() is None


def test_a_folder_that_cannot_be_made_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match='"runs-dir"'):
        new(tmp_path / "file" / "a")


# ---------------------------------------------------------------- the growing files


def test_truncate_cuts_back_to_the_checkpoint(tmp_path: Path) -> None:
    folder = new(tmp_path / "a")
    assert folder.offsets() == {"rounds": 0, "clients": 0}
    folder.append_round(row(0, 0.1))
    folder.append_clients([client("é \u2028", 0, 0.5), client("b", 0, 0.6)])
    folder.append_clients([])
    at, before = folder.offsets(), (folder.rounds(), folder.clients())
    folder.append_round(row(1, 0.2))
    with (folder.path / "clients.jsonl").open("a") as file:
        file.write('{"name": "half')
    folder.truncate(at)
    assert (folder.rounds(), folder.clients()) == before
    assert folder.offsets() == at
    folder.truncate({"rounds": 0, "clients": 0})
    assert folder.rounds() == folder.clients() == []


def test_truncate_refuses_files_that_are_not_those_of_the_checkpoint(tmp_path: Path) -> None:
    folder = new(tmp_path / "a")
    folder.append_round(row(0, 0.1))
    size = folder.offsets()["rounds"]
    for rounds, clients in ((size + 1, 0), (size - 1, 0), (size, 1)):
        with pytest.raises(StateError, match=r"\.jsonl: expected at least"):
            folder.truncate({"rounds": rounds, "clients": clients})
    assert folder.offsets()["rounds"] == size


@pytest.mark.parametrize("bad", ["{", "[1]", '{"loss": NaN}', "\ufffd", ""])
def test_a_damaged_line_is_named(tmp_path: Path, bad: str) -> None:
    folder = new(tmp_path / "a")
    folder.append_round(row(0, 0.1))
    with (folder.path / "rounds.jsonl").open("a") as file:
        file.write(bad + "\n")
    with pytest.raises(StateError, match=r"rounds\.jsonl, line 2: damaged"):
        folder.rounds()
    with pytest.raises(StateError, match="line 2"):
        folder.rounds(unfinished=True)  # a whole line is never a half-written one


def test_a_half_written_last_line_may_be_left_out(tmp_path: Path) -> None:
    folder = new(tmp_path / "a")
    folder.append_round(row(0, 0.1))
    with (folder.path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 1')
    with pytest.raises(StateError, match="line 2"):
        folder.rounds()
    assert len(folder.rounds(unfinished=True)) == 1


def test_json_is_strict() -> None:
    value = {"a": math.nan, "b": [np.float32(0.5), -math.inf, (1, True)], 3: np.arange(2), "p": Path("x")}
    text = to_json(value)
    assert text.count(b"\n") == 1
    assert json.loads(text) == {"a": None, "b": [0.5, None, [1, True]], "3": [0, 1], "p": "x"}
    assert json.loads(to_json({"name": "a\udcff"})) == {"name": "a\udcff"}


# ---------------------------------------------------------------- the end of a run


def test_equal_arrays_give_equal_files(tmp_path: Path) -> None:
    w, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.asarray(5, np.int64)
    for name, arrays in (("a", {"w": w, "b": b}), ("b", {"b": b, "w": np.asfortranarray(w)})):
        new(tmp_path / name).finish({"accuracy": math.nan}, arrays)
    first, second = (tmp_path / name / "model.safetensors" for name in "ab")
    assert first.read_bytes() == second.read_bytes()
    loaded = load_file(first)
    assert np.array_equal(loaded["w"], w)
    assert loaded["b"].shape == ()
    result = RunFolder(tmp_path / "a").result() or {}
    assert result["accuracy"] is None
    assert result.keys() - {"accuracy"} == {"processor", "portable", "kernels"}
    assert not [p for p in (tmp_path / "a").iterdir() if p.name.startswith(".")]


# ---------------------------------------------------------------- environment


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_environment_names_the_commit_of_tracked_code_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    monkeypatch.setattr(results, "_CODE", tmp_path)
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):  # as inside a hook of another checkout
        monkeypatch.delenv(name, raising=False)
    code = tmp_path / "server_app" / "results" / "folder.py"
    code.parent.mkdir(parents=True)
    code.write_text("1")
    git("init")
    assert environment()["git_commit"] is None  # a checkout, but not of this code
    git("add", ".")
    git("commit", "--no-verify", "-m", "x")
    found = environment()
    assert len(found["git_commit"]) == 40
    assert found["git_dirty"] is False
    code.write_text("2")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert environment()["git_dirty"] is True
    assert found["python"].startswith("3.")
    assert found["torch"]
