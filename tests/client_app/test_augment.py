"""Training examples that are changed in each epoch: what is drawn, and that it is the same on any nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client_app.training.augment import PAD, Augmentation, crops_flips, jittered
from client_app.training.programs import Batch
from task.datasets import load_dataset
from task.datasets.base import standardised
from task.errors import ConfigError
from task.numerics.arrays import sha256
from task.resolve.model_checks import check_augment
from task.resolve.read import read_config
from tests.support.brought import imported_from
from tests.support.federation import play

OWN = """
import torch

def noise(x):
    return x + 0.1 * torch.randn(x.shape)

def same(x):
    return x

def wide(x):
    return torch.cat([x, x])

def both(x, mask):
    if torch.rand(()) < 0.5:
        x, mask = x.flip(2), mask.flip(1)
    return x, mask

def same_mask(x, mask):
    return x

def blurred(x, mask):
    return x, mask.float()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "own_augment.py").write_text(OWN)
    with imported_from(tmp_path):
        yield tmp_path


def _keys(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {
        "dataset": "digits", "model": "mlp", "num-clients": 4, "max-examples": 80, "num-server-rounds": 2,
        "batch-size": 8, "local-epochs": 2, "state-dir": str(tmp_path / "state"), **more,
    }  # fmt: skip


def test_a_crop_is_a_part_of_the_padded_image_and_all_shifts_and_flips_are_drawn() -> None:
    x = torch.arange(1.0, 26.0).view(1, 1, 5, 5).expand(4000, 1, 5, 5)
    words = np.random.default_rng(1).integers(0, 1 << 63, 4000, np.uint64)
    made = crops_flips(x, words, [-1.0])
    padded = torch.nn.functional.pad(x[0], (PAD, PAD, PAD, PAD), value=-1.0)
    views = {
        (r, c, flip): (lambda v: v.flip(2) if flip else v)(padded[:, r : r + 5, c : c + 5])
        for r in range(2 * PAD + 1)
        for c in range(2 * PAD + 1)
        for flip in (False, True)
    }
    whole = {k: v.contiguous().numpy().tobytes() for k, v in views.items()}
    found = {m.contiguous().numpy().tobytes() for m in made}
    assert found == {*whole.values()}
    kept = (made == x).flatten(1).all(1).float().mean()
    assert 0 < kept < 0.02  # 1 / 162


def _standardised(x: torch.Tensor) -> torch.Tensor:
    return standardised(x, 255.0)


def word(low: int, high: int, bit: int = 0) -> int:
    """Return 63 bits: one, the 31 above it, and the 31 above these."""
    return bit | low << 1 | high << 32


def test_a_crop_is_taken_from_the_whole_image_at_the_place_that_is_drawn() -> None:
    x = torch.arange(9.0).view(1, 1, 3, 3).expand(3, 1, 3, 3)
    words = [word(0, 0), word(1, 0), word(2, 3, bit=1)]  # of two rows and two columns, by the remainder
    made = crops_flips(x, np.array(words, np.uint64), [-1.0], crop=2)
    assert made.flatten(1).tolist() == [[0, 1, 3, 4], [3, 4, 6, 7], [2, 1, 5, 4]]
    assert crops_flips(x, np.array(words, np.uint64), [-1.0], crop=3).flatten(1).tolist() == [
        [*range(9)], [*range(9)], [2, 1, 0, 5, 4, 3, 8, 7, 6],
    ]  # fmt: skip


def test_brightness_and_contrast_by_hand() -> None:
    """The 31 lowest bits draw the shift, the 32 above them the factor."""
    x = torch.tensor([[[0.0, 1.0]], [[0.5, 0.7]]]).expand(3, 2, 1, 2)  # means of the channels 0.5 and 0.6
    words = np.array([0, 1 << 30 | 1 << 62, (1 << 31) - 1], np.uint64)  # least, middle, most and least
    made = jittered(x, words, 0.25, 0.5)
    torch.testing.assert_close(made[0], torch.tensor([[[0.0, 0.5]], [[0.3, 0.4]]]))  # -0.25, times 1/2
    torch.testing.assert_close(made[1], x[1])
    torch.testing.assert_close(made[2], torch.tensor([[[0.5, 1.0]], [[0.8, 0.9]]]))  # +0.25, times 1/2
    torch.testing.assert_close(jittered(x, words, 0.25, 0.0)[0], x[0] - 0.25)
    torch.testing.assert_close(jittered(x, words, 0.0, 1.0)[0], torch.tensor([[[0.5, 0.5]], [[0.6, 0.6]]]))


def _drawn(clients: list[str], sizes: list[int], epoch: int, number: int = 1) -> torch.Tensor:
    made = Augmentation("crops-flips", 1, number, clients, sizes, [0.0], 6, 0.2, 0.5, finish=_standardised)
    made.begin()
    x = torch.arange(64.0).view(1, 1, 1, 8, 8).expand(len(clients), 3, 1, 8, 8)
    rows = torch.stack([torch.tensor([0, 1, 2]) + int(made.offsets[k]) for k in range(len(clients))])
    batch = Batch(x, torch.zeros(len(clients), 3), torch.ones(len(clients)), rows=rows)
    return made.batch(batch, [epoch] * len(clients)).x


def test_draws_follow_from_client_round_epoch_and_example_alone() -> None:
    both = _drawn(["a", "b"], [5, 7], 0)
    assert torch.equal(both[0], _drawn(["a"], [5], 0)[0])
    assert torch.equal(both[1], _drawn(["b"], [7], 0)[0])
    assert not torch.equal(both[0], both[1])
    assert both.shape == (2, 3, 1, 6, 6)
    assert not torch.equal(both, _drawn(["a", "b"], [5, 7], 1))
    assert not torch.equal(both, _drawn(["a", "b"], [5, 7], 0, number=2))


CROPPED: dict[str, Any] = {"crop": 6, "pixels": "standardised"}
AUGMENTED: list[dict[str, Any]] = [
    {"augment": "crops-flips"},
    {"augment": "own_augment:noise"},
    {"augment": "crops-flips", **CROPPED, "augment-brightness": 0.2, "augment-contrast": 0.8},
    {"augment": "own_augment:noise", **CROPPED, "augment-contrast": 0.8},
]


@pytest.mark.parametrize("keys", AUGMENTED)
def test_a_run_is_the_same_on_any_nodes_and_stacked_as_alone(keys: dict[str, Any], tmp_path: Path) -> None:
    found = [
        play(_keys(tmp_path, **keys, **more), nodes=nodes).arrays(2)
        for nodes, more in ((1, {}), (4, {}), (1, {"stack": 1}))
    ]
    assert sha256(found[0]) == sha256(found[1])
    for name, array in found[0].items():  # another program rounds otherwise
        np.testing.assert_allclose(array, found[2][name], atol=1e-5)
    read = {key: value for key, value in keys.items() if not key.startswith("augment")}
    plain = play(_keys(tmp_path, **read), nodes=1).arrays(2)
    assert sha256(plain) != sha256(found[0])


@pytest.mark.parametrize(
    "keys", [{"augment-brightness": 0.2}, {"augment-contrast": 0.5}, {"augment": "crops-flips"}]
)
def test_each_key_changes_a_run_and_none_changes_what_is_measured(
    keys: dict[str, Any], tmp_path: Path
) -> None:
    """Round 0 and the losses of FedSGD are those of the middle of each image."""
    plain, more = (play(_keys(tmp_path, crop=6, **k), nodes=1) for k in ({}, keys))
    assert plain.rows[0]["loss"] == more.rows[0]["loss"]
    assert sha256(plain.arrays(2)) != sha256(more.arrays(2))


def test_brightness_is_lost_where_each_image_is_standardised(tmp_path: Path) -> None:
    """What is added to all pixels goes with their mean, as a comment in TensorFlow's tutorial says."""
    plain, more = (
        play(_keys(tmp_path, pixels="standardised", **k), nodes=1).arrays(2)
        for k in ({}, {"augment-brightness": 0.5})
    )
    for name, array in plain.items():
        np.testing.assert_allclose(array, more[name], atol=1e-4)


@pytest.mark.parametrize("algorithm", ["fedfomo", "moon", "ditto", "knn-per"])
def test_what_reads_a_clients_examples_beside_its_steps_reads_the_middle(
    algorithm: str, tmp_path: Path
) -> None:
    """A whole image would not fit the model; FedFomo trains on a part of its examples."""
    keys = _keys(tmp_path, algorithm=algorithm, augment="crops-flips", **CROPPED)
    done = play(keys | {"max-examples": 400}, nodes=1)
    assert [row["answered"] for row in done.rows[1:]] == [4, 4]


def test_a_function_that_changes_nothing_changes_no_byte(tmp_path: Path) -> None:
    plain, same = (
        sha256(play(_keys(tmp_path, **more), nodes=1).arrays(2))
        for more in ({}, {"augment": "own_augment:same"})
    )
    assert plain == same


def test_what_cannot_be_augmented_is_refused() -> None:
    for keys, shape, words in (
        (
            {"dataset": "npz"},
            (6,),
            r'"augment": expected images .* for "crops-flips"; got examples of shape \[6\]',
        ),
        ({"dataset": "ag-news", "model": "fasttext"}, (25,), "got a text"),
        ({"task": "reconstruction", "model": "vae"}, (1, 8, 8), "got examples that are to be reconstructed"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_augment(read_config({"augment": "crops-flips", **keys}), shape)
    check_augment(read_config({"augment": "own_augment:noise", "dataset": "npz"}), (6,))
    for key in ("augment-brightness", "augment-contrast"):
        config = read_config({key: 0.5, "dataset": "npz"})
        check_augment(config, (3, 8, 8), "image")
        with pytest.raises(ConfigError, match=rf'"{key}": expected images .* for 0.5; got features of shape'):
            check_augment(config, (3, 8, 8), "features")
        with pytest.raises(ConfigError, match=rf'"{key}": nothing in this run reads it'):
            read_config({key: 0.5, "dataset": "csv"})
    with pytest.raises(ConfigError, match=r'"augment": got .crops.\. .*one of crops-flips'):
        read_config({"augment": "crops"})
    with pytest.raises(ConfigError, match=r'"augment": nothing in this run reads it'):
        read_config({"augment": "crops-flips", "algorithm": "fedsgd"})


def test_a_function_that_returns_another_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"expected a tensor of the shape of its example, \[1, 8, 8\]; got \[2"
    ):
        play(_keys(tmp_path, augment="own_augment:wide"), nodes=1)


NOISY = """
import torch
from torch.utils.data import Dataset

class Noisy(Dataset):
    def __init__(self, count, noise):
        self.count, self.noise = count, noise
    def __len__(self):
        return self.count
    def __getitem__(self, i):
        return torch.full((6,), float(i % 2)) + self.noise * torch.randn(6), i % 2

def drawn():
    return Noisy(100, 0.1), Noisy(20, 0.1)

def fixed():
    return Noisy(100, 0.0), Noisy(20, 0.0)
"""


def test_a_data_set_that_draws_its_examples_is_known_by_it(folder: Path, tmp_path: Path) -> None:
    (folder / "noisy_data.py").write_text(NOISY)
    for name, frozen in (("drawn", True), ("fixed", False)):
        for _ in range(2):  # decoded, and from the cache
            config = read_config({"dataset": f"noisy_data:{name}", "cache-dir": str(tmp_path / "cache")})
            assert load_dataset(config.data, config.synthetic, config.seeds.data).frozen is frozen


def _masked(name: str) -> tuple[Batch, Batch]:
    """Return a batch of pictures whose pixels are twice their mask, and what a change makes of it."""
    y = torch.arange(1, 5 * 36 + 1).view(1, 5, 6, 6)
    batch = Batch(2.0 * y.unsqueeze(2), y, torch.ones(1), rows=torch.arange(5).view(1, 5))
    made = Augmentation(name, 1, 1, ["a"], [5], [-7.0])
    made.begin()
    return batch, made.batch(batch, [0])


@pytest.mark.parametrize("name", ["crops-flips", "own_augment:both"])
def test_a_mask_moves_with_its_picture_and_what_comes_in_does_not_count(name: str) -> None:
    before, after = _masked(name)
    assert after.y.dtype == torch.int64
    assert not torch.equal(after.y, before.y)
    inside = after.y != -100
    assert torch.equal(after.x[:, :, 0][inside], 2.0 * after.y[inside])
    assert bool((after.x[:, :, 0][~inside] == -7.0).all())
    assert bool(inside.all()) == (name != "crops-flips")


def test_a_function_that_forgets_the_mask_or_blends_its_classes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"picture and mask, two tensors .* \[1, 6, 6\], \[6, 6\]; got"):
        _masked("own_augment:same_mask")
    with pytest.raises(ConfigError, match=r"numbers of classes, torch.int64; got torch.float32"):
        _masked("own_augment:blurred")
