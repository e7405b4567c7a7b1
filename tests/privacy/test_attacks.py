"""Gradient inversion and membership inference, on what really leaves clients and on models of real runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from server_app.cli.main import app
from server_app.extras.audit.inversion import (
    Rebuilt,
    analytic,
    attack,
    first_linear,
    label_of,
    matched,
    optimised,
    picture,
    pixels,
    psnr,
)
from server_app.extras.audit.membership import confidence, likelihood, told
from server_app.extras.audit.wire import Tap, changes_heard
from task.datasets import load_dataset
from task.datasets.partition import load_partition
from task.errors import ConfigError
from task.numerics.arrays import Arrays
from task.resolve.read import read_config
from task.resolve.run_model import model_of, parts_of
from tests.privacy.test_central import Ledger
from tests.support.federation import play
from tests.support.grid import LocalGrid

ONE_IMAGE_EACH = {
    "num-clients": 3,
    "max-examples": 3,
    "num-server-rounds": 1,
    "fraction-train": 1.0,
    "local-test-fraction": 0.0,
    "local-epochs": 1,
    "batch-size": 0,
    "model": "mlp",
    "device": "cpu",
    "seed": 2,
}


def tapped(*args: Any, **kwargs: Any) -> Any:
    return Tap(LocalGrid(*args, **kwargs))  # type: ignore[arg-type]


def attacked(tmp_path: Path, **more: Any) -> tuple[Rebuilt | None, Rebuilt]:
    """Return what the server rebuilds of the first client's images, and what a reader of the model does."""
    keys = ONE_IMAGE_EACH | {"state-dir": str(tmp_path)} | {k.replace("__", "."): v for k, v in more.items()}
    config = read_config(keys)
    played = play(keys, nodes=3, journal=Ledger(), grid_type=tapped)
    data = load_dataset(config.data, config.synthetic, config.seeds.data)
    rows = np.asarray(load_partition(data, config.data, config.seeds.data).train(0))
    model = model_of(config, data.input_shape, data.num_classes)
    heard = changes_heard(config, played.grid, parts_of(model, config).trainable)  # type: ignore[arg-type]
    moved = {n: played.arrays(1)[n].astype(np.float64) - a for n, a in played.arrays(0).items()}
    server = attack(model, data, rows, heard["client-0"], 100) if heard else None
    return server, attack(model, data, rows, moved, 100)


DP = {"dp__noise": 1.0, "dp__delta": 0.1}


@pytest.mark.parametrize(
    ("keys", "server", "reader"),  # what the PSNR is: least and most, in dB
    [
        ({}, (60, 150), (60, 150)),
        ({"codec__up": "int8"}, (25, 100), (25, 100)),
        ({"codec__up": "top-k", "codec__keep": 0.01}, (0, 30), (0, 30)),
        ({**DP, "dp__clip": 0.1}, (60, 150), (0, 12)),  # the server sees what is clipped, without noise
        ({**DP, "dp__clip": 1.0, "dp__unit": "example"}, (0, 12), (0, 12)),
        ({"secagg": True}, None, (40, 150)),  # the sum of three images is no protection
        ({"max-examples": 192}, (0, 25), (0, 22)),
    ],
    ids=["none", "int8", "top-k", "dp-client", "dp-example", "secagg", "64 images"],
)
def test_inversion_of_what_went_over_the_wire(
    keys: dict[str, Any], server: tuple[int, int] | None, reader: tuple[int, int], tmp_path: Path
) -> None:
    heard, read = attacked(tmp_path, **keys)
    assert reader[0] <= read.mean <= reader[1]
    assert (heard is None) == (server is None)
    if heard and server:
        assert server[0] <= heard.mean <= server[1]
        assert heard.label is (None if len(heard.psnr) > 1 else server[0] > 0 or heard.label)


def test_an_algorithm_that_sends_no_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="local models"):
        attacked(tmp_path, algorithm="fedsgd")


def test_analytic_inversion_by_hand() -> None:
    """Of units 0 and 2 the first moved by x alone, the other by (x + 3 y) / 4; unit 1 did not move."""
    x, y = np.array([1.0, 2.0]), np.array([5.0, 0.0])
    w = np.stack([0.5 * x, np.zeros(2), -0.25 * (x + 3 * y)])
    change = {"1.weight": w, "1.bias": np.array([0.5, 0.0, -1.0]), "2.bias": np.array([-0.1, 0.2, -0.3])}
    np.testing.assert_allclose(analytic(change, "1").numpy(), [x, (x + 3 * y) / 4])
    assert label_of(change) == 1


def test_which_models_are_solved() -> None:
    linear = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 2))
    assert first_linear(linear, (1, 4, 4)) == "1"
    assert first_linear(nn.Sequential(nn.Linear(16, 4, bias=False), nn.Linear(4, 2)), (16,)) == ""
    assert first_linear(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)), (1, 4, 4)) == ""


def test_psnr_and_matching() -> None:
    image = torch.full((1, 4, 4), 0.5, dtype=torch.float64)
    assert psnr(image, image + 0.1) == pytest.approx(20.0)
    assert psnr(image, image) == 150.0
    found = matched(image[None], torch.stack([image + 0.3, image - 0.1]))
    assert (found.psnr, found.mean) == (pytest.approx((20.0,)), pytest.approx(20.0))
    assert matched(image[None], torch.zeros(0, 1, 4, 4)).mean == pytest.approx(20 * math.log10(2))


def test_gradients_of_a_convolutional_model_are_matched() -> None:
    """The image comes out of the true gradient, and does not out of another."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
    data = load_dataset(read_config({}).data, read_config({}).synthetic, 1)
    x, label = data.inputs(np.array([0])), data.targets(np.array([0]))
    loss = nn.functional.cross_entropy(model(x), label)
    gradient = torch.autograd.grad(loss, list(model.parameters()))
    true = dict(zip(dict(model.named_parameters()), gradient, strict=True))
    noise: Arrays = {n: torch.randn_like(g).numpy() for n, g in true.items()}
    assert label_of({n: -g.numpy() for n, g in true.items()}) == int(label)
    original = pixels(data, x)[0]

    def rebuilt(change: Arrays) -> float:
        return psnr(original, pixels(data, optimised(model, change, label, x, 150))[0])

    good, bad = rebuilt({n: -0.1 * g.numpy() for n, g in true.items()}), rebuilt(noise)
    assert good > 20 > 12 > bad


def test_the_picture_shows_also_where_only_a_sum_is_seen(tmp_path: Path) -> None:
    image = torch.rand(1, 1, 8, 8)
    picture([("none", image, image, image), ("secagg", image, None, image)], tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


# ---------------------------------------------------------------------- membership


def test_membership_by_hand() -> None:
    """Of 4 x 2 pairs the member's loss is smaller in 6, and equal in one."""
    found = told(np.array([0.1, 0.2, 0.3, 0.9]), np.array([0.3, 0.6]))
    assert found.auc == pytest.approx((2 + 2 + 1.5 + 0) / 8)
    assert found.rates == (0.5, 0.5)
    others = np.arange(1000) / 1000
    assert told(np.array([0.0005, 0.005, 0.05]), others).rates == pytest.approx((2 / 3, 1 / 3))
    assert told(others, others).auc == pytest.approx(0.5)
    assert told(others, others).rates == pytest.approx((0.01, 0.001))


def test_the_likelihood_ratio_by_hand() -> None:
    """p = 1/2 and 4/5 are log-odds 0 and ln 4, however small or large the loss.

    Shadows without the first example say 1 and 3, of the second the one without says 5, and both had the
    third: means 2, 5 and (1 + 3 + 5) / 3, variance ((1 - 2)^2 + (3 - 2)^2 + 0) / (3 - 2) = 2.
    """
    losses = np.array([math.log(2), math.log(5 / 4), 1e-9, 800.0])
    assert confidence(losses) == pytest.approx([0.0, math.log(4), 9 * math.log(10), -800.0])
    shadows = np.array([[1.0, 5.0, 9.0], [3.0, 9.0, 9.0]])
    without = np.array([[True, True, False], [True, False, False]])
    found = likelihood(np.array([4.0, 4.0, 4.0]), shadows, without)
    assert found == pytest.approx([2 / math.sqrt(2), -1 / math.sqrt(2), 1 / math.sqrt(2)])


@pytest.mark.full
def test_a_run_that_remembers_gives_its_members_away(tmp_path: Path) -> None:
    """A command's whole way: two runs, of which the longer one knows its few examples by heart."""
    runner = CliRunner()
    keys = 'num-clients=2 max-examples=100 learning-rate=0.5 progress="none" threads=1 local-epochs='
    base = ["run", "--runs-dir", str(tmp_path), "--nodes", "1"]
    for name, epochs in (("short", 1), ("long", 60)):
        options = ["--run-name", name, "-c", f"num-server-rounds=2 {keys}{epochs}"]
        assert runner.invoke(app, [*base, *options]).exit_code == 0
    done = runner.invoke(app, ["audit", "membership", str(tmp_path / "short"), str(tmp_path / "long")])
    assert done.exit_code == 0, done.output
    import json

    short, long = (json.loads((tmp_path / n / "audit.json").read_text()) for n in ("short", "long"))
    assert long["auc"] > 0.6 > short["auc"] > 0.4
    assert long["members"] == 90
    assert long["worst_client"]["auc"] == max(long["clients"].values()) >= long["auc"]
    assert set(long["clients"]) == {"client-0", "client-1"}
    done = runner.invoke(app, ["audit", "membership", str(tmp_path / "long"), "--shadows", "4"])
    assert done.exit_code == 0, done.output
    lira = json.loads((tmp_path / "long" / "audit.json").read_text())["lira"]
    assert lira["shadows"] == 4
    assert lira["auc"] > long["auc"] + 0.05
