"""Modules of a user's own that seed or draw when they are imported, as scripts and notebooks do."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from task.datasets import load_dataset
from task.models import build_model
from task.numerics.arrays import sha256, state_of
from task.references import KEYS, as_imported, load_reference
from task.resolve.read import read_config
from tests.support.brought import imported_from

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 10)
    def forward(self, x):
        return self.fc(x.flatten(1))
"""
AT_IMPORT = """
import random
import numpy as np
{seeding}
model, order = Net(), (random.random(), np.random.rand(3))
"""
SEEDING = ["", "torch.manual_seed(3); np.random.seed(3); random.seed(3)"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with imported_from(tmp_path):
        yield tmp_path


def _model(reference: str) -> str:
    return sha256(state_of(build_model(reference, (1, 8, 8), 10, seed=1)))


@pytest.mark.parametrize("seeding", SEEDING)
def test_the_first_values_of_a_model_do_not_depend_on_what_its_module_draws(
    folder: Path, seeding: str
) -> None:
    (folder / "draws_no.py").write_text(NET)
    (folder / "draws_at_import.py").write_text(NET + AT_IMPORT.format(seeding=seeding))
    assert _model("draws_at_import:Net") == _model("draws_no:Net")
    assert _model("draws_at_import:Net") == _model("draws_no:Net")
    for name in ("draws_no", "draws_at_import"):
        del sys.modules[name]


@pytest.mark.parametrize("seeding", SEEDING)
def test_nor_on_what_modules_draw_that_are_imported_while_it_is_made(folder: Path, seeding: str) -> None:
    (folder / "draws_never.py").write_text(NET)
    (folder / "draws_deep.py").write_text(NET + AT_IMPORT.format(seeding=seeding))
    (folder / "draws_lazily.py").write_text("def Net():\n    from draws_deep import Net\n    return Net()\n")
    assert _model("draws_lazily:Net") == _model("draws_never:Net")


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("seeding", SEEDING)
def test_an_import_leaves_all_generators_as_they_were(folder: Path, key: str, seeding: str) -> None:
    name = f"draws_{key.replace('.', '_')}_{len(seeding)}"
    (folder / f"{name}.py").write_text(NET + AT_IMPORT.format(seeding=seeding))
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    load_reference(key, f"{name}:Net")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]


DATA = """
import numpy as np
import torch
{seeding}
def load():
    x = np.random.rand(40, 3).astype("float32") + torch.rand(40, 3).numpy()
    return x, np.arange(40) % 2, x[:4], np.arange(4) % 2
"""


@pytest.mark.parametrize("seeding", ["", "np.random.seed(7)\ntorch.manual_seed(7)"])
def test_data_that_draw_without_a_seed_are_the_same_in_every_process(
    folder: Path, seeding: str, tmp_path: Path
) -> None:
    found = []
    for number, drawn_before in enumerate((0, 5)):  # as in a process that has done something else before
        name = f"drawing_data_{len(seeding)}_{number}"
        (folder / f"{name}.py").write_text(DATA.format(seeding=seeding))
        np.random.rand(drawn_before)
        torch.rand(drawn_before)
        config = read_config({"dataset": f"{name}:load", "cache-dir": str(tmp_path / "cache")})
        data = load_dataset(config.data, config.synthetic, config.seeds.data)
        found.append(hashlib.sha256(np.ascontiguousarray(data.x).data).hexdigest())
    assert found[0] == found[1]
    if seeding:  # as the script alone would draw them
        np.random.seed(7)
        torch.manual_seed(7)
        x = np.random.rand(40, 3).astype("float32") + torch.rand(40, 3).numpy()
        assert hashlib.sha256(np.vstack([x, x[:4]]).data).hexdigest() == found[0]


def test_a_module_that_is_there_already_begins_with_the_same_seed(folder: Path) -> None:
    with as_imported("sys:path"):
        first = torch.rand(3)
    torch.rand(1)
    with as_imported("sys:path"):
        assert torch.equal(torch.rand(3), first)
