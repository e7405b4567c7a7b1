"""Data sets of Hugging Face: what becomes of their columns and splits, the cache, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from task.datasets import Dataset, load_dataset
from task.errors import ConfigError, DataError
from task.references import code_of, references_in
from task.resolve.read import read_config
from task.resolve.validate import check_names

datasets = pytest.importorskip("datasets")

CLASSES = datasets.ClassLabel(names=["cat", "dog", "fox"])


def _load(folder: Path, name: str = "", **keys: Any) -> Dataset:
    given = {"dataset": name or f"hf:{folder / 'set'}", "cache-dir": str(folder / "cache"), **keys}
    config = read_config(given)
    check_names(config)
    return load_dataset(config.data, config.synthetic, config.seed)


def _save(folder: Path, columns: dict[str, Any], features: dict[str, Any], test: int = 0) -> None:
    """Write a set whose last `test` rows are its split test."""
    whole = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    cut = len(whole) - test
    if test:
        parts = {"train": whole.select(range(cut)), "test": whole.select(range(cut, len(whole)))}
        whole = datasets.DatasetDict(parts)
    whole.save_to_disk(str(folder / "set"))


def _value(dtype: str) -> Any:
    return datasets.Value(dtype)


def test_columns_of_numbers_classes_and_splits(tmp_path: Path) -> None:
    """Catches columns in another order than the set's, and test rows in the pool."""
    columns = {"b": [float(i) for i in range(12)], "label": [0, 1, 2] * 4, "a": list(range(100, 112))}
    _save(tmp_path, columns, {"b": _value("float64"), "label": CLASSES, "a": _value("int32")}, test=3)
    data = _load(tmp_path)
    assert (data.num_train, len(data.y), data.kind) == (9, 12, "features")
    assert data.x[10].tolist() == [10.0, 110.0]
    assert data.y.tolist() == [0, 1, 2] * 4
    assert data.classes == ("cat", "dog", "fox")
    assert "inputs b, a; label label" in data.description


def test_without_test_a_tenth_is_cut_and_client_names_the_owners(tmp_path: Path) -> None:
    columns = {"x": [[i, -i] for i in range(40)], "y": [0, 1] * 20, "client": ["anna", "ben"] * 20}
    types = {"x": datasets.Sequence(_value("float32")), "y": _value("int64"), "client": _value("string")}
    _save(tmp_path, columns, types)
    data = _load(tmp_path)
    assert (data.num_train, len(data.y), data.input_shape) == (36, 40, (2,))
    assert data.owners is not None
    assert list(data.owners.names) == ["anna", "ben"]
    assert {int(data.y[row]) for row in data.owners.train(1)} == {1}


@pytest.mark.parametrize(("mode", "shape"), [("L", (1, 4, 6)), ("RGB", (3, 4, 6))])
def test_pictures_are_bytes_and_other_columns_are_left_out(
    tmp_path: Path, mode: str, shape: tuple[int, ...]
) -> None:
    """Catches height and width exchanged, and a number next to the picture that becomes an input."""
    from PIL import Image

    rng = np.random.default_rng(0)
    size = (4, 6) if mode == "L" else (4, 6, 3)
    raw = [rng.integers(0, 256, size, dtype=np.uint8) for _ in range(6)]
    columns = {"image": [Image.fromarray(a) for a in raw], "id": list(range(6)), "label": [0, 1, 2] * 2}
    _save(tmp_path, columns, {"image": datasets.Image(), "id": _value("int64"), "label": CLASSES}, test=2)
    data = _load(tmp_path)
    assert (data.kind, data.input_shape, data.x.dtype) == ("image", shape, np.uint8)
    got = data.x[3].reshape(shape)
    assert np.array_equal(got, raw[3][None] if mode == "L" else raw[3].transpose(2, 0, 1))


def test_numbers_to_predict_and_several_labels(tmp_path: Path) -> None:
    """Catches targets cut to whole numbers."""
    (tmp_path / "two").mkdir()
    _save(
        tmp_path,
        {"a": [1.0] * 10, "target": [i / 4 for i in range(10)]},
        {n: _value("float32") for n in ("a", "target")},
    )
    data = _load(tmp_path, task="regression")
    assert (data.task, data.input_shape) == ("regression", (1,))
    assert sorted(data.y.tolist()) == [i / 4 for i in range(10)]
    columns = {"a": [[0.0, 1.0]] * 10, "labels": [[1, 0, i % 2] for i in range(10)]}
    types = {"a": datasets.Sequence(_value("float32")), "labels": datasets.Sequence(_value("int8"))}
    _save(tmp_path / "two", columns, types)
    assert (_load(tmp_path / "two").task, _load(tmp_path / "two").num_classes) == ("multi-label", 3)


def test_bytes_in_arrays_are_pictures(tmp_path: Path) -> None:
    """The library hands them out as int64, which would be taken for features that are not scaled."""
    columns = {"x": np.arange(10 * 12, dtype=np.uint8).reshape(10, 3, 4), "label": [0, 1] * 5}
    _save(tmp_path, columns, {"x": datasets.Array2D((3, 4), "uint8"), "label": _value("int8")})
    assert (_load(tmp_path).kind, _load(tmp_path).input_shape) == ("image", (1, 3, 4))


def test_a_folder_is_read_again_when_it_changes_and_else_comes_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = {"a": _value("float32"), "label": _value("int64")}
    _save(tmp_path, {"a": [0.0] * 10, "label": [0, 1] * 5}, types)
    first = _load(tmp_path)
    monkeypatch.setattr(datasets, "load_from_disk", None)
    assert _load(tmp_path).fingerprint == first.fingerprint
    monkeypatch.undo()
    _save(tmp_path, {"a": [5.0] * 10, "label": [0, 1] * 5}, types)
    assert _load(tmp_path).fingerprint != first.fingerprint


@pytest.mark.parametrize(
    ("types", "words"),
    [
        (
            {"fine": CLASSES, "coarse": CLASSES},
            r"one column of labels.*fine, coarse among fine \(ClassLabel\)",
        ),
        ({"a": _value("float32")}, "got none among a .float32.*save_to_disk"),
        ({"a": _value("string"), "label": CLASSES}, r"label; got a \(string\).*: a cannot be an input"),
        ({"idx": _value("int32"), "label": CLASSES}, "idx cannot be an input"),
        ({"a": CLASSES, "target": _value("float32")}, "a cannot be an input"),
        ({"label": CLASSES}, "got label .ClassLabel.: no such columns"),
    ],
)
def test_columns_whose_part_is_not_clear_are_refused_by_name(
    tmp_path: Path, types: dict[str, Any], words: str
) -> None:
    values = {n: ["1"] * 4 if f == _value("string") else [1] * 4 for n, f in types.items()}
    _save(tmp_path, values, types)
    with pytest.raises(DataError, match=words):
        _load(tmp_path)


def test_lists_of_several_lengths_and_pictures_of_several_sizes_are_refused(tmp_path: Path) -> None:
    from PIL import Image

    types = {"x": datasets.Sequence(_value("float32")), "label": CLASSES}
    _save(tmp_path, {"x": [[1.0], [1.0, 2.0]], "label": [0, 1]}, types)
    with pytest.raises(DataError, match='column "x", lists of one length'):
        _load(tmp_path)
    (tmp_path / "two").mkdir()
    pictures = [Image.new("L", (4, 4)), Image.new("L", (5, 4))]
    _save(tmp_path / "two", {"x": pictures, "label": [0, 1]}, {"x": datasets.Image(), "label": CLASSES})
    with pytest.raises(
        DataError, match=r"example 1 is 5x4; expected all pictures to be like the first, example 0: 4x4"
    ):
        _load(tmp_path / "two")


def test_what_is_no_set_is_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="a folder that save_to_disk"):
        _load(tmp_path, f"hf:{tmp_path}")
    for name in ("hf:", "hf:a/b/c/d", "hf:a b", "hf:../x\n"):
        with pytest.raises(ConfigError, match='"dataset": expected "hf:NAME"'):
            _load(tmp_path, name)
    with pytest.raises(ConfigError, match='"model": "hf:" begins data sets'):
        check_names(read_config({"model": "hf:Net"}))


def test_offline_and_not_in_the_cache_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches the library's words alone, which do not say what to do; and parts of a name mixed up."""
    asked = []

    def offline(*names: str) -> None:
        asked.append(names)
        raise ConnectionError("Couldn't reach it")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    for name in ("hf:mnist", "hf:nyu-mll/glue/cola"):
        with pytest.raises(
            DataError, match="not in the cache of this machine, and the hub cannot be reached"
        ):
            _load(tmp_path, name)
    assert asked == [("mnist",), ("nyu-mll/glue", "cola")]


def test_a_set_is_no_code_but_an_owner_hears_of_it() -> None:
    """Catches a hash of code that no node has, and a set that a node downloads unasked."""
    assert references_in({"dataset": "hf:ylecun/mnist"}) == ("hf:ylecun/mnist",)
    assert code_of(["hf:ylecun/mnist"]) == {}


def test_pictures_of_the_hub_are_read_by_the_same_modes(tmp_path: Path) -> None:
    from PIL import Image

    deep = Image.fromarray(np.full((4, 4), 3000, np.uint16))
    clear = Image.new("RGBA", (4, 4), (9, 9, 9, 0))
    for name, image, says in (("a", deep, r"mode I;16"), ("b", clear, "transparent in places")):
        (tmp_path / name).mkdir()
        columns = {"x": [Image.new("L", (4, 4)), image], "label": [0, 1]}
        _save(tmp_path / name, columns, {"x": datasets.Image(), "label": CLASSES})
        with pytest.raises(DataError, match=f"the picture of example 1 is .*{says}"):
            _load(tmp_path / name)


def test_a_validation_split_is_never_dropped_without_a_word(tmp_path: Path) -> None:
    columns = {"a": [float(i) for i in range(12)], "label": [0, 1, 2] * 4}
    features = datasets.Features({"a": _value("float64"), "label": CLASSES})
    whole = datasets.Dataset.from_dict(columns, features=features)
    parts = {"train": whole.select(range(6)), "validation": whole.select(range(6, 10))}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "set"))
    data = _load(tmp_path)
    assert (data.num_train, len(data.y)) == (6, 10)
    assert data.notes == ("the split validation (4 examples) is the test set, since there is no test part",)
    (tmp_path / "two").mkdir()
    parts["test"] = whole.select(range(10, 12))
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "two" / "set"))
    data = _load(tmp_path / "two")
    assert (data.num_train, len(data.y)) == (6, 8)
    assert data.notes[0].startswith("the split validation (4 examples) is left out")
