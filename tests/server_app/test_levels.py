"""What a run of several widths leaves: accuracy and parameters of each level."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from server_app.results.headline import headline
from task.datasets import load_dataset
from task.models.family import Levels
from task.resolve.read import read_config
from tests.server_app.test_app import go


@pytest.mark.parametrize("scheme", ["nested", "rolling"])
def test_each_level_is_measured_as_the_part_that_its_clients_have_next(scheme: str, tmp_path: Path) -> None:
    keys = {"model": "mlp", "width.levels": "1,0.25", "width.scheme": scheme, "fraction-evaluate": 0.0}
    folder = go(tmp_path, **keys)
    result = json.loads((folder / "result.json").read_text())
    wide, narrow = result["levels"]
    assert wide["accuracy"] == result["accuracy"]
    assert (wide["width"], wide["parameters"]) == (1, 64 * 64 + 64 + 10 * 64 + 10)
    assert (narrow["width"], narrow["parameters"]) == (0.25, 16 * 64 + 16 + 10 * 16 + 10)
    levels = Levels((1.0, 0.25), (0.5, 0.5), 1)
    have = Counter(levels.of(name) for name in (f"client-{i}" for i in range(10)))
    assert [wide["clients"], narrow["clients"]] == [have[1.0], have[0.25]]

    config = read_config({})
    data = load_dataset(config.data, config.synthetic, 1)
    x = data.inputs(data.test_rows).numpy().reshape(-1, 64)
    kept = np.arange(16) + (2 if scheme == "rolling" else 0)  # after two rounds
    w = load_file(folder / "model.safetensors")
    h = np.maximum(x @ w["1.weight"][kept].T + w["1.bias"][kept], 0)
    found = np.argmax(h @ w["3.weight"][:, kept].T + w["3.bias"], axis=1)
    assert narrow["accuracy"] == pytest.approx(np.mean(found == data.y[data.test_rows]), abs=1e-9)
    assert narrow["accuracy"] != wide["accuracy"]
    text = dict(headline(result))["Width 0.25"]
    assert text == f"{narrow['accuracy']:.3f}, 1,210 parameters, {have[0.25]} clients"


def test_a_run_of_one_size_has_no_levels(tmp_path: Path) -> None:
    assert "levels" not in json.loads((go(tmp_path) / "result.json").read_text())
