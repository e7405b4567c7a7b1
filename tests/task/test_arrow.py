"""Folders of save_to_disk and of `flwr-datasets create`: what a node reads of them, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import flwr_datasets.federated_dataset
import numpy as np
import pyarrow as pa
import pytest
from flwr_datasets.cli.create import create
from PIL import Image

from task.datasets import Dataset, arrow, check_owned, hub, load_dataset, load_owned
from task.datasets.description import meaning_of
from task.errors import DataError
from task.resolve.read import read_config

CLASSES = datasets.ClassLabel(names=["cat", "dog", "fox"])
NUMBER = datasets.Value("float32")


def own(folder: Path, **keys: Any) -> Dataset:
    """Return what a node has whose data-path is the folder `set`."""
    config = read_config({"dataset": "arrow", "cache-dir": str(folder / "cache"), **keys})
    return load_owned(config.data, str(folder / "set"), "ward-1", 1)


def table(names: str = "ab", rows: int = 20, **features: Any) -> Any:
    columns = {name: [float(i + ord(name)) for i in range(rows)] for name in names}
    columns["label"] = [i % 3 for i in range(rows)]
    types = dict.fromkeys(names, NUMBER) | {"label": CLASSES} | features
    return datasets.Dataset.from_dict(columns, features=datasets.Features(types))


def pictures(rows: int = 12, *, size: tuple[int, ...] = (4, 6), feature: Any = None) -> Any:
    rng = np.random.default_rng(0)
    raw = [Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8)) for _ in range(rows)]
    columns = {"img": raw, "label": [i % 3 for i in range(rows)]}
    types = {"img": feature or datasets.Image(), "label": CLASSES}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(types))


def test_a_nodes_table_has_its_columns_and_classes_by_name(tmp_path: Path) -> None:
    """A node whose classes are numbers to the others; rows of its own test set that it trains on."""
    table().save_to_disk(str(tmp_path / "set"))
    data = own(tmp_path)
    assert (data.num_train, len(data.y), data.classes) == (18, 20, ("cat", "dog", "fox"))
    assert data.columns == ("a", "b", "label")
    assert sorted(data.x.tolist()) == [[97.0 + i, 98.0 + i] for i in range(20)]
    assert [int(data.x[i, 0] - 97) % 3 for i in range(20)] == data.y.tolist()
    assert check_owned(tmp_path / "set", "ward-1", tmp_path / "cache").startswith("arrow, 20 training")


def test_a_nodes_test_part_is_its_split(tmp_path: Path) -> None:
    whole = table(rows=9)
    parts = {"train": whole.select(range(5)), "validation": whole.select(range(5, 9))}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "set"))
    data = own(tmp_path)
    assert (data.num_train, data.x[5:, 0].tolist()) == (5, [102.0, 103.0, 104.0, 105.0])
    assert "the split validation (4 examples) is the test set" in data.notes[0]


@pytest.mark.parametrize(
    ("size", "feature", "shape"),
    [
        ((4, 6), datasets.Image(), (1, 4, 6)),
        ((4, 6, 3), datasets.Image(), (3, 4, 6)),
        ((4, 6), datasets.Image(mode="RGB"), (3, 4, 6)),
    ],
)
def test_a_nodes_pictures_are_bytes_as_they_were(
    tmp_path: Path, size: tuple[int, ...], feature: Any, shape: tuple[int, ...]
) -> None:
    """Height and width exchanged; a mode that the set converts its pictures to, left out."""
    made = pictures(size=size, feature=feature)
    made.save_to_disk(str(tmp_path / "set"))
    data = own(tmp_path, **{"local-test-fraction": 0.0})
    assert (data.kind, data.input_shape, data.x.dtype) == ("image", shape, np.uint8)
    planes = np.asarray(made[5]["img"])
    assert np.array_equal(
        data.x[5].reshape(shape), planes[None] if planes.ndim == 2 else planes.transpose(2, 0, 1)
    )


def test_what_is_not_read_is_said(tmp_path: Path) -> None:
    made = pictures().add_column("caption", ["a word"] * 12)
    made.save_to_disk(str(tmp_path / "set"))
    assert own(tmp_path).notes == ("1 columns are not read: caption",)


def test_nodes_agree_on_names_and_not_on_places(tmp_path: Path) -> None:
    """Columns in another order that are read by place; class 1 that is a dog here and a fox there."""
    other = datasets.ClassLabel(names=["cat", "fox", "dog"])
    made = {"one": table("ab"), "two": table("ba"), "three": table(label=other), "four": table("ac")}
    meanings = {}
    for name, one in made.items():
        one.save_to_disk(str(tmp_path / name / "set"))
        meanings[name] = meaning_of(own(tmp_path / name))
    first = meanings["one"]
    assert [first.differing(meanings[name]) for name in made] == [[], [], [], ["columns"]]
    assert first.inputs == meanings["two"].inputs[::-1]
    assert first.outputs != meanings["three"].outputs
    table(label=datasets.ClassLabel(names=["cat", "dog", "owl"])).save_to_disk(str(tmp_path / "five" / "set"))
    assert first.differing(meaning_of(own(tmp_path / "five"))) == ["classes"]


@pytest.fixture
def created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return what `flwr-datasets create` made of 24 pictures, in three folders."""
    made = datasets.DatasetDict({"train": pictures(24)})
    monkeypatch.setattr(flwr_datasets.federated_dataset.datasets, "load_dataset", lambda **names: made)
    create("owner/pictures", 3, tmp_path / "made")
    return tmp_path / "made"


def pooled(folder: Path, path: Path) -> Dataset:
    config = read_config({"dataset": "arrow", "data-path": str(path), "cache-dir": str(folder / "cache")})
    return load_dataset(config.data, config.synthetic, config.seed)


def test_what_flwr_datasets_creates_is_a_node_each_or_owners_together(created: Path, tmp_path: Path) -> None:
    """A simulation whose clients are not the nodes of the deployment."""
    data = pooled(tmp_path, created)
    assert data.owners is not None
    assert list(data.owners.names) == ["partition_0", "partition_1", "partition_2"]
    assert (len(data.y), data.num_train, data.classes) == (24, 21, ("cat", "dog", "fox"))
    config = read_config({"dataset": "arrow", "cache-dir": str(tmp_path / "cache")})
    one = load_owned(config.data, str(created / "partition_1"), "ward-1", 1)
    assert len(one.y) == 8
    theirs = data.x[data.owners.train(1)]
    assert {row.tobytes() for row in theirs} <= {row.tobytes() for row in one.x}


def test_the_folder_of_all_nodes_is_no_data_of_one(created: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"got the folders of 3 owners, such as .*partition_0"):
        check_owned(created, "ward-1", tmp_path / "cache")
    (created / "notes.txt").touch()
    assert pooled(tmp_path, created).notes == (
        "1 files or folders are no data sets, and are left out: notes.txt",
    )
    table().save_to_disk(str(created / "partition_3"))
    with pytest.raises(DataError, match=r"same splits and columns of all owners; those of .*partition_3"):
        pooled(tmp_path, created)


# --------------------------------------------------------------------------------------- what is refused


def written(folder: Path, name: str, **changes: Any) -> None:
    path = folder / "set" / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def compress(folder: Path) -> None:
    path = next((folder / "set").glob("*.arrow"))
    whole = pa.ipc.open_stream(path.read_bytes()).read_all()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, whole.schema, options=options) as out:
        out.write_table(whole)


def lead_astray(folder: Path) -> None:
    """Let the last list end far behind the last value."""
    path = next((folder / "set").glob("*.arrow"))
    ends = np.arange(0, 18, 2, dtype=np.int32)
    raw = path.read_bytes()
    assert raw.count(ends.tobytes()) == 1
    path.write_bytes(raw.replace(ends.tobytes(), ends.tobytes()[:-4] + np.int32(2**20).tobytes()))


def cut(folder: Path) -> None:
    path = next((folder / "set").glob("*.arrow"))
    path.write_bytes(path.read_bytes()[:-40])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: written(f, "state.json", _data_files=[{"filename": "../cache/x"}]), r"got '../cache/x'"),
        (lambda f: written(f, "state.json", _data_files=[{"filename": ".."}]), r"got '\.\.'"),
        (lambda f: written(f, "state.json", _data_files=[{"filename": 7}]), "names in this folder; got 7"),
        (lambda f: written(f, "state.json", _data_files=[]), "names in this folder; got none"),
        (lambda f: (f / "set" / "state.json").write_text("[" * 10**5), "state.json.*expected JSON"),
        (lambda f: (f / "set" / "state.json").write_text("[]"), "expected a JSON object"),
        (lambda f: (f / "set" / "dataset_info.json").unlink(), "dataset_info.json.*No such file"),
        (lambda f: (f / "set" / "dataset_dict.json").write_text('{"splits": ["/etc"]}'), "got '/etc'"),
        (lambda f: (f / "set" / "dataset_dict.json").write_text('{"splits": ["a"]}'), "got none of .*a"),
        (compress, "plain rows, as save_to_disk writes them; got a compressed record batch"),
        (cut, "cannot be read as Arrow"),
        (lead_astray, "cannot be loaded"),
    ],
)
def test_a_folder_that_save_to_disk_did_not_write_so_is_refused(
    tmp_path: Path, spoil: Callable[[Path], object], words: str
) -> None:
    """A file elsewhere that is read; memory that a few bytes fill; a read past a buffer's end."""
    types = {"x": datasets.Sequence(NUMBER), "label": CLASSES}
    columns = {"x": [[0.0, 1.0]] * 8, "label": [0, 1] * 4}
    datasets.Dataset.from_dict(columns, features=datasets.Features(types)).save_to_disk(str(tmp_path / "set"))
    assert own(tmp_path).input_shape == (2,)
    spoil(tmp_path)
    with pytest.raises(DataError, match=words):
        own(tmp_path)


@pytest.mark.parametrize("module", [arrow, hub])
def test_a_set_that_does_not_fit_into_memory_is_refused(
    tmp_path: Path, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bits that become numbers of eight bytes each."""
    rows = {"a": [i % 2 == 0 for i in range(2**16)], "label": [0, 1] * 2**15}
    types = datasets.Features({"a": datasets.Value("bool"), "label": datasets.Value("int8")})
    datasets.Dataset.from_dict(rows, features=types).save_to_disk(str(tmp_path / "set"))
    monkeypatch.setattr(module, "available", lambda: 2**16 if module is arrow else 2**19 - 1)
    with pytest.raises(DataError, match="left on this machine"):
        own(tmp_path, **{"num-classes": 2})
    monkeypatch.setattr(module, "available", lambda: 2**19)
    assert own(tmp_path, **{"num-classes": 2}).num_classes == 2


def test_a_picture_elsewhere_is_not_opened(tmp_path: Path) -> None:
    """The path in a set may be that of any file of a node, or an address on the internet."""
    Image.new("L", (4, 4)).save(tmp_path / "secret.png")
    types = datasets.Features({"img": datasets.Image(decode=False), "label": CLASSES})
    columns = {"img": [{"path": str(tmp_path / "secret.png"), "bytes": None}] * 4, "label": [0, 1] * 2}
    datasets.Dataset.from_dict(columns, features=types).save_to_disk(str(tmp_path / "set"))
    path = next((tmp_path / "set").glob("*.arrow"))
    whole = pa.ipc.open_stream(path.read_bytes()).read_all()
    place = whole.schema.get_field_index("img")
    bare = pa.array(
        [{"bytes": None, "path": str(tmp_path / "secret.png")}] * 4, whole.schema.field("img").type
    )
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, whole.schema) as out:
        out.write_table(whole.set_column(place, whole.schema.field("img"), bare))
    with pytest.raises(DataError, match="expected a picture in each example; example 0 has none"):
        own(tmp_path)


def test_an_example_without_a_label_is_refused(tmp_path: Path) -> None:
    types = datasets.Features({"a": NUMBER, "label": CLASSES})
    for label, words in ((None, "label in each example of train; 1 have none"), (-1, "labels 0..2")):
        rows = {"a": [0.0] * 4, "label": [0, 1, 2, label]}
        datasets.Dataset.from_dict(rows, features=types).save_to_disk(str(tmp_path / words[:9] / "set"))
        with pytest.raises(DataError, match=words):
            own(tmp_path / words[:9])
