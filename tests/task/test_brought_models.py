"""Models that a user brings: how the callable is called, and what is refused before round 1."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from task.errors import ConfigError
from task.models import build_model
from task.models.brought import find_maker
from task.resolve.model_checks import check_model
from task.resolve.read import read_config
from task.resolve.run_model import model_of
from tests.support.brought import imported_from

HEAD = """
import torch
from torch import nn
import numpy as np

class Flat(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.fc1 = nn.Linear(64, 8)
        self.fc2 = nn.Linear(8, num_classes)
    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))
"""


_NUMBERS = itertools.count()  # of modules: Python keeps those that it has imported


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with imported_from(tmp_path):
        yield tmp_path


def _check(folder: Path, code: str, shape: tuple[int, ...] = (1, 8, 8), **keys: object) -> nn.Module:
    name = f"made_{next(_NUMBERS)}"
    (folder / f"{name}.py").write_text(HEAD + code)
    config = read_config({"model": f"{name}:Net", **keys})
    check_model(config, shape, 10)
    return model_of(config, shape, 10)


@pytest.mark.parametrize(
    "code",
    [
        "Net = Flat",
        "def Net(): return Flat((1, 8, 8), 10)",
        "def Net(shape, classes): return Flat(shape, classes)",
        "def Net(num_classes, hidden=8): return Flat(None, num_classes)",
        "def Net(**options): return Flat(None, 10)",
        "class Net(Flat):\n    def __init__(self, *, num_classes, input_shape): super().__init__(None, 10)",
    ],
)
def test_ways_to_be_called_make_the_same_model_of_the_same_seed(folder: Path, code: str) -> None:
    made = _check(folder, code, seed=5).state_dict()
    (folder / "made_flat.py").write_text(HEAD)
    again = build_model("made_flat:Flat", (1, 8, 8), 10, 5).state_dict()
    assert all(torch.equal(made[n], again[n]) for n in again)


def test_a_default_of_its_own_is_not_taken_for_the_shape(folder: Path) -> None:
    # Called in order, hidden=64 and depth=2 would become (1, 8, 8) and 10.
    made = _check(
        folder,
        "class Net(Flat):\n    def __init__(self, hidden=64, depth=2):\n        super().__init__(None, 10)\n"
        "        assert (hidden, depth) == (64, 2)",
    )
    assert isinstance(made, nn.Module)


@pytest.mark.parametrize("taken", ["options.pop('num_classes', 1000)", "options['num_classes']"])
def test_a_maker_with_options_gets_the_number_of_classes_if_it_takes_it(folder: Path, taken: str) -> None:
    """As torchvision's models do, which have 1,000 classes without."""
    made = _check(folder, f"def Net(*, weights=None, **options): return Flat(None, {taken})")
    assert made.get_submodule("fc2").weight.shape == (10, 8)


def test_a_call_in_vain_draws_nothing(folder: Path) -> None:
    drawn = "int(torch.rand(1)) + ten(**options)"
    code = f"def ten(): return 10\ndef Net(**options): return Flat(None, {drawn})"
    made = _check(folder, code, seed=5).state_dict()
    again = _check(folder, code.replace("(**options)", "()"), seed=5).state_dict()
    assert all(torch.equal(made[n], again[n]) for n in again)


def test_torchvisions_resnet_is_trained_by_its_name() -> None:
    config = read_config({"model": "torchvision.models:resnet18"})
    check_model(config, (3, 32, 32), 7)
    assert model_of(config, (3, 32, 32), 7).get_submodule("fc").weight.shape == (7, 512)


def test_a_tensor_that_forward_uses_twice_is_trained(folder: Path) -> None:
    """One way to tie weights; `tests.task.test_frozen_models` has the other."""
    _check(
        folder,
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.words = nn.Embedding(10, 8)\n        self.body = nn.Linear(64, 8)\n"
        "    def forward(self, x):\n"
        "        return nn.functional.linear(self.body(x.flatten(1)), self.words.weight)",
    )


def test_lazy_layers_and_single_examples(folder: Path) -> None:
    model = _check(
        folder,
        "def Net():\n    return nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.BatchNorm1d(8), nn.ReLU(), "
        "nn.Linear(8, 10))",
    )
    norm = model[2]
    assert isinstance(norm, nn.BatchNorm1d)
    model.train()
    model(torch.ones(1, 1, 8, 8))
    assert norm.num_batches_tracked == 0  # one example has no variance: as in evaluation
    # Maps of one pixel, too; two examples of them move the statistics.
    small = _check(
        folder,
        "def Net():\n    return nn.Sequential(nn.Conv2d(1, 4, 8), nn.BatchNorm2d(4), nn.Flatten(), "
        "nn.Linear(4, 10))",
    ).train()
    small(torch.ones(1, 1, 8, 8))
    assert small[1].num_batches_tracked == 0
    small(torch.ones(2, 1, 8, 8))
    assert small[1].num_batches_tracked == 1


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("Net = Flat(None, 10)", "returns a torch.nn.Module; got Flat; give the class or a function"),
        ("Net = 3", r"a callable .*; got int"),
        ("def Net(a): return Flat(None, 10)", r"arguments \(input_shape, num_classes\) or none; got \(a\)"),
        ("def Net(a, b, c): ...", r"got \(a, b, c\)"),
        ("def Net(num_classes, other): ...", r"got \(num_classes, other\)"),
        ("def Net(): return 1 / 0", r"got an error: ZeroDivisionError: .* \(made_\d+.py, line 13\)"),
        ("def Net(): return None", r"Module; got NoneType"),
        ("def Net(): return Flat(None, 7)", r"outputs \[1, 10\] for inputs \[1, 1, 8, 8\] .*; got \[1, 7\]"),
        ("def Net(): return Flat(None, 10).double()", "where they are trained; got float64 in 'fc1.weight'"),
        ("def Net(): return Flat(None, 10).half()", "where they are trained; got float16 in 'fc1.weight'"),
        (
            "class Net(Flat):\n    def forward(self, x): y = super().forward(x); return {'a': y, 'b': y}",
            "a tensor, or a dict .*; got dict of a, b",
        ),
        ("class Net(Flat):\n    def forward(self, x): return super().forward(x).double()", "got float64"),
        ("def Net(): return nn.Sequential(nn.Linear(9, 10))", r"float32\[1, 1, 8, 8\]; got an error: R"),
        (
            "class Net(Flat):\n    def __init__(self):\n        super().__init__(None, 10)\n"
            "        self.fc3 = nn.Linear(8, 3)",
            r"a gradient for every parameter; got none for fc3.weight, fc3.bias, on which",
        ),
        ("class Net(Flat):\n    def forward(self, x): return super().forward(x).detach()", "none for fc1"),
        (
            "class Net(Flat):\n    def __init__(self):\n        super().__init__(None, 10)\n"
            "        self.words = nn.Embedding(10, 8)\n"
            "        self.words.weight = nn.Parameter(self.fc2.weight.data)",
            r"two, 'fc2.weight' and 'words.weight', in one memory. Tie them by giving one parameter",
        ),
        ("def Net(): return nn.Flatten()", "parameters to train; got none"),
        (
            "class Net(Flat):\n    def forward(self, x):\n        return super().forward(x).softmax(1)",
            'logits; the loss applies the softmax; got probabilities; .* or bring a "loss" for them',
        ),
        (
            "class Net(Flat):\n    def forward(self, x):\n"
            "        return super().forward(nn.functional.dropout(x))",
            "follow from the inputs alone; got others at a second call; F.dropout needs training=self.train",
        ),
        (
            "class Net(Flat):\n    calls = 0\n    def forward(self, x):\n        self.calls += 1\n"
            "        return super().forward(x) * self.calls",
            "what a call leaves in the model must not change the next one",
        ),
        (
            "class Net(Flat):\n    def forward(self, x):\n        return super().forward(x.sub_(0.5))",
            "leaves its inputs as they are, since they are measured again; got one that writes into them",
        ),
        (
            "def Net(): return nn.Sequential(nn.Flatten(), nn.ReLU(inplace=True), nn.Linear(64, 10))",
            "writes into them; make it x = x - 0.5 in place of x -= 0.5, and inplace=False in the first",
        ),
        (
            "def Net():\n    m = Flat(None, 10)\n    m.fc1.weight.data += np.random.rand()\n    return m",
            "the run's seed.* alone; got others at a second call in 'fc1.weight'",
        ),
        (
            "class Net(Flat):\n    def __init__(self):\n        super().__init__(None, 10)\n"
            "        self.register_buffer('seen', torch.zeros(1), persistent=False)\n"
            "    def forward(self, x):\n        self.seen += self.training\n"
            "        return super().forward(x)",
            "'seen' with persistent=False, which would pass from one client to the next",
        ),
        (
            "class Norm(nn.BatchNorm1d): ...\n"
            "def Net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), Norm(10))",
            "train on a single example, as a client's last batch may be one; got an error",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_refused(folder: Path, code: str, words: str) -> None:
    with pytest.raises(ConfigError, match=rf'(?s)"model": "made_\d+:Net": expected .*{words}'):
        _check(folder, code)


def test_a_loss_of_ones_own_may_take_probabilities(folder: Path) -> None:
    code = "class Net(Flat):\n    def forward(self, x):\n        return super().forward(x).softmax(1)"
    model = _check(folder, code, loss="losses:of_probabilities")
    assert model(torch.ones(1, 1, 8, 8)).sum().item() == pytest.approx(1)


LATE = """
class Net(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.head = nn.Linear(8, num_classes)
        self.body = nn.Linear(64, 8)
    def forward(self, x):
        return self.head(torch.relu(self.body(x.flatten(1))))
"""


@pytest.mark.parametrize(("algorithm", "key"), [("fedper", "personal.layers"), ("fedala", "fedala.layers")])
def test_layers_that_are_declared_in_another_order_than_they_run(
    folder: Path, algorithm: str, key: str
) -> None:
    # fedper would keep the body at the clients and share the head, without a word.
    with pytest.raises(ConfigError, match=f'"{key}" = 1 .*; got body as the last to be .* and head as'):
        _check(folder, LATE, algorithm=algorithm)


def test_private_layers_by_name_need_no_order(folder: Path) -> None:
    _check(folder, LATE, algorithm="fedper", **{"private-layers": "head"})


@pytest.mark.parametrize("algorithm", ["moon", "fenda"])
def test_algorithms_that_need_a_last_linear_layer_find_it_or_say_so(folder: Path, algorithm: str) -> None:
    _check(folder, LATE, algorithm=algorithm)
    with pytest.raises(ConfigError, match=r"(MOON|FENDA) needs|as MOON needs one"):
        _check(
            folder,
            "class Net(Flat):\n    def forward(self, x): return 2 * super().forward(x)",
            algorithm=algorithm,
        )


def test_fenda_takes_the_whole_model_in_front_of_the_last_layer(folder: Path) -> None:
    model = _check(folder, LATE, algorithm="fenda")
    names = {n for n, _ in model.named_parameters()}
    parts = {f"{part}.body.{kind}" for part in ("shared", "local") for kind in ("weight", "bias")}
    assert names == parts | {"head.weight", "head.bias"}
    assert model.head.in_features == 16


def test_fsvrg_sparse_takes_a_chain_that_is_linear_in_the_features(folder: Path) -> None:
    keys = {"algorithm": "fsvrg-sparse"}
    _check(folder, "def Net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))", **keys)
    with pytest.raises(ConfigError, match=r"linear in the features, as fsvrg-sparse .*; got Flat"):
        _check(folder, "Net = Flat", **keys)


def test_a_package_of_ours_and_a_missing_module_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match='"task" is a package of Bouquet'):
        read_config({"model": "task:Small"})
    with pytest.raises(ConfigError, match='expected module "net_none"'):
        find_maker("net_none:Small")


def test_building_leaves_the_generators_of_torch_and_numpy_as_they_were(folder: Path) -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    _check(folder, "class Net(Flat):\n    def forward(self, x):\n        x = nn.functional.dropout(x, 0.5, "
           "self.training)\n        return super().forward(x)")  # fmt: skip
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()


@pytest.mark.parametrize(
    ("code", "got"),
    [
        ("return (z, z) if self.training else z", "tuple"),
        ("return {'out': z} if self.training else z", "dict"),
        ("return z[:, :5] if self.training else z", r"\[2, 5\]"),
    ],
)
def test_outputs_of_another_form_in_training_are_refused(folder: Path, code: str, got: str) -> None:
    net = f"class Net(Flat):\n    def forward(self, x):\n        z = super().forward(x)\n        {code}"
    words = rf'"model": "made_.*": expected outputs \[2, 10\], a tensor, in training, too; got {got}$'
    with pytest.raises(ConfigError, match=words):
        _check(folder, net)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def Net(): return torch.jit.script(Flat(None, 10))", "a TorchScript module; give the class"),
        ("def Net(): return Flat(None, 10).to('meta')", r'a model on the CPU.*"device"\); got one on meta'),
    ],
)
def test_a_model_that_a_run_cannot_copy_or_move_is_refused(folder: Path, code: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _check(folder, code)


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("__main__:Net", "a module that every process of the run can import.*such as net.py"),
        ("net.py:Net", 'without .py; got "net.py:Net". Say "net:Net"'),
        ("hf:Net", "called hf another name"),
    ],
)
def test_a_reference_to_no_module_says_what_to_write(reference: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_config({"model": reference})
