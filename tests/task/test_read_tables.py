"""What csv files and arrays of all kinds of programs are read as: right, or refused with the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from task.config.sections import DataConfig
from task.datasets import Dataset, check_owned, load_owned
from task.datasets.layout import channels_first
from task.datasets.own import rearranged
from task.errors import DataError
from tests.task.helpers import load


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))


def csv(tmp_path: Path, content: str | bytes, name: str = "t.csv", **keys: Any) -> Dataset:
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return load(dataset="csv", data_path=str(tmp_path / name), **keys)


def sites(tmp_path: Path, **files: str) -> Path:
    (tmp_path / "sites").mkdir()
    for name, text in files.items():
        (tmp_path / "sites" / f"{name}.csv").write_text(text)
    return tmp_path / "sites"


def rows(*labels: str, header: str = "age,ill", line: str = "{i},{label}") -> str:
    return "\n".join([header, *(line.format(i=i, label=label) for i, label in enumerate(labels))]) + "\n"


# ----------------------------------------------------------------------------------- labels


def test_whole_numbers_are_one_label_however_they_are_written(tmp_path: Path) -> None:
    """As pandas writes 0.0 and 1.0 once a label is missing."""
    root = sites(tmp_path, a=rows(*"0101"), b=rows("0.0", "1.0", "1.00", "0."), c=rows("+1", "00"))
    data = load(dataset="csv", data_path=str(root))
    assert data.classes == ("0", "1")
    assert sorted(data.y.tolist()) == [0] * 5 + [1] * 5
    named = csv(tmp_path, rows("1.0", "0", header="age,ill:target(0|1)"))
    assert sorted(named.y.tolist()) == [0, 1]
    config = DataConfig(dataset="csv", num_classes=2)
    assert sorted(load_owned(config, str(root / "b.csv"), "b", 1).y.tolist()) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("one", "other"),
    [("Yes", "yes"), ("in  situ", "In situ"), ("1", "True"), ("7.5", "7.50"), ("e\u0301", "\u00e9")],
)
def test_labels_that_differ_in_spelling_only_are_shown(tmp_path: Path, one: str, other: str) -> None:
    root = sites(tmp_path, a=rows(one, "none"), b=rows("none", other))
    with pytest.raises(DataError) as info:
        load(dataset="csv", data_path=str(root))
    assert (
        f'b.csv, line 3, column "ill": expected labels that differ in more than spelling; got "{other}"'
        in str(info.value)
    )
    assert f'and "{one}" in a.csv, line 2. Write them alike' in str(info.value)
    assert "[withheld]" in info.value.public
    assert other not in info.value.public.replace("[withheld]", "").split("spelling")[1]


@pytest.mark.parametrize("cell", ["", "NaN", "NA", "null", "#N/A", "<NA>"])
def test_a_missing_label_is_no_class(tmp_path: Path, cell: str) -> None:
    with pytest.raises(DataError, match=r't.csv, line 3, column 2 "ill": expected a label; ') as told:
        csv(tmp_path, rows("0", cell, "1"))
    assert ("name:target(a|b)" in str(told.value)) == bool(cell)  # an empty cell names nothing
    if cell == "NA":
        assert csv(tmp_path, rows("DE", "NA", header="age,land:target(DE|NA)")).classes == ("DE", "NA")


def test_booleans_and_quoted_numbers_are_read(tmp_path: Path) -> None:
    data = csv(tmp_path, rows(*("True", "False") * 2, line='"{i}",{label}'))
    assert (data.classes, sorted(data.x.ravel().tolist())) == (("False", "True"), [0, 1, 2, 3])


@pytest.mark.parametrize("codes", [(1000000123, 1000000456), (250123, 250456), (3, 5)])
def test_class_codes_are_numbered(tmp_path: Path, codes: tuple[int, int]) -> None:
    y = np.array(codes * 10)
    np.savez(tmp_path / "t.npz", x=np.arange(20.0)[:, None], y=y)
    data = load(dataset="npz", data_path=str(tmp_path / "t.npz"))
    assert (data.num_classes, data.classes) == (2, tuple(map(str, codes)))
    assert data.notes[0].startswith(
        f"y has 2 different labels, the largest {codes[1]}: they are numbered 0 to 1"
    )
    assert csv(tmp_path, rows(*map(str, y))).classes == data.classes
    assert check_owned(tmp_path / "t.npz", "ward", tmp_path / "cache").startswith("npz, 20 training")
    with pytest.raises(DataError, match=rf"expected labels 0\.\.1 \(2 classes\); got {codes[0]}"):
        load_owned(DataConfig(dataset="npz", num_classes=2), str(tmp_path / "t.npz"), "ward", 1)


def test_codes_beyond_64_bits_are_refused_at_a_node(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.zeros((2, 1)), y=np.array([0, 2**63], np.uint64))
    with pytest.raises(DataError, match="expected labels from 0 on; got 9223372036854775808 in example 1"):
        check_owned(tmp_path / "t.npz", "ward", tmp_path / "cache")


# ---------------------------------------------------------------------------------- headers


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "age,ill,\n1,0,\n2,1,\n",
            "line 1, column 3: expected the name of a column; got ''. Does the line end with",
        ),
        (
            ",age,ill\n0,1,0\n1,2,1\n",
            r"line 1, column 1: expected the name .*Is it the index that pandas writes",
        ),
        (
            "Unnamed: 0,age,ill\n0,1,0\n",
            r"column 1: expected the name of a column; got 'Unnamed: 0'.*index=False",
        ),
        (
            "age,,ill\n0,1,0\n",
            r"column 2: expected the name of a column; got ''. Name the column rest:ignore",
        ),
        (
            "age,Client,ill\n0,1,0\n",
            r"column 2: expected \"client\" in small letters, or a type; got 'Client'. Type it Client:client",
        ),
        (
            "Label,age,bmi\n0,1,25.5\n",
            r"line 1: expected one column to predict.*got 'Label', and 'bmi' at the end",
        ),
        ("target,age,bmi\n0,1,25.5\n", r"got 'target', and 'bmi' at the end. Type one of them"),
        ("age;bmi;ill\n1,5;2,5;0\n", "line 1: .*Save it with commas between the cells, not ';'"),
        ("age, years;bmi;ill\n1,5;2,5;0\n", "line 1: .*Save it with commas between the cells, not ';'"),
    ],
)
def test_a_header_that_could_be_misread_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        csv(tmp_path, text)


def test_an_untyped_column_of_ids_is_named(tmp_path: Path) -> None:
    data = csv(tmp_path, rows("0", "1", header="id,ill"))
    assert data.notes[0].startswith('column "id" is read as a number like any other')
    assert (
        csv(tmp_path, rows("0", "1", header="id,age,ill", line="{i},{i},{label}"), "u.csv").notes
        == data.notes
    )
    typed = csv(tmp_path, rows("0", "1", header="id:ignore,age,ill", line="{i},{i},{label}"), "v.csv")
    assert typed.notes == ()


def test_rows_with_ids_may_say_which_part_they_are_in(tmp_path: Path) -> None:
    """A row that is left out, here the second, takes its id with it."""
    parts = ("train", "validation", "test", "train")
    text = "who:id,split,a,label\n" + "".join(f"p{i},{part},{i},{i % 2}\n" for i, part in enumerate(parts))
    data = csv(tmp_path, text)
    assert data.ids is not None
    assert (data.num_train, list(zip(data.ids, data.x[:, 0], strict=True))) == (
        2,
        [("p0", 0), ("p3", 3), ("p2", 2)],
    )


def test_values_of_a_category_that_differ_in_spelling_only_are_named(tmp_path: Path) -> None:
    data = csv(tmp_path, "job:category,ill\nnurse,0\nNurse,1\nclerk,0\nclerk,1\n")
    assert data.notes[0].startswith('column "job": the values "Nurse" and "nurse" differ in spelling only')
    text = "job:category(a|A|b),ill:target(no|No)\na,no\nA,No\na,no\nA,No\n"
    assert [note.partition(", and")[0] for note in csv(tmp_path, text, "u.csv").notes] == [
        'column "job": the values "a" and "A" differ in spelling only',
        'column "ill": the values "no" and "No" differ in spelling only',
    ]


# ------------------------------------------------------------------------------------ files


def test_a_file_without_rows_and_files_that_are_no_csv_are_named(tmp_path: Path) -> None:
    root = sites(tmp_path, a=rows(*"0101"), b=rows(), c=rows(*"10"))
    for name in ("._a.csv", ".DS_Store", "d.tsv"):
        (root / name).write_bytes(b"x")
    (root / "a.csv").rename(root / "A.CSV")
    data = load(dataset="csv", data_path=str(root), partition="natural", num_clients=0)
    assert data.notes == (
        "1 file has a header and no row, and is left out: b.csv",
        "1 files or folders are no csv, and are left out: d.tsv",
    )
    assert data.owners is not None
    assert tuple(data.owners.names) == ("A", "c")


def test_owners_that_a_partition_does_not_follow_are_named(tmp_path: Path) -> None:
    root = sites(tmp_path, a=rows(*"0101"), b=rows(*"0110"))
    mixed = DataConfig(dataset="csv", data_path=str(root), num_clients=3)
    said = rearranged(load(dataset="csv", data_path=str(root), num_clients=3), mixed)
    assert said.startswith(
        'the data say who owns each example (2 owners, such as a), but partition = "iid" pools'
    )
    assert 'partition="natural"' in said
    natural = DataConfig(dataset="csv", data_path=str(root), partition="natural")
    assert rearranged(load(dataset="csv", data_path=str(root), partition="natural"), natural) == ""
    assert rearranged(load(dataset="digits"), DataConfig(dataset="digits")) == ""


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfage,ill\n0,0\n1,1\n",
        b"age,ill\r\n0,0\r\n1,1\r\n\r\n",
        b"age,ill\r0,0\r1,1\r",
        b'"age","ill"\n"0","0"\n"1","1"\n   \n\n',
        b" age , ill \n 0 , 0 \n 1 ,1\n",
    ],
)
def test_forms_of_the_same_file(tmp_path: Path, content: bytes) -> None:
    data = csv(tmp_path, content)
    assert (data.columns, data.classes, sorted(data.x.ravel().tolist())) == (
        ("age", "ill"),
        ("0", "1"),
        [0, 1],
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            "age,name,ill\n1,x,0\n2,Ren\u00e9,1\n".encode("latin-1"),
            "t.csv, line 3, column 2: expected text in UTF-8",
        ),
        ("age,ill\n1,0\n".encode("utf-16"), "t.csv, line 1, column 1: expected text in UTF-8"),
        (b'age,ill\n1,0\n"2,1\n3,0\n', r"t.csv, line 3: expected .* each quotation mark closed; got "),
        (b"age,ill\n1,0\n,,,\n", "t.csv, line 3: expected 2 cells"),
        (
            b'age,ill\n"1,5",0\n',
            r'line 2, column 1 "age": expected a number; got "1,5". Write numbers with a dec',
        ),
        (b'age,ill\n"1,234.5",0\n', r'got "1,234.5". Write numbers with a decimal point'),
        (b"age,ill\n1 234,0\n", r'got "1 234". Write numbers with a decimal point'),
        (b"age,ill\n1_234,0\n", r'line 2, column 1 "age": expected a number; got "1_234"'),
        (b"age,ill\n1e39,0\n", r'line 2, column 1 "age": expected a number; got "1e39"'),
    ],
)
def test_a_cell_that_could_be_misread_is_refused_with_its_place(
    tmp_path: Path, content: bytes, says: str
) -> None:
    with pytest.raises(DataError, match=says):
        csv(tmp_path, content)


def test_labels_with_underscores_are_no_numbers(tmp_path: Path) -> None:
    assert csv(tmp_path, rows(*("1_0", "10") * 2)).classes == ("10", "1_0")


@pytest.mark.parametrize("name", ["val", "Valid", "validation"])
def test_rows_for_validation_are_never_dropped_without_a_word(tmp_path: Path, name: str) -> None:
    header, line = "age,split,ill", "{i},{label},0"
    data = csv(tmp_path, rows("Train", "training", name, header=header, line=line) + "3,TRAIN,1\n")
    assert (data.num_train, len(data.y)) == (3, 4)
    assert data.notes == ("split = validation (1 examples) is the test set, since there is no test part",)
    data = csv(tmp_path, rows("train", "Test", name, header=header, line=line) + "3,train,1\n", "u.csv")
    assert (data.num_train, len(data.y)) == (2, 3)
    assert data.notes[0].startswith("split = validation (1 examples) is left out")


# ----------------------------------------------------------------------------------- arrays


def arrays(tmp_path: Path, **given: Any) -> Dataset:
    np.savez(tmp_path / "t.npz", **({"x": np.arange(6.0)[:, None], "y": np.arange(6) % 2} | given))
    return load(dataset="npz", data_path=str(tmp_path / "t.npz"))


def test_arrays_that_are_not_read_are_named(tmp_path: Path) -> None:
    more = {"x_val": np.full((2, 1), 9.0), "y_val": np.array([0, 1])}
    data = arrays(tmp_path, weights=np.ones(6), **more)
    assert (data.num_train, data.x[6:].tolist()) == (6, [[9], [9]])
    assert data.notes == (
        "1 arrays are not read: weights",
        "x_val and y_val (2 examples) is the test set, since there is no test part",
    )
    data = arrays(tmp_path, x_test=np.full((1, 1), 8.0), y_test=np.array([0]), **more)
    assert data.x[6:].tolist() == [[8]]
    assert data.notes[0].startswith("x_val and y_val (2 examples) is left out")


@pytest.mark.parametrize("value", [1e39, -1e300, np.inf])
def test_numbers_that_float32_has_not_are_refused(tmp_path: Path, value: float) -> None:
    with pytest.raises(DataError, match="finite numbers that fit float32"):
        arrays(tmp_path, x=np.full((6, 1), value))


def test_a_test_part_of_another_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected x_test of the type of x, uint8; got float64"):
        arrays(tmp_path, x=np.zeros((6, 4, 4), np.uint8), x_test=np.zeros((1, 4, 4)), y_test=np.array([0]))


@pytest.mark.parametrize(
    ("shape", "read"),
    [
        ((8, 12, 4), (4, 8, 12)), ((8, 12, 2), (2, 8, 12)), ((8, 12, 3), (3, 8, 12)),
        ((4, 8, 12), (4, 8, 12)),
        ((2, 8, 12), (2, 8, 12)), ((13, 16, 16), (13, 16, 16)), ((16, 16, 13), (13, 16, 16)),
        ((4, 4, 3), (3, 4, 4)), ((8, 12, 5), None), ((4, 12, 2), None), ((9, 9, 9), None),
        ((2, 8, 12, 3), None),
    ],
)  # fmt: skip
def test_channels_are_found_or_the_shape_is_refused(tmp_path: Path, shape: Any, read: Any) -> None:
    x = np.random.default_rng(1).integers(0, 256, (6, *shape), dtype=np.uint8)
    if read is None:
        with pytest.raises(DataError, match=rf"expected pictures as uint8 .* got shape \[6, {shape[0]}, "):
            arrays(tmp_path, x=x)
        return
    data = arrays(tmp_path, x=x)
    assert data.input_shape == read
    assert np.shares_memory(channels_first(x, ""), x)
    turned = x if read == shape else x.transpose(0, 3, 1, 2)
    assert sorted(map(bytes, data.x)) == sorted(a.tobytes() for a in turned)


def test_numbers_with_the_shape_of_pictures_are_named(tmp_path: Path) -> None:
    data = arrays(tmp_path, x=np.random.default_rng(1).random((6, 8, 12, 3)))
    assert data.input_shape == (8, 12, 3)
    assert data.notes[0].startswith(
        "x has shape [6, 8, 12, 3], which a convolutional model reads as 8 channels"
    )
