"""New images of a run's model: the distances by hand, what changes none of them, and what is refused."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from server_app.cli.takeout import app
from server_app.takeout.distances import density_and_coverage, frechet, nearness
from server_app.takeout.model import TakenModel
from server_app.takeout.result import RunResult
from server_app.takeout.samples import Judge, judge, npz
from task.datasets.skew import load_partitioned
from task.errors import ConfigError
from task.resolve.model_card import card_of
from task.resolve.read import read_config
from task.resolve.run_model import model_of
from tests.server_app.test_takeout import trained

KEYS: dict[str, Any] = {
    "dataset": "digits", "model": "cvae", "task": "reconstruction", "feature-skew": "styles",
    "num-clients": 5, "max-examples": 300,
}  # fmt: skip


def drawn(n: int, d: int, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + rng.normal(size=d)


def fresh(**keys: Any) -> TakenModel:
    """Return the untrained model of a run."""
    config = read_config(KEYS | keys)
    data, _ = load_partitioned(config)
    model = model_of(config, data.input_shape, data.num_classes).eval()
    return TakenModel(card_of(config, data.input_shape, data.num_classes, data), model, config)


def test_frechet_of_two_gaussians_with_diagonal_covariances_by_hand() -> None:
    """Axis by axis it is (mu_1 - mu_2)^2 + (s_1 - s_2)^2."""
    # four points: mean 0, variances 2 a^2 / 3 and 2 b^2 / 3, covariance 0
    cross = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    first, second = cross * [3.0, 6.0], cross * [6.0, 3.0] + [2.0, -1.0]
    by_hand = 2.0**2 + 1 + 2 * (2 / 3) * (6 - 3) ** 2
    assert frechet(first, second) == pytest.approx(by_hand)
    numbers = np.array([[0.0], [2.0]]), np.array([[5.0], [11.0]])
    assert frechet(*numbers) == pytest.approx(7**2 + (18**0.5 - 2**0.5) ** 2)


def test_frechet_of_covariances_that_do_not_commute_is_that_of_the_matrix_square_root() -> None:
    """scipy's square root of the product, which is not symmetric, is another way to the same number."""
    from scipy.linalg import sqrtm

    a, b = drawn(60, 5, 1), drawn(70, 5, 2)
    one, two = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    shift = a.mean(0) - b.mean(0)
    wanted = shift @ shift + np.trace(one + two - 2 * sqrtm(one @ two).real)
    assert frechet(a, b) == pytest.approx(wanted)


def test_frechet_is_symmetric_and_does_not_change_under_a_turn_a_shift_or_another_order() -> None:
    a, b = drawn(60, 5, 1), drawn(70, 5, 2)
    turn = np.linalg.qr(drawn(5, 5, 3))[0]
    there = frechet(a, b)
    assert frechet(a, a[::-1]) == pytest.approx(0, abs=1e-9 * there)
    assert frechet(b, a) == pytest.approx(there)
    assert frechet(a @ turn + 7, b @ turn + 7) == pytest.approx(there)
    assert frechet(3 * a, 3 * b) == pytest.approx(9 * there)
    # fewer rows than features: the covariances are singular
    assert frechet(a[:3], a[:3]) == pytest.approx(0, abs=1e-6)


def test_density_and_coverage_by_hand() -> None:
    """k = 1: balls of 1, 1 and 2 around 0, 1 and 3; 0.4 is in the first two, 4 in the last, 10 in none."""
    real = np.array([[0.0], [1.0], [3.0]])
    assert density_and_coverage(real, np.array([[0.4], [10.0]]), 1) == pytest.approx((2 / 2, 2 / 3))
    assert density_and_coverage(real, np.array([[0.4], [0.4], [4.0]]), 1) == pytest.approx((5 / 3, 1))
    assert density_and_coverage(real, np.array([[0.4]]), 2) == pytest.approx((3 / 2, 1))  # balls of 3, 2, 3


def test_what_is_drawn_from_one_mode_has_density_without_coverage() -> None:
    rng = np.random.default_rng(1)
    modes = np.repeat([[0.0, 0.0], [50.0, 0.0]], 200, 0)
    real, alike = (modes + rng.normal(size=modes.shape) for _ in range(2))
    same, one = nearness(real, alike), nearness(real, rng.normal(size=(400, 2)))
    assert same.coverage == pytest.approx(1 - 0.5**5, abs=0.03)  # no neighbour among five is a generated one
    assert same.density == pytest.approx(1, abs=0.1)
    assert one.coverage == pytest.approx(0.5, abs=0.02)
    assert one.density == pytest.approx(1, abs=0.1)
    assert one.frechet > 100 * same.frechet


def test_new_images_are_compared_in_features_that_follow_from_the_classifiers_seed() -> None:
    taken = fresh()
    first, again, other = judge(taken), judge(taken), judge(taken, classifier_seed=2)
    assert first.report() == again.report()
    assert first.images.shape == (270, 1, 8, 8)  # as many as clients train on; the test set has more
    assert set(first.conditions) == {f"client-{k}" for k in range(5)}
    assert np.array_equal(other.images, first.images)
    assert other.floor != first.floor
    assert first.accuracy > 0.7
    assert first.model.frechet > 10 * first.floor.frechet
    assert first.floor.coverage > 0.9 > 0.5 > first.model.coverage  # nothing was learnt
    moved = judge(taken, seed=1)
    assert moved.floor == first.floor
    assert not np.array_equal(moved.images, first.images)
    found = np.load(BytesIO(npz(first)))
    assert np.array_equal(found["x"], first.images)
    assert found["condition"].tolist() == list(first.conditions)


def test_a_model_that_draws_its_own_training_images_is_as_near_as_the_floor() -> None:
    """Whatever the decoder is, real images in place of its own get what real images get."""
    taken = fresh(model="vae")
    data, clients = load_partitioned(taken.config)
    rows = np.concatenate([clients.train(k) for k in range(5)])
    images = data.inputs(rows)
    taken.model.sample = lambda count, seed, given: images[torch.randperm(len(rows))[:count]].flatten(1)  # type: ignore[operator]
    found = judge(taken)
    assert not found.conditions
    assert found.model.frechet < 3 * found.floor.frechet
    assert found.model.coverage > 0.9
    features = Judge(data, rows, 1).features(images)
    assert features.shape == (len(rows), 64)
    assert (features >= 0).all()


def test_the_command_prints_and_files_the_measures(tmp_path: Path) -> None:
    folder = trained(tmp_path, model="vae", task="reconstruction", num_server_rounds=1, learning_rate=0.02)
    result = CliRunner().invoke(app, ["samples", str(folder), "--out", str(tmp_path / "new.npz")])
    assert result.exit_code == 0, result.output
    report = json.loads((folder / "samples.json").read_text())
    assert report["model"].keys() == report["floor"].keys() == {"fcd", "density", "coverage"}
    assert f"{report['floor']['fcd']:.2f}" in result.output
    assert len(np.load(tmp_path / "new.npz")["x"]) == report["images"]
    assert {"client": "", **RunResult(folder).samples().report()} == report


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": "autoencoder"}, "expected the run of a generative model"),
        ({"model": "vae", "pool-test": True}, "more than 5 images"),
    ],
)
def test_what_cannot_be_compared_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        judge(fresh(**keys))
