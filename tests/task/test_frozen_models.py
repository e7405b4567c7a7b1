"""Which tensors of a model travel: trained parameters and moving buffers; tied ones once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

from task.errors import ConfigError
from task.models.frozen import check_trained, freeze, mark, thaw, use
from task.numerics.arrays import BFLOAT16, array_of, frozen_in, sha256, state_of, ties_of
from task.numerics.tensors import load_into, tensor_of
from task.storage.files import read_safetensors, write_safetensors
from task.wire import messages as wire


class Factors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lora_A, self.lora_B = nn.Linear(4, 2), nn.Linear(2, 4)


class Net(nn.Module):
    """A frozen stem with statistics, two blocks of low-rank factors, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.stem.requires_grad_(False)
        self.blocks = nn.ModuleList([Factors(), Factors()])
        self.classifier = nn.Linear(4, 3)
        self.register_buffer("ids", torch.arange(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block.lora_B(block.lora_A(x))
        out: torch.Tensor = self.classifier(x)
        return out


class Still(Net):
    """One whose stem stays in evaluation mode."""

    def train(self, mode: bool = True) -> Still:
        super().train(mode)
        self.stem.eval()
        return self


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 3)
        self.body = nn.Linear(3, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(self.words(x)))
        return out


STATISTICS = ["stem.1.running_mean", "stem.1.running_var", "stem.1.num_batches_tracked"]


def travelling(model: nn.Module, *patterns: str) -> list[str]:
    """Return the names that travel, in the model's order."""
    freeze(model, patterns)
    mark("net", model, torch.randn(3, 4))
    return [name for name in state_of(model) if name not in frozen_in(model)]


def test_only_what_a_pattern_names_is_trained_and_statistics_move_all_the_same() -> None:
    model = Net()
    found = travelling(model, "*lora*", "classifier.w*")
    factors = [f"blocks.{i}.lora_{f}.{p}" for i in "01" for f in "AB" for p in ("weight", "bias")]
    assert found == [*STATISTICS, *factors, "classifier.weight"]
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {*found} - {*STATISTICS}


def test_a_layer_in_evaluation_mode_moves_nothing() -> None:
    assert not {*STATISTICS} & {*travelling(Still())}


@pytest.mark.parametrize("kind", [Net, Still])
def test_the_trial_of_buffers_leaves_the_model_as_it_was(kind: type[Net]) -> None:
    model = kind().train()
    modes, before = [m.training for m in model.modules()], state_of(model)
    travelling(model)
    assert [m.training for m in model.modules()] == modes
    assert sha256(state_of(model)) == sha256(before)


def test_without_a_trial_all_buffers_may_move() -> None:
    model = Net()
    mark("net", model, None)
    stem = ("stem.0.weight", "stem.0.bias", "stem.1.weight", "stem.1.bias")
    assert frozen_in(model) == stem
    mark("net", model, torch.randn(3, 5))  # which it cannot read
    assert frozen_in(model) == stem


def test_a_pattern_for_nothing_is_refused_with_the_five_nearest_names() -> None:
    with pytest.raises(ConfigError) as refused:
        freeze(Net(), ["*lora*", "clasifier*"])
    text = str(refused.value)
    assert 'got "clasifier*", which names none of 14' in text
    nearest = text.partition("nearest are ")[2].split(", ")
    assert len(nearest) == 5
    assert sorted(nearest[:2]) == ["classifier.bias", "classifier.weight"]


def test_a_pattern_that_trains_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"code freezes, such as 'stem.0.weight' \(requires_grad = False\)"):
        freeze(Net(), ["class*", "stem*"])


def test_tied_weights_have_one_name_and_go_by_any_of_them() -> None:
    model = Tied()
    assert ties_of(model) == {"head.weight": "words.weight"}
    assert list(state_of(model)) == ["words.weight", "body.weight", "body.bias"]
    freeze(model, ["head*"])
    assert [n for n, p in model.named_parameters() if p.requires_grad] == ["words.weight"]
    load_into(model, {n: a + 1 for n, a in state_of(Tied()).items()})
    assert model.head.weight is model.words.weight


def test_trained_parameters_need_float32_and_frozen_ones_do_not() -> None:
    model = Net()
    model.blocks.bfloat16()
    with pytest.raises(ConfigError, match=r"bfloat16 in 'blocks.0.lora_A.weight'; use .float\(\) for it, or"):
        check_trained("net", model)
    freeze(model, ["classifier*"])
    check_trained("net", model)
    model.stem.bfloat16()
    with pytest.raises(ConfigError, match=r"bfloat16 in 'stem.1.running_mean'; use .float"):
        mark("net", model, None)


def test_bfloat16_keeps_its_bits_in_hash_message_and_file(tmp_path: Path) -> None:
    tensor = torch.tensor([[1.0, -0.0, 3.140625], [float("inf"), 1e-40, -2.5e38]]).bfloat16()
    array = array_of(tensor)
    assert array.dtype == BFLOAT16
    assert array.tobytes() == tensor.view(torch.int16).numpy().tobytes()
    assert torch.equal(tensor_of(array), tensor)
    arrays = {"half": array, "whole": np.arange(3.0), "one": array_of(tensor[0, 0])}
    sent = wire.read_arrays(wire.pack_arrays(arrays))
    assert sha256(sent) == sha256(arrays)
    write_safetensors(tmp_path / "f.safetensors", arrays, {"a": "b"})
    about, found = read_safetensors(tmp_path / "f.safetensors")
    assert (about, sha256(found)) == ({"a": "b"}, sha256(arrays))
    with safe_open(tmp_path / "f.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("half"), tensor)


def test_a_module_uses_a_frozen_part_in_place_but_for_buffers() -> None:
    """So that a frozen part is in memory once, and a buffer that moves after all does not change it."""
    model = Net()
    travelling(model)
    part = {n: a.copy() for n, a in state_of(model).items() if n in frozen_in(model)}
    part["stem.0.weight"][:] = 7
    use(model, part)
    assert model.stem[0].weight.data_ptr() == part["stem.0.weight"].ctypes.data
    model.ids += 1
    assert part["ids"].tolist() == [0, 1, 2, 3]


def test_loading_leaves_out_what_is_frozen_and_nothing_else() -> None:
    model = Net()
    names = travelling(model)
    given = {n: np.asarray(a + 1) for n, a in state_of(model).items() if n in names}
    load_into(model, given)
    assert sha256({n: state_of(model)[n] for n in names}) == sha256(given)
    with pytest.raises(KeyError, match=r"classifier.bias"):
        load_into(model, {n: a for n, a in given.items() if n != "classifier.bias"})
    with pytest.raises(KeyError, match=r"ids"):
        load_into(thaw(model), given)


@pytest.mark.filterwarnings("error")
def test_a_read_only_array_is_a_tensor_in_its_memory() -> None:
    for array in (np.arange(6.0).reshape(2, 3), array_of(torch.ones(3).bfloat16()), np.array(2), np.zeros(0)):
        array.flags.writeable = False
        tensor = tensor_of(array)
        assert tensor.data_ptr() == array.ctypes.data or not array.size
        assert sha256({"": array_of(tensor)}) == sha256({"": array})
