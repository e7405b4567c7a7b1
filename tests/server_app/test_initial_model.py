"""Start from a file: what is taken, what is named, what is refused, and that a resume reads none."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from server_app.run.initial_model import KEY
from task.errors import ConfigError
from task.models.model_file import load
from task.resolve.read import read_config
from tests.server_app.test_app import go

SHARED = {
    "w": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float32), "count": np.zeros((), np.int64)
}  # fmt: skip
GIVEN = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float32), "count": np.array(4)
}  # fmt: skip


def read(path: Path, *, strict: bool = True, private: tuple[str, ...] = ()) -> Any:
    return load(KEY, str(path), SHARED, private, strict=strict)


def saved(tmp_path: Path, given: dict[str, Any]) -> Path:
    save_file(given, tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


@pytest.mark.parametrize("form", ["safetensors", "pt", "lightning.pth", "half.pt"])
def test_the_values_of_the_file_are_taken(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"m.{form}"
    tensors = {n: torch.tensor(a) for n, a in GIVEN.items()}
    if form == "safetensors":
        save_file(GIVEN, path)
    elif form == "half.pt":
        torch.save({n: t.bfloat16() if t.is_floating_point() else t for n, t in tensors.items()}, path)
    else:
        torch.save({"state_dict": tensors, "epoch": 3} if "lightning" in form else tensors, path)
    arrays, loaded = read(path)
    for name, a in GIVEN.items():
        assert np.array_equal(arrays[name], a)
        assert arrays[name].dtype == SHARED[name].dtype
    assert loaded.misfits() == []


def test_what_does_not_fit_is_named_and_the_rest_taken_if_one_says_so(tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": GIVEN["w"], "b": np.ones(3, np.float32), "extra": np.ones(1, np.float32)})
    wanted = ["missing: count", "unexpected: extra", "differing: b (expected float32 [2], got float32 [3])"]
    with pytest.raises(ConfigError) as refused:
        read(path)
    assert all(text in str(refused.value) for text in [*wanted, "initial-model-strict"])
    arrays, loaded = read(path, strict=False)
    assert np.array_equal(arrays["w"], GIVEN["w"])
    assert np.array_equal(arrays["b"], SHARED["b"])
    assert loaded.misfits() == wanted
    assert loaded.tensors == ["w"]


def test_a_clients_private_part_is_no_misfit_and_not_used(tmp_path: Path) -> None:
    path = saved(tmp_path, {**GIVEN, "head": np.ones(1, np.float32)})
    arrays, loaded = read(path, private=("head", "other"))
    assert "head" not in arrays
    assert loaded.private == ["head"]


class Evil:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("evil-was-here"),)


def test_no_code_of_a_file_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle may hold any call; a file of a stranger would own the server."""
    monkeypatch.chdir(tmp_path)
    torch.save({"w": Evil()}, tmp_path / "m.pt")
    with pytest.raises(ConfigError, match="state dict"):
        read(tmp_path / "m.pt")
    (tmp_path / "old.pt").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ConfigError, match="state dict"):
        read(tmp_path / "old.pt")
    assert not (tmp_path / "evil-was-here").exists()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("m.safetensors", b"nonsense", "cannot be read"),
        ("m.pt", b"nonsense", "expected a state dict"),
        ("ca.key", b"-----BEGIN", r"ends in \.safetensors"),
        ("gone.pt", None, "does not exist"),
    ],
)
def test_what_is_no_model_is_refused(name: str, content: bytes | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=said) as refused:
        read(tmp_path / name)
    assert "BEGIN" not in str(refused.value)


def test_a_model_that_has_diverged_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="finite numbers in 'b'"):
        read(saved(tmp_path, {**GIVEN, "b": np.array([1, np.nan], np.float32)}))


def test_a_run_goes_on_where_another_ended_and_a_resume_reads_no_file(tmp_path: Path) -> None:
    """Two rounds from the first run's model begin with its accuracy; a resume ends as one go does."""
    first = go(tmp_path)
    file = tmp_path / "start.safetensors"
    file.write_bytes((first / "model.safetensors").read_bytes())
    second = go(tmp_path, run_name="second", initial_model=str(file))
    rows = [json.loads(line) for line in (first / "rounds.jsonl").read_text().splitlines()]
    begun = json.loads((second / "rounds.jsonl").read_text().splitlines()[0])
    assert begun["accuracy"] == rows[-1]["accuracy"]
    assert begun["model_sha256"] == rows[-1]["model_sha256"]
    assert json.loads((second / "config.json").read_text())["initial_model"]["missing"] == []
    whole = go(tmp_path, run_name="third", initial_model=str(file), num_server_rounds=3)
    file.unlink()
    longer = go(tmp_path, run_name="second", initial_model=str(file), num_server_rounds=3, resume=True)
    assert (longer / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert "initial_model" in json.loads((longer / "config.json").read_text())


def test_a_resume_before_the_first_checkpoint_wants_the_same_file(tmp_path: Path) -> None:
    """It begins again: from the drawn model, or another file, it would end elsewhere."""
    first = go(tmp_path)
    file = tmp_path / "start.safetensors"
    file.write_bytes((first / "model.safetensors").read_bytes())
    second = go(tmp_path, run_name="second", initial_model=str(file))
    wanted = (second / "model.safetensors").read_bytes()
    for made in (second / "checkpoint").iterdir():
        made.unlink()
    again = go(tmp_path, run_name="second", initial_model=str(file), resume=True)
    assert (again / "model.safetensors").read_bytes() == wanted
    for made in (second / "checkpoint").iterdir():
        made.unlink()
    save_file({n: a + 1 for n, a in load_file(file).items()}, file)
    with pytest.raises(ConfigError, match="the file that the run started with"):
        go(tmp_path, run_name="second", initial_model=str(file), resume=True)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"algorithm": "local-only", "initial-model": "m.pt"}, "never sent"),
        ({"algorithm": "fedala", "initial-model": "m.pt"}, "mix"),
        ({"ala": True, "initial-model": "m.pt"}, '"ala"'),
        ({"initial-model-strict": False}, '"initial-model-strict"'),
    ],
)
def test_where_the_file_would_not_be_the_clients_start_it_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_config(keys)
    assert said in str(refused.value)
