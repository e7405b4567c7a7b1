"""Data sets and partitions that a user's own code makes: what is taken, what is refused, and the cache."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from task.config.sections import DataConfig
from task.datasets import Dataset, load_dataset
from task.datasets.columns import unscaled
from task.datasets.partition import load_partition
from task.errors import ConfigError, DataError
from task.resolve.read import read_config
from tests.support.brought import imported_from

HEAD = """
import numpy as np
import torch

x = np.arange(24, dtype=np.float64).reshape(12, 2)
y = np.arange(12) % 3
"""
_NUMBERS = itertools.count()  # of modules: Python keeps those that it has imported


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with imported_from(tmp_path):
        yield tmp_path


def _load(folder: Path, code: str, name: str = "", **keys: Any) -> Dataset:
    name = name or f"owned_{next(_NUMBERS)}"
    (folder / f"{name}.py").write_text(HEAD + code)
    given = {"dataset": f"{name}:load", "cache-dir": str(folder / "cache"), **keys}
    config = read_config(given)
    return load_dataset(config.data, config.synthetic, config.seed)


@pytest.mark.parametrize(
    "code",
    [
        "def load(data_dir): return x[:9], y[:9], x[9:], y[9:]",
        "def load(): return x[:9], y[:9], x[9:], y[9:]",
        "def load(data_dir): return [torch.tensor(t) for t in (x[:9], y[:9], x[9:], y[9:])]",
        "def load(data_dir):\n    whole = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))\n"
        "    return [torch.utils.data.Subset(whole, r) for r in (range(9), range(9, 12))]",
    ],
)
def test_forms_that_hold_the_same_data(folder: Path, code: str) -> None:
    data = _load(folder, code)
    assert (data.num_train, data.num_classes, data.input_shape, data.kind) == (9, 3, (2,), "features")
    assert data.x.dtype == np.float32
    assert data.x[10].tolist() == [20.0, 21.0]
    assert data.y.tolist() == [0, 1, 2] * 4


def test_a_tenth_of_arrays_without_a_test_set_is_one(folder: Path) -> None:
    data = _load(folder, "def load(d): return x, y")
    assert (data.num_train, len(data.y)) == (11, 12)
    owned = _load(folder, "def load(d): return x, y, ['bo'] * 12", partition="natural", **{"num-clients": 0})
    assert owned.owners
    assert list(owned.owners.names) == ["bo"]


def test_owners_are_natural_clients(folder: Path) -> None:
    code = "def load(data_dir): return x[:9], y[:9], x[9:], y[9:], ['bo'] * 4 + ['al'] * 5"
    data = _load(folder, code, partition="natural", **{"num-clients": 0})
    assert data.owners
    assert list(data.owners.names) == ["al", "bo"]
    assert data.owners.train(1).tolist() == [0, 1, 2, 3]


def test_changed_code_is_run_again_and_the_same_code_is_not(folder: Path) -> None:
    first = _load(folder, "def load(d): return x[:9], y[:9], x[9:], y[9:]", "once")
    marker = folder / "ran"
    code = (
        f"def load(d):\n    with open({str(marker)!r}, 'a') as file:\n        file.write('.')\n"
        "    return x[:8], y[:8], x[8:], y[8:]"
    )
    del sys.modules["once"]
    second = _load(folder, code, "once")
    assert (first.num_train, second.num_train) == (9, 8)
    _load(folder, code, "once")
    assert marker.read_text() == "."


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("load = 3", r"expected a callable \(data_dir\); got int"),
        ("def load(a, b): ...", r"got \(a, b\)"),
        ("def load(d): raise ValueError('no file')", r"got an error: ValueError: no file \(.*line 7"),
        ("def load(d): return x", r"expected \(x_train, .* got ndarray"),
        ("def load(d): return x, y, x", r"\(x_train, .*; got 3 values, some of them arrays"),
        ("def load(d): return x, [(1, 2)]", r"\(x_train, .*; got 2 values, some of them arrays"),
        ("def load(d): return x, y[:5]", "as many targets y as examples x; got 12 and 5"),
        ("def load(d): return [[1, 2]], [3]", "expected pairs"),
        ("def load(d): return x, np.eye(3)[y], x, np.eye(3)[y]", r"one 1 in each row, .* y.argmax\(1\)"),
        ("def load(d): return x, y[:, None], x, y[:, None]", r"whole numbers as int64 \[24, 1\], which"),
        ("def load(d): return x, y[:5], x, y", "as many targets y as examples x; got 12 and 5"),
        ("def load(d): return x, y, x, None", "targets y_test as examples x_test; got 12 and none"),
        ("def load(d): return x * np.nan, y, x, y", "expected x to be finite numbers"),
        ("def load(d): return x, y - 1, x, y", r"expected labels from 0 on; got -1 in example 0"),
        ("def load(d): return x.astype(str), y, x, y", r"x as an array of numbers; got <U32\[12, 2\]"),
        ("def load(d): return x, y, x[:, :1], y", r"x_test and y_test of examples of shape \(2,\)"),
        ("def load(d): return x, y, x, y, ['a']", "expected 12 names in client, one per row; got 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(folder: Path, code: str, words: str) -> None:
    with pytest.raises((ConfigError, DataError), match=rf'(?s)"dataset": "owned_\d+:load": .*({words})'):
        _load(folder, code)


def test_what_classes_or_labels_may_be_is_clear_once_the_run_says_it(folder: Path) -> None:
    one_hot = "def load(d): return x, np.eye(3)[y], x, np.eye(3)[y]"
    assert _load(folder, one_hot, task="multi-label").task == "multi-label"
    assert _load(folder, "def load(d): return x, y[:, None], x, y[:, None]", task="regression").task
    binary = "def load(d): return x, (y > 0)[:, None], x, (y > 0)[:, None]"
    assert _load(folder, binary).task == "multi-label"


@pytest.mark.parametrize(
    ("code", "warning"),
    [
        ("np.arange(256.0).reshape(4, 4, 16)", "x has whole numbers from 0 to 255, as pixels have"),
        ("np.arange(256.0).reshape(4, 64)", "x has whole numbers from 0 to 255, as pixels have"),
        ("np.arange(256.0).reshape(4, 4, 16) / 255", ""),
        ("np.arange(256).astype(np.uint8).reshape(4, 8, 8)", ""),
        ("np.arange(8.0).reshape(4, 2) * 1e4", "columns 2 (up to 7e+04), 1 (up to 6e+04): large to train on "
         "as they are, so that the loss may be huge or NaN. Scale the columns"),
    ],
)  # fmt: skip
def test_data_that_are_too_large_to_train_on_are_named(folder: Path, code: str, warning: str) -> None:
    data = _load(folder, f"x, y = {code}, np.arange(4) % 2\ndef load(d): return x, y, None, None")
    assert unscaled(data, DataConfig(dataset="mine:load")).startswith(warning)
    assert bool(warning) == bool(unscaled(data, DataConfig(dataset="mine:load")))


def _deal(folder: Path, code: str, clients: int = 3) -> list[list[int]]:
    name = f"dealt_{next(_NUMBERS)}"
    (folder / f"{name}.py").write_text(f"import numpy as np\n{code}")
    keys = {"partition": f"{name}:deal", "num-clients": clients, "local-test-fraction": 0.0}
    config = read_config({**keys, "cache-dir": str(folder / "cache"), "fraction-evaluate": 0.0})
    data = load_dataset(config.data, config.synthetic, config.seed)
    made = load_partition(data, config.data, config.seed)
    return [made.train(i).tolist() for i in range(clients)]


def test_a_partition_of_a_users_own_gives_each_client_its_rows(folder: Path) -> None:
    code = "def deal(labels, k, rng): return [np.flatnonzero(labels == c)[:5] for c in range(k)]"
    rows = _deal(folder, code)
    assert [len(r) for r in rows] == [5, 5, 5]
    drawn = "def deal(labels, k, rng): return np.array_split(rng.permutation(len(labels)), k)"
    assert _deal(folder, drawn) == _deal(folder, drawn)  # by the run's seed


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("deal = 1", "expected a callable"),
        ("def deal(y, k, rng): 1 / 0", "ZeroDivisionError"),
        ("def deal(y, k, rng): return [[0], [1]]", "expected 3 lists of rows, one for each client; got 2"),
        ("def deal(y, k, rng): return [[0], [1], [10**6]]", "rows from 0 to .*; got 1000000 for client 2"),
        ("def deal(y, k, rng): return [[0], [-1], [2]]", "got -1 for client 1"),
        ("def deal(y, k, rng): return [[0.5], [1], [2]]", r"integers \[n\], for client 0; got float64\[1\]"),
        ("def deal(y, k, rng): return [[7, 8], [9], [8]]", "got row 8 at client 0 and again at client 2"),
        ("def deal(y, k, rng): return [[7, 7], [9], [8]]", "got row 7 at client 0 and again at client 0"),
        ("def deal(y, k, rng): return [[], [9], [8]]", "own too few training examples"),
        ("def deal(y, k, rng): return np.split(np.random.permutation(9), k)", "others at a second call"),
    ],
)
def test_a_wrong_partition_is_refused(folder: Path, code: str, words: str) -> None:
    with pytest.raises((ConfigError, DataError), match=f"(?s){words}"):
        _deal(folder, code)


@pytest.mark.parametrize(
    "code",
    [
        "def load():\n    whole = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))\n"
        "    return torch.utils.data.random_split(whole, [6, 3, 3])",
        "def load(): return list(zip(x, y)), list(zip(x, y)), list(zip(x, y))",
    ],
)
def test_three_parts_are_refused_in_words(folder: Path, code: str) -> None:
    with pytest.raises(
        DataError, match=r"expected two data sets, \(train, test\); got three. A third value"
    ) as info:
        _load(folder, code)
    assert "inhomogeneous" not in str(info.value)


def test_a_users_class_codes_are_numbered(folder: Path) -> None:
    data = _load(folder, "def load(d): return x, y * 7 + 1000000123, None, None")
    assert (data.num_classes, data.classes[2]) == (3, "1000000137")
    with pytest.raises(DataError, match='of two classes or more; all 11 are of one, "0"'):
        _load(folder, "def load(d): return x, y * 0, None, None")
