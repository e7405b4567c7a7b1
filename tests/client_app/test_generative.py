"""A variational autoencoder in a federation: its draws follow from seed, client and round alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from server_app.results.plots import samples
from server_app.results.samples import tiled, write_samples
from task.datasets.skew import load_partitioned
from task.models import build_model
from task.numerics.arrays import state_of
from task.resolve.read import read_config
from task.resolve.run_model import model_of
from tests.support.alike import the_same_on_any_nodes_and_resumed
from tests.support.federation import play

KEYS: dict[str, Any] = {
    "dataset": "digits", "model": "vae", "task": "reconstruction", "feature-skew": "styles",
    "num-clients": 5, "max-examples": 150, "local-test-fraction": 0.2, "fraction-train": 1.0,
    "fraction-evaluate": 1.0, "batch-size": 32, "learning-rate": 0.02, "num-server-rounds": 2,
    "device": "cpu",
}  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "model"), [("fedavg", "vae"), ("fedavg", "cvae"), ("fedper", "vae"), ("scaffold", "vae")]
)
def test_neither_model_nor_bounds_depend_on_the_nodes(algorithm: str, model: str, tmp_path: Path) -> None:
    keys = KEYS | {"algorithm": algorithm, "model": model}
    keys |= {"private-layers": "decoder"} if algorithm == "fedper" else {}
    whole = the_same_on_any_nodes_and_resumed(keys | {"state-dir": str(tmp_path)}, nodes=(1, 5))
    assert whole.rows[-1]["client_neg-iwae"] is not None


def test_another_training_seed_draws_other_codes() -> None:
    """Batches of all examples: nothing but the codes is drawn."""
    keys = KEYS | {"batch-size": 0, "fraction-evaluate": 0.0, "data-seed": 1, "model-seed": 1}
    hashes = [play(keys | {"train-seed": s}, nodes=1).rows[-1]["model_sha256"] for s in (1, 1, 2)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_one_client_of_fedavg_is_local_training() -> None:
    keys = KEYS | {"num-clients": 1, "feature-skew": "none"}
    hashes = [play(keys | {"algorithm": a}).rows[-1]["model_sha256"] for a in ("fedavg", "centralised")]
    assert hashes[0] == hashes[1]


def test_the_picture_has_images_reconstructions_and_samples(tmp_path: Path) -> None:
    config = read_config(KEYS)
    data, _ = load_partitioned(config)
    model = build_model("vae", data.input_shape, 10, seed=1)
    write_samples(tmp_path, model, state_of(model), data)
    (plot,) = samples(tmp_path / "samples.png")
    assert plot
    assert plot.size == (12 * 34, 3 * 34)  # pixels of 8x8 are enlarged to 32x32, and have a gap of 2
    assert plot.picture.startswith("data:image/png;base64,")
    other = tmp_path / "other"
    write_samples(other, build_model("mlp", data.input_shape, 10, seed=1), {}, data)
    write_samples(other, model, {}, data)  # the shared part of clients' own models
    assert not (other / "samples.png").exists()


def test_the_picture_of_a_conditional_model_has_a_row_for_each_client(tmp_path: Path) -> None:
    config = read_config(KEYS | {"model": "cvae"})
    data, _ = load_partitioned(config)
    model = model_of(config, data.input_shape, data.num_classes)
    with torch.no_grad():
        model.decoder[0].weight[:, 8:] *= 100  # what is drawn depends on the condition alone
    write_samples(tmp_path, model, state_of(model), data)
    picture = np.asarray(Image.open(tmp_path / "samples.png"))
    assert picture.shape == (7 * 34, 12 * 34, 3)
    rows = [picture[34 * r : 34 * r + 32].astype(int) for r in range(2, 7)]
    for r in range(5):
        assert np.abs(rows[r][:, :32] - rows[r][:, 34:66]).mean() < 10
        assert np.abs(rows[r] - rows[r - 1]).mean() > 50


def test_images_stand_where_they_belong() -> None:
    images = torch.zeros(2, 2, 1, 32, 32).numpy()
    images[1, 0] = 0.5
    grid = tiled(images)
    assert grid.shape == (68, 68, 3)
    assert np.unique(grid[34:66, :32]).tolist() == [128]
    assert not grid[:32, :32].any()
    assert not grid[34:66, 34:66].any()
