"""Where processes compute, and that float32 means float32 there."""

import pytest
import torch

from task.errors import ConfigError
from task.numerics.devices import evaluation_device, gpu_model, training_device


@pytest.fixture(autouse=True)
def _flags(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("allow_tf32", "deterministic"):
        monkeypatch.setattr(torch.backends.cudnn, name, getattr(torch.backends.cudnn, name))


def test_a_gpu_that_is_not_there_is_refused_to_clients_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match='"device": expected a CUDA GPU'):
        training_device("cuda")
    for wanted in ("auto", "cuda", "cpu"):
        assert evaluation_device(wanted).type == "cpu"
    assert training_device("auto").type == "cpu"


@pytest.mark.parametrize("device_of", [training_device, evaluation_device])
def test_one_that_is_there_computes_in_float32(monkeypatch: pytest.MonkeyPatch, device_of: type) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = True, False
    assert device_of("cpu").type == "cpu"
    assert device_of("auto", portable=True).type == "cpu"
    assert torch.backends.cudnn.allow_tf32
    assert [device_of(d).type for d in ("auto", "cuda")] == ["cuda", "cuda"]
    assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.deterministic


def test_a_machine_without_a_gpu_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert gpu_model() == ""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert gpu_model() != ""
