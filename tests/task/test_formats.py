"""Data sets that are not downloaded, read from small files of the form in which they are distributed."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from task.datasets import spec_of
from task.datasets.words import numbered
from task.errors import ConfigError, DataError
from task.models import WORD_BUCKETS
from task.resolve.read import read_config
from task.resolve.validate import check_names
from tests.support.federation import read_by
from tests.task.helpers import load


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOUQUET_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "data"


def write_leaf(path: Path, users: dict[str, tuple[list[Any], list[Any]]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    path.write_text(json.dumps({"users": list(users), "num_samples": [], "user_data": data}))


def picture(ink: int) -> list[float]:
    pixels = np.ones(784)
    pixels[ink] = 51 / 255
    return pixels.tolist()


def test_femnist_is_read_by_writer(data: Path) -> None:
    writers = {
        "f0001_41": ([picture(k) for k in range(5)], [0, 10, 36, 61, 1]),
        "f0002_07": ([picture(9)] * 2, [3, 4]),
    }
    write_leaf(data / "femnist/data/all_data/all_data_0.json", writers)
    found = load(dataset="femnist")
    assert found.owners is not None
    assert found.owners.names == ("f0001_41", "f0002_07")
    assert (found.num_train, len(found.y), found.num_classes) == (5, 7, 62)  # the last fifth, rounded up
    assert [found.classes[y] for y in found.y[found.owners.train(0)]] == ["0", "A", "a", "z"]
    assert found.x.dtype == np.uint8
    assert found.x[3].reshape(-1)[3] == 51
    assert found.inputs(slice(3, 4)).flatten()[2:5].tolist() == pytest.approx([1, 0.2, 1])
    # Divided, the same folder counts each example once.
    write_leaf(data / "femnist/data/train/a.json", {"f0001_41": writers["f0001_41"]})
    write_leaf(data / "femnist/data/test/a.json", {"f0001_41": ([picture(0)], [7])})
    divided = load(dataset="femnist")
    assert (divided.num_train, divided.y[divided.test_rows].tolist()) == (5, [7])


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        ([picture(0)], [62], "a label of 62"),
        ([[0.5] * 783], [1], "784|reshape"),
        ([[1.5] * 784], [1], "a pixel of 1.5"),
        ([picture(0)], [1, 2], "1 x but 2 y"),
    ],
)
def test_what_is_not_femnist_is_named(x: list[Any], y: list[Any], said: str, data: Path) -> None:
    write_leaf(data / "femnist/a.json", {"f0001_41": (x, y)})
    with pytest.raises(DataError, match=rf"a\.json, user f0001_41: expected LEAF's JSON .* got .*({said})"):
        load(dataset="femnist")


def test_sent140_is_read_by_author(data: Path) -> None:
    tweet = lambda text: ["1", "Mon", "NO_QUERY", "ann", text]  # noqa: E731
    write_leaf(
        data / "sent140/train/a.json",
        {"ann": ([tweet("Good, good day!"), tweet("bad " * 30)], [4, 0]), "bob": ([tweet("ok")], ["1"])},
    )
    write_leaf(data / "sent140/test/a.json", {"ann": ([tweet("good")], [4])})
    found = load(dataset="sent140")
    assert (found.task, found.x.shape, found.y.tolist()) == ("classification", (4, 25), [1, 0, 1, 1])
    good, comma, day, mark = numbered(["good , day !"], 4)[0]
    assert found.x[0].tolist() == [good, comma, good, day, mark] + [0] * 20
    assert len({*found.x[1].tolist()}) == 1  # cut after 25 words
    assert found.inputs(slice(0, 1)).dtype.is_floating_point is False


def test_words_have_the_numbers_that_they_have_everywhere() -> None:
    """CRC-32 of "the" is 0x3c456de6 = 1011183078, which is 14,678 mod 31,999."""
    assert numbered(["The the"], 3).tolist() == [[14_679, 14_679, 0]]
    assert numbered(["", "é"], 1)[0, 0] == 0 < numbered(["é"], 1)[0, 0] < WORD_BUCKETS


def news(path: Path, rows: list[list[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)


def test_ag_news_is_read_from_its_two_files(data: Path) -> None:
    folder = data / "ag-news/ag_news_csv"
    news(folder / "train.csv", [["3", "Wall St.", 'Bears "claw" back'], ["1", "Peace", "Talks"]])
    news(folder / "test.csv", [["4", "Chips", "Faster"]])
    found = load(dataset="ag-news")
    assert (found.num_train, found.y.tolist(), found.x.shape) == (2, [2, 0, 3], (3, 200))
    assert found.x[1, :3].tolist() == [*numbered(["peace talks"], 2)[0].tolist(), 0]
    news(folder / "train.csv", [["5", "a", "b"]])
    with pytest.raises(DataError, match=r"train\.csv, line 1: expected a class from 1 to 4"):
        load(dataset="ag-news")


def jpeg(path: Path, colour: tuple[int, int, int] | int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L" if isinstance(colour, int) else "RGB", (64, 64), colour).save(path, "JPEG", quality=95)


def test_tiny_imagenet_is_read_as_its_archive_has_it(data: Path) -> None:
    root = data / "tiny-imagenet-200"
    jpeg(root / "train/n02/images/n02_0.JPEG", (200, 0, 0))
    jpeg(root / "train/n01/images/n01_0.JPEG", 100)  # a grey one is the first
    jpeg(root / "val/images/val_0.JPEG", (0, 0, 200))
    (root / "wnids.txt").write_text("n02\nn01\n")
    (root / "val/val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t0\t62\t62\n")
    found = load(dataset="tiny-imagenet")
    assert (found.input_shape, found.num_train, found.y.tolist()) == ((3, 64, 64), 2, [0, 1, 1])
    want = [[100, 100, 100], [200, 0, 0], [0, 0, 200]]
    assert np.abs(found.x[:, :, 5, 5].astype(int) - want).max() <= 3  # JPEG is not exact
    (root / "val/val_annotations.txt").write_text("val_0.JPEG\tn09\t0\n")
    with pytest.raises(DataError, match=r"val_annotations\.txt, line 1: expected a picture and one of the 2"):
        load(dataset="tiny-imagenet")


def test_digit_5_has_five_domains_that_are_clients(data: Path) -> None:
    from scipy.io import savemat

    root, eye = data / "digit-5", np.eye(10)
    root.mkdir(parents=True)
    grey = np.full((2, 28, 28, 1), 40, np.uint8)
    savemat(root / "mnist_data.mat", {
        "train_28": grey, "test_28": grey[:1], "label_train": eye[[3, 4]], "label_test": eye[[5]],
    })  # fmt: skip
    colour = np.zeros((2, 28, 28, 3), np.uint8)
    colour[..., 1] = 90
    savemat(root / "mnistm_with_label.mat", {
        "train": colour, "test": colour[:1], "label_train": eye[[0, 9]], "label_test": eye[[1]],
    })  # fmt: skip
    house = np.zeros((32, 32, 3, 2), np.uint8)
    house[4, 7, 2, 1] = 250
    for part in ("train", "test"):
        savemat(root / f"svhn_{part}_32x32.mat", {"X": house, "y": np.array([[10], [2]], np.uint8)})
    made = np.zeros((1, 32, 32, 3), np.uint8)
    savemat(root / "syn_number.mat", {
        "train_data": made, "test_data": made, "train_label": [[7]], "test_label": [[8]],
    })  # fmt: skip
    posts = np.empty((2, 2), object)
    for i in range(2):
        posts[i] = [np.full((1, 1, 28, 28), 0.2), np.array([[6]], np.uint8)]
    savemat(root / "usps_28x28.mat", {"dataset": posts})
    found = load(dataset="digit-5")
    assert found.owners is not None
    assert found.owners.names == ("mnist", "mnist-m", "svhn", "synthetic", "usps")
    labels = [found.y[found.owners.train(k)].tolist() for k in range(5)]
    assert labels == [[3, 4], [0, 9], [0, 2], [7], [6]]
    assert [found.y[found.owners.test(k)].tolist() for k in range(5)] == [[5], [1], [0, 2], [8], [6]]
    assert found.x.shape == (14, 3, 32, 32)
    assert found.x[found.owners.train(0)[0], :, 9, 9].tolist() == [40, 40, 40]
    assert found.x[found.owners.train(1)[0], :, 9, 9].tolist() == [0, 90, 0]
    assert found.x[found.owners.train(2)[1], 2, 4, 7] == 250
    assert found.x[found.owners.train(4)[0], :, 9, 9].tolist() == [51, 51, 51]
    savemat(root / "syn_number.mat", {"train_data": made})
    with pytest.raises(DataError, match=r"syn_number\.mat: expected the .* images and labels of synthetic"):
        load(dataset="digit-5")


@pytest.mark.parametrize("name", ["ag-news", "digit-5", "femnist", "sent140", "tiny-imagenet"])
def test_files_that_are_not_there_are_named_with_where_they_come_from(name: str, data: Path) -> None:
    with pytest.raises(DataError, match=r"expected .*got .*data-dir.*BOUQUET_DATA"):
        load(dataset=name)
    assert spec_of(name).model


def test_texts_of_words_train_in_a_federation(data: Path, tmp_path: Path) -> None:
    from tests.support.federation import play

    rows = [[str(1 + i % 2), ("rain", "goal")[i % 2], "and then more of it"] for i in range(40)]
    news(data / "ag-news/train.csv", rows)
    news(data / "ag-news/test.csv", rows[:10])
    keys = {
        "dataset": "ag-news", "model": "fasttext", "num-clients": 4, "num-server-rounds": 3,
        "batch-size": 5, "learning-rate": 0.5, "local-epochs": 5, "data-dir": str(data),
        "state-dir": str(tmp_path / "state"),
    }  # fmt: skip
    of = read_by(keys)
    one, two = play(of, nodes=1), play(of, nodes=2, seed=3)
    assert one.rows[-1]["model_sha256"] == two.rows[-1]["model_sha256"]
    assert one.rows[1]["train_loss"] > 0.3 > 0.1 > one.rows[-1]["train_loss"]


def test_a_text_of_words_takes_no_trigger() -> None:
    keys = {"dataset": "ag-news", "model": "fasttext", "attack.kind": "backdoor", "attack.fraction": 0.2}
    with pytest.raises(ConfigError, match=r'"attack.kind": "backdoor" puts a patch into .* got \'ag-news\''):
        check_names(read_config(keys))
