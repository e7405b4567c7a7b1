import dataclasses
import io
import shutil
import zipfile

import numpy as np
import pytest
from PIL import Image

from task import datasets
from task.config.sections import DataConfig
from task.datasets import check_owned, images, load_owned
from task.datasets.skew import load_partitioned
from task.errors import ConfigError, DataError
from task.resolve.read import read_config
from tests.task.helpers import load


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch, request):
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))
    if "data_folder" not in request.fixturenames:
        monkeypatch.setenv("BOUQUET_DATA", str(tmp_path / "data"))


def table(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def own(dataset, path, client="ward-3", seed=1, **keys):
    return load_owned(DataConfig(dataset=dataset, **({"num_classes": 3} | keys)), str(path), client, seed)


def rows_of(data, rows):
    return sorted(map(tuple, np.column_stack([data.x[rows], data.y[rows]]).tolist()))


SPLIT = """age,label,client,split,dose
1,sick,b,train,0.5
2,well,a,train,-1e3
3,sick,b,test,0
4,cured,a,train,7
"""


def test_csv_with_owners_and_split(tmp_path):
    data = load(dataset="csv", data_path=table(tmp_path / "t.csv", SPLIT))
    assert (data.classes, data.num_classes, data.kind) == (("cured", "sick", "well"), 3, "features")
    assert (data.num_train, data.input_shape, data.owners.names) == (3, (2,), ("a", "b"))
    assert data.x.tolist() == [[1, 0.5], [2, -1000], [4, 7], [3, 0]]
    assert data.y.tolist() == [1, 2, 0, 1]
    assert [data.owners.train(i).tolist() for i in (0, 1)] == [[1, 2], [0]]
    assert [data.owners.test(i).tolist() for i in (0, 1)] == [[], [3]]
    assert data.inputs(np.array([3])).tolist() == [[3.0, 0.0]]


def test_csv_takes_the_last_column_for_the_label_and_sorts_numbers(tmp_path):
    lines = "".join(f"{i},{10 - i % 2}\n" for i in range(30))
    path = table(tmp_path / "data/sub/t.csv", "x,y\n" + lines)
    data = load(dataset="csv", data_path="sub/t.csv")  # found below the data folder
    assert load(dataset="csv", data_path=path).fingerprint == data.fingerprint
    assert (data.classes, data.owners, data.num_train, len(data.y)) == (("9", "10"), None, 27, 30)
    assert rows_of(data, slice(None)) == sorted((float(i), float(1 - i % 2)) for i in range(30))
    assert load(seed=2, dataset="csv", data_path=path).fingerprint != data.fingerprint


def test_a_folder_of_csv_files_is_read_by_name(tmp_path):
    header, turned = (
        "job:category(a|b),age,id2:ignore,y:target(ill|well)",
        "y:target(well|ill),age,job:category(b|a)",
    )
    table(tmp_path / "same/1.csv", header + "\n" + "a,30,7,ill\nb,40,7,well\n" * 4)
    table(tmp_path / "same/2.csv", header + "\n" + "b,50,7,ill\na,60,7,well\n" * 4)
    table(tmp_path / "other/1.csv", header + "\n" + "a,30,7,ill\nb,40,7,well\n" * 4)
    table(tmp_path / "other/2.csv", turned + "\n" + "ill,50,b\nwell,60,a\n" * 4)
    same, other = (load(dataset="csv", data_path=str(tmp_path / name)) for name in ("same", "other"))
    assert np.array_equal(same.x, other.x)
    assert np.array_equal(same.y, other.y)
    assert (same.columns, same.classes) == (other.columns, other.classes)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (
            "job:category(a|b),weight,y:target(ill|well)",
            r"missing: \['age'\]; not .*: \['weight'\]",
        ),
        ("job:category(a|c),age,y:target(ill|well)", r"of another type or with other values: \['job'\]"),
        ("job:category(a|b),age,y:target(ill|good)", r"of another type or with other values: \['y'\]"),
        ("job:category(a|b),age:target,y", r"of another type or with other values: \['age', 'y'\]"),
    ],
)
def test_a_csv_file_of_other_columns_is_named_with_them(tmp_path, header, words):
    table(tmp_path / "1.csv", "job:category(a|b),age,y:target(ill|well)\na,30,ill\nb,40,well\n")
    table(tmp_path / "2.csv", header + "\na,30,ill\n")
    with pytest.raises(DataError, match=f"2.csv, line 1: .*{words}"):
        load(dataset="csv", data_path=str(tmp_path))


def saved(path, **arrays):
    np.savez(path, **{"x": np.zeros((4, 3)), "y": np.array([0, 1, 0, 1]), **arrays})
    return load(dataset="npz", data_path=str(path))


def test_npz_files_have_names_where_they_say_so(tmp_path):
    path = tmp_path / "a.npz"
    named = saved(path, columns=np.array(["age", "job:category(a|b)"]), classes=np.array(["ill", "well"]))
    assert named.columns == ("age", "job:category(a|b)", "y")
    assert named.classes == ("ill", "well")
    three = saved(path, classes=np.array(["ill", "well", "dead"]))
    assert (three.num_classes, three.columns) == (3, ())
    labels = saved(path, y=np.array([[0, 1], [1, 1], [1, 0], [0, 0]]), classes=np.array(["cough", "fever"]))
    assert labels.classes == ("cough", "fever")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (
            {"columns": np.array(["age", "bmi"])},
            "to name the inputs of x .* names of 2 inputs",
        ),
        ({"columns": np.array(["age", "bmi", "age"])}, "each name once"),
        ({"columns": np.array(["age", "bmi", "y:target"])}, "expected columns to name the inputs"),
        ({"columns": np.array([1, 2, 3])}, "expected columns as texts"),
        ({"columns": np.array(["age", "job:category(a|b)"]), "x": np.full((4, 3), 2.0)}, "expected 0 or 1"),
        ({"columns": np.array(["a", "b", "c"]), "x": np.zeros((4, 3, 1))}, "to name the inputs of x"),
        ({"classes": np.array(["ill", "ill"])}, "each name in classes once"),
        ({"classes": np.array(["ill"])}, r"expected labels 0..0 \(1 classes\)"),
        ({"classes": np.array(["a"]), "y": np.zeros((4, 2))}, "a name in classes for each of the 2"),
    ],
)
def test_names_in_an_npz_file_that_do_not_fit_are_refused(tmp_path, arrays, words):
    with pytest.raises(DataError, match=words):
        saved(tmp_path / "a.npz", **arrays)


def test_a_folder_of_csv_files_has_one_owner_each(tmp_path):
    for name, size in (("ward 1", 20), ("ward-2", 5)):
        table(tmp_path / f"wards/{name}.csv", "x,label\n" + "".join(f"{size},{i % 2}\n" for i in range(size)))
    data = load(dataset="csv", data_path=str(tmp_path / "wards"))
    assert data.owners.names == ("ward_1", "ward-2")
    for i, name in enumerate(data.owners.names):
        size = 5 if name == "ward-2" else 20
        train, test = data.owners.train(i), data.owners.test(i)
        assert (len(train), len(test)) == ((4, 1) if size == 5 else (18, 2))
        assert set(data.x[np.concatenate([train, test])].ravel()) == {size}
    table(tmp_path / "wards/ward-3.csv", "z,label\n1,0\n")
    with pytest.raises(DataError, match=r"ward-3.csv, line 1: .*missing: \['x'\]; not .*\['z'\]"):
        load(dataset="csv", data_path=str(tmp_path / "wards"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x,label\n1,0\n2,\n", r't.csv, line 3, column 2 "label": expected a label'),
        ("x,label\n1,0\nhot,1\n", r't.csv, line 3, column 1 "x": expected a number; got "hot"'),
        ("x,label\n,0\n", r't.csv, line 2, column 1 "x": expected a value; the cell is empty'),
        ("x,label\ninf,0\n", r'line 2, column 1 "x": expected a number; got "inf"'),
        ("x,label\n1,0,3\n", r"line 2: expected 2 cells .* got 3"),
        ("x,label\n", "at least one row"),
        ("", r"line 1: expected a header"),
        ("label\n1\n", r"line 1: expected a header"),
        ("x,x,label\n1,1,1\n", r"each name once"),
        ("client,label\na,1\n", "at least one feature"),
        ("x,label,split\n1,0,dev\n", r'column 3 "split": expected train, test or validation; got "dev"'),
        ("x,label,client\n1,0,\n", r'column 3 "client": expected a name'),
        ("x,label,split\n1,0,test\n", "expected training examples"),
    ],
)
def test_bad_csv_is_named_by_line_and_column(tmp_path, text, says):
    with pytest.raises(DataError, match=says):
        load(dataset="csv", data_path=table(tmp_path / "t.csv", text))
    assert not (tmp_path / "cache/datasets").exists()


@pytest.mark.parametrize("name", ["a" * 300, "a\x1b[2J", "a\u202eb"])
def test_an_owner_whose_name_no_server_takes_is_refused_where_it_stands(tmp_path, name):
    path = table(tmp_path / "t.csv", f"x,label,client\n1,0,anna\n2,1,{name}\n3,1,anna\n")
    np.savez(tmp_path / "t.npz", x=np.zeros((3, 2)), y=[0, 1, 1], client=["anna", name, "anna"])
    for dataset, file in (("csv", path), ("npz", str(tmp_path / "t.npz"))):
        with pytest.raises(
            DataError, match=r"row 2: expected an owner's name .* 1 to 200 letters"
        ) as refused:
            load(dataset=dataset, data_path=file)
        assert name not in refused.value.public


def test_missing_paths_say_which_key(tmp_path):
    with pytest.raises(DataError, match=r'"data-path".*must name its file or folder'):
        load(dataset="csv")
    with pytest.raises(DataError, match=r'data-path "no.csv".*there is none'):
        load(dataset="npz", data_path="no.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="expected csv files"):
        load(dataset="csv", data_path=str(tmp_path / "empty"))
    with pytest.raises(DataError, match="expected an npz file; got a folder"):
        load(dataset="npz", data_path=str(tmp_path / "empty"))


def test_own_csv_belongs_to_one_client_and_splits_by_name(tmp_path):
    lines = "".join(f"{i},{i % 2},other\n" for i in range(20))
    path = table(tmp_path / "t.csv", "x,label,client\n" + lines)
    data = own("csv", path, local_test_fraction=0.25)
    assert (data.num_classes, data.owners.names, data.num_train) == (3, ("ward-3",), 15)
    assert data.owners.train(0).tolist() == list(range(15))
    assert data.owners.test(0).tolist() == list(range(15, 20))
    assert rows_of(data, slice(None)) == [(float(i), float(i % 2)) for i in range(20)]
    other = own("csv", path, client="ward-4", local_test_fraction=0.25)
    assert set(other.x[15:].ravel()) != set(data.x[15:].ravel())
    assert own("csv", path, local_test_fraction=0.0).num_train == 20


def test_own_labels_must_be_numbers_below_num_classes(tmp_path):
    path = table(tmp_path / "t.csv", "x,label\n1,0\n2,sick\n")
    with pytest.raises(
        DataError, match=r't.csv, line 3, column "label": labels .* must be integers from 0 .* got "sick"'
    ):
        own("csv", path)
    path = table(tmp_path / "u.csv", "x,label\n1,0\n2,3\n")
    with pytest.raises(DataError, match=r'u.csv, line 3, column "label": expected a label 0..2 .* got 3'):
        own("csv", path)
    with pytest.raises(ConfigError, match=r'"num-classes": expected the number of classes'):
        own("csv", path, num_classes=0)
    with pytest.raises(ConfigError, match=r'"dataset": .*one of arrow, csv, imagefolder, npz; got "digits"'):
        own("digits", path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x,label\n1,0\nhot,1\n", r't.csv, line 3, column 1 "x": expected a number'),
        (
            "x,label\n1,0\n2,sick\n",
            r"line 3, column \"label\": labels .* integers from 0 to the run's num-cl",
        ),
        ("x,label\n1,0\n2,-1\n", r'line 3, column "label": expected a label from 0'),
        ("x,label\n1,0\n2,99999999999\n", r'line 3, column "label": expected a label from 0'),
        ("x,label\n", "at least one row"),
        ("x,label,split\n1,0,test\n", "expected training examples"),
    ],
)
def test_own_data_are_checked_before_a_run_says_how_many_classes_there_are(tmp_path, text, says):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=says):
        check_owned(path, "ward-3", tmp_path / "cache")
    path.write_text("x,label\n1,0\n2,7\n")
    assert check_owned(path, "ward-3", tmp_path / "cache").startswith("csv, 2 training and 0 test examples")


def own_table(path):
    path.write_text("x,label,other\n" + "".join(f"{i},{i % 3},{-i}\n" for i in range(20)))


def own_split_table(path):
    path.write_text(
        "x,label,split\n" + "".join(f"{i},{i % 3},{'test' if i % 4 else 'train'}\n" for i in range(20))
    )


def own_folder_of_tables(path):
    path.mkdir()
    for name in "ba":
        own_table(path / f"{name}.csv")


def own_arrays(path):
    with path.open("wb") as file:
        np.savez(file, x=np.arange(40).reshape(20, 2), y=np.arange(20) % 3)


def own_pictures(path):
    for name in ("cat", "dog", "eel"):
        (path / name).mkdir(parents=True)
        for i in range(5):
            Image.fromarray(np.full((4, 4), 9 * i + ord(name[0]), np.uint8)).save(path / name / f"{i}.png")


def own_zip(path):
    own_pictures(path.with_name("pictures"))
    shutil.make_archive(str(path.with_suffix("")), "zip", path.with_name("pictures"))


@pytest.mark.parametrize(
    ("name", "form", "make"),
    [
        ("t.csv", "csv", own_table),
        ("t.dat", "csv", own_split_table),
        ("tables", "csv", own_folder_of_tables),
        ("t.npz", "npz", own_arrays),
        ("folder", "imagefolder", own_pictures),
        ("t.zip", "imagefolder", own_zip),
    ],
)
def test_what_a_check_reads_is_what_every_run_gets(tmp_path, monkeypatch, name, form, make):
    """The files are decoded once, and the data of a run are those that it would decode itself."""
    path = tmp_path / name
    make(path)
    spec, decoded = datasets.DATASETS[form], []

    def decode(request, source):
        decoded.append(request)
        return spec.decode(request, source)

    runs = [{"seed": 1, "local_test_fraction": 0.0}, {"seed": 2, "local_test_fraction": 0.25}]
    with monkeypatch.context() as patch:
        patch.setitem(datasets.DATASETS, form, dataclasses.replace(spec, decode=decode))
        assert check_owned(path, "ward-3", tmp_path / "cache").startswith(form)
        got = [own(form, path, **keys) for keys in runs]
        check_owned(path, "ward-3", tmp_path / "cache")
        assert len(decoded) == 1
    monkeypatch.setattr(datasets, "_owned", datasets._decode)
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "other"))
    for data, keys in zip(got, runs, strict=True):
        assert data.fingerprint == own(form, path, **keys).fingerprint


@pytest.mark.parametrize(
    ("name", "form", "make"), [("t.csv", "csv", own_table), ("f", "imagefolder", own_pictures)]
)
def test_a_run_with_too_few_classes_is_refused_with_the_place(tmp_path, name, form, make):
    path = tmp_path / name
    make(path)
    check_owned(path, "ward-3", tmp_path / "cache")
    with pytest.raises(DataError, match=r"line 4, column|expected num-classes = 2 class folders"):
        own(form, path, num_classes=2)


def test_npz_with_test_part_and_owners(tmp_path):
    x = np.arange(5 * 6, dtype=np.float64).reshape(5, 6)
    np.savez(tmp_path / "t.npz", x=x[:3], y=[0, 2, 1], x_test=x[3:], y_test=[1, 1], client=["b", "a", "b"])
    data = load(dataset="npz", data_path=str(tmp_path / "t.npz"))
    np.testing.assert_array_equal(data.x, x.astype(np.float32))
    assert (data.y.tolist(), data.num_train, data.num_classes) == ([0, 2, 1, 1, 1], 3, 3)
    assert [(n, data.owners.train(i).tolist()) for i, n in enumerate(data.owners.names)] == [
        ("a", [1]),
        ("b", [0, 2]),
    ]
    assert len(data.owners.test_rows) == 0
    mine = own("npz", tmp_path / "t.npz")
    assert (mine.num_train, mine.owners.test(0).tolist()) == (3, [3, 4])  # its own test part is kept


@pytest.mark.parametrize("shape", [(12, 4, 5), (12, 3, 4, 5), (12, 4, 5, 3)])
def test_npz_images_become_channels_first(tmp_path, shape):
    x = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    np.savez(tmp_path / "t.npz", x=x, y=np.zeros(12, dtype=np.int32))
    data = own("npz", tmp_path / "t.npz", local_test_fraction=0.0)
    assert (data.kind, data.input_shape) == ("image", (1, 4, 5) if len(shape) == 3 else (3, 4, 5))
    first = x[0][None] if len(shape) == 3 else x[0].transpose(2, 0, 1) if shape[3] == 3 else x[0]
    np.testing.assert_allclose(data.inputs(slice(0, 1))[0].numpy(), first / 127.5 - 1, atol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": np.zeros((2, 3))}, r'expected arrays "x" and "y"; got \[\'x\'\]'),
        ({"x": np.zeros((2, 3)), "y": [0, 1, 1]}, r"expected x \[N, ...\] and y: integers \[N\]"),
        ({"x": np.zeros((2, 3)), "y": [0.0, 1.0]}, "which may be classes or numbers"),
        ({"x": np.zeros((2, 3)), "y": [0, -1]}, "got -1 in example 1"),
        ({"x": np.full((2, 3), np.nan), "y": [0, 1]}, "finite numbers"),
        ({"x": np.zeros((2, 3)), "y": [0, 1], "client": ["a"]}, "expected 2 names in client.*got 1"),
        ({"x": np.zeros((2, 3)), "y": [0, 1], "x_test": np.zeros((1, 2)), "y_test": [0]}, "x_test"),
        ({"x": np.array([[{}]]), "y": [0]}, "plain arrays"),
    ],
)
def test_bad_npz(tmp_path, arrays, says):
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(DataError, match=says):
        load(dataset="npz", data_path=str(tmp_path / "t.npz"))


def test_npz_that_is_none(tmp_path):
    (tmp_path / "t.npz").write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(DataError, match=r"t.npz: expected an npz file"):
        load(dataset="npz", data_path=str(tmp_path / "t.npz"))


def picture(value, size=(5, 4), mode="RGB"):
    file = io.BytesIO()
    Image.new(mode, size, value).save(file, "png")
    return file.getvalue()


def write_tree(root, names):
    for name, content in names.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


TREE = {
    "train/dog/1.png": picture((255, 0, 51)),
    "train/cat/2.png": picture((0, 255, 0)),
    "train/cat/.hidden.png": b"",
    "train/cat/notes.txt": b"",
    "test/dog/3.png": picture((1, 2, 3)),
}


@pytest.mark.parametrize("zipped", [False, True])
def test_imagefolder_and_its_zip_give_the_same(tmp_path, zipped):
    write_tree(tmp_path / "t", TREE)
    path = tmp_path / "t"
    if zipped:
        path = shutil.make_archive(str(path), "zip", path)
    data = load(dataset="imagefolder", data_path=str(path))
    assert (data.classes, data.y.tolist(), data.num_train) == (("cat", "dog"), [0, 1, 1], 2)
    assert data.input_shape == (3, 4, 5)
    assert data.x[:, :, 0, 0].tolist() == [[0, 255, 0], [255, 0, 51], [1, 2, 3]]
    np.testing.assert_allclose(data.inputs(slice(1, 2))[0, :, 3, 4], [1, -1, -0.6], atol=1e-6)


def test_imagefolder_without_test_folder_cuts_a_tenth(tmp_path):
    write_tree(tmp_path / "t", {f"{c}/{i}.png": picture(i, mode="L") for c in "ab" for i in range(10)})
    data = load(dataset="imagefolder", data_path=str(tmp_path / "t"))
    assert (data.num_train, len(data.y), data.input_shape) == (18, 20, (1, 4, 5))
    assert sorted(zip(data.y, data.x[:, 0, 0, 0], strict=True)) == [(c, i) for c in (0, 1) for i in range(10)]
    mine = own("imagefolder", tmp_path / "t", num_classes=2, local_test_fraction=0.5)
    assert (mine.num_train, mine.owners.names) == (10, ("ward-3",))
    with pytest.raises(DataError, match=r"expected num-classes = 3 class folders .* got 2: a, b"):
        own("imagefolder", tmp_path / "t", num_classes=3)
    (tmp_path / "t/c").mkdir()  # an empty folder counts
    assert own("imagefolder", tmp_path / "t", num_classes=3).classes == ("a", "b", "c")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (
            "train/dog/9.png",
            picture(1, (6, 4)),
            r"9.png is 6x4; expected all pictures to be like the first, train/cat/2.png: 5x4",
        ),
        ("train/dog/9.png", b"not a picture", r"9.png is not a .* Pillow can read: none of its formats"),
    ],
)
def test_unlike_pictures_are_named(tmp_path, name, content, says):
    write_tree(tmp_path / "t", TREE | {name: content})
    with pytest.raises(DataError, match=says):
        load(dataset="imagefolder", data_path=str(tmp_path / "t"))


def test_imagefolder_refuses_what_is_none(tmp_path, monkeypatch):
    (tmp_path / "t").mkdir()
    with pytest.raises(DataError, match="found no such picture"):
        load(dataset="imagefolder", data_path=str(tmp_path / "t"))
    (tmp_path / "t.zip").write_bytes(b"PK cut short")
    with pytest.raises(DataError, match=r"t.zip: expected a folder of class folders or a zip"):
        load(dataset="imagefolder", data_path=str(tmp_path / "t.zip"))
    with zipfile.ZipFile(tmp_path / "u.zip", "w") as archive:
        archive.writestr("a/1.png", picture(1))
        archive.writestr("b/1.png", picture(2))
        archive.writestr("__MACOSX/a/1.png", b"")
    data = load(dataset="imagefolder", data_path=str(tmp_path / "u.zip"))
    assert (data.num_train, len(data.y)) == (1, 2)
    monkeypatch.setattr(images, "_stacked", lambda *_: pytest.fail("decoded again"))
    assert load(dataset="imagefolder", data_path=str(tmp_path / "u.zip")).classes == ("a", "b")


@pytest.mark.data
def test_real_cifar_subset(data_folder):
    path = data_folder / "cifar10" / "cifar10-jpeg-subset.zip"
    if not path.exists():
        pytest.skip("no cifar10/cifar10-jpeg-subset.zip in $BOUQUET_DATA")
    data = load(dataset="imagefolder", data_path="cifar10/cifar10-jpeg-subset.zip")
    assert np.bincount(data.y[: data.num_train]).tolist() == [2400] * 10
    assert np.bincount(data.y[data.test_rows]).tolist() == [480] * 10


@pytest.mark.parametrize("algorithm", ["xgb-bagging", "xgb-cyclic", "gbdt"])
def test_trees_are_measured_on_the_same_rows_at_a_node_and_in_simulation(tmp_path, algorithm):
    lines = [f"{i},{i % 7}" for i in range(12)]
    alone = table(tmp_path / "alone.csv", "\n".join(["x:number,y:target", *lines]))
    both = [f"{line},ward-3" for line in lines] + ["90,1,ward-4", "91,2,ward-4"]
    pooled = table(tmp_path / "pooled.csv", "\n".join(["x:number,y:target,client", *both]))
    name = algorithm.partition("-")[0]
    asked = {f"{name}.columns": "x(0..99)", f"{name}.target": "y(0..9)", "fraction-evaluate": 1.0}
    keys = {"algorithm": algorithm, "dataset": "csv", "local-test-fraction": 0.25, **asked}
    config = read_config({**keys, "data-path": pooled, "partition": "natural", "num-clients": 0})
    together, partition = load_partitioned(config)
    client = partition.index("ward-3")
    there = load_owned(read_config(keys).data, alone, "ward-3", config.seeds.data)
    of_node = there.owners.train(0), there.owners.test(0)
    of_client = partition.train(client), partition.test(client)
    assert [len(rows) for rows in of_node] == [9, 3]
    assert [rows_of(there, rows) for rows in of_node] == [rows_of(together, rows) for rows in of_client]
