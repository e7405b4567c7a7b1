"""Types in the header of a csv file, and missing values."""

import re
import shlex

import numpy as np
import pytest

from task.config.options import parse_options
from task.config.sections import OWN_FORMS, DataConfig
from task.datasets import check_owned, load_owned
from task.datasets.catalogue import DATASETS, check_no_path
from task.datasets.columns import column_names, unscaled
from task.datasets.header import parse_header
from task.errors import ConfigError, DataError
from task.numerics.moments import ColumnMoments
from task.resolve.read import read_config
from tests.task.helpers import load

TYPED = """patient:ignore,age:number,job:category(clerk|nurse),ill:target(no|yes),split
7f3,30,nurse,yes,train
7f4,,clerk,no,train
7f5,50,NA,no,train
7f6,60,clerk,yes,test
"""


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BOUQUET_DATA", str(tmp_path / "data"))


@pytest.fixture
def table(tmp_path):
    def write(text, name="t.csv"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def moments(*rows):
    count, mean, std = zip(*rows, strict=True)
    return ColumnMoments(np.array(count), np.array(mean, float), np.array(std, float))


def test_columns_are_encoded_as_the_header_says(table):
    data = load(dataset="csv", data_path=table(TYPED), missing="zero")
    assert data.columns == ("age", "job:category(clerk|nurse)", "ill")
    assert (data.input_shape, data.classes) == ((3,), ("no", "yes"))
    assert data.y.tolist() == [1, 0, 0, 1]
    assert data.description.endswith("of shape (3,), 2 values missing")
    assert data.inputs(slice(0, 4)).tolist() == [[30, 0, 1], [0, 1, 0], [50, 0, 0], [60, 1, 0]]


def test_an_indicator_says_which_feature_was_missing(table):
    data = load(dataset="csv", data_path=table(TYPED), missing="zero", missing_indicator=True)
    assert data.input_shape == (5,)
    assert column_names(data)[3:] == ("age missing", "job=clerk missing")
    assert data.inputs(slice(0, 3)).tolist() == [[30, 0, 1, 0, 0], [0, 1, 0, 1, 0], [50, 0, 0, 0, 1]]


def test_standardised_numbers_and_filled_gaps_by_hand(table):
    """Mean 40, deviation 10: 30 is -1, a gap is the mean, so 0; categories stay 0 and 1."""
    data = load(dataset="csv", data_path=table(TYPED), missing="mean", standardise=True)
    with pytest.raises(ConfigError, match="expected the means of all clients from the server"):
        data.inputs(slice(0, 4))
    by = data.preparation.with_moments(moments((2, 40, 10), (0, 0, 1), (0, 0, 1)))
    import torch

    x = torch.from_numpy(np.array(data.x))
    assert by(x).tolist() == [[-1, 0, 1], [0, 1, 0], [1, 0, 0], [2, 1, 0]]
    data = load(dataset="csv", data_path=table(TYPED), missing="zero", standardise=True)
    by = data.preparation.with_moments(moments((2, 40, 10), (0, 0, 1), (0, 0, 1)))
    assert by(x)[1].tolist() == [-4, 1, 0]  # the gap is a zero, and that is standardised
    data = load(dataset="csv", data_path=table(TYPED), missing="mean")
    by = data.preparation.with_moments(moments((2, 40, 1), (0, 0, 1), (0, 0, 1)))
    assert by(x)[:2].tolist() == [[30, 0, 1], [40, 1, 0]]


def test_moments_of_another_header_are_refused(table):
    data = load(dataset="csv", data_path=table(TYPED), missing="mean")
    with pytest.raises(DataError, match=r"column 2 of the 3 .*expected numbers.*got a category"):
        data.preparation.with_moments(moments((2, 40, 1), (3, 0, 1), (0, 0, 1)))


def test_a_category_without_a_list_has_the_values_of_the_pooled_file(table, tmp_path):
    text = "job:category,ill\n" + "".join(f"{job},{i % 2}\n" for i, job in enumerate("cabcab"))
    data = load(dataset="csv", data_path=table(text))
    assert column_names(data) == ("job=a", "job=b", "job=c")
    assert sorted(data.x.argmax(axis=1).tolist()) == [0, 0, 1, 1, 2, 2]
    with pytest.raises(
        DataError, match=r"line 1, column 1: expected the list of values.*alike; got none.*a\|b"
    ):
        load_owned(DataConfig(dataset="csv", num_classes=2), str(tmp_path / "t.csv"), "ward", 1)
    said = check_owned(tmp_path / "t.csv", "ward", tmp_path / "cache")
    assert said.endswith('if a run declares its columns of text, as in column-types="job:category(a|b|c)"')


def test_a_category_named_like_a_missing_value_is_a_value(table):
    """Namibia's code is NA."""
    data = load(dataset="csv", data_path=table("land:category(DE|NA),y\nNA,0\nDE,1\n"))
    assert data.x.sum() == 2


ANY = 'dataset="arrow" or dataset="csv" or dataset="imagefolder" or dataset="npz"'


@pytest.mark.parametrize(
    ("wrong", "forms", "path"),
    [
        ("csv:wards", 'dataset="csv"', "wards"),
        ("csv:WARDS", 'dataset="csv"', "WARDS"),
        ("csv:/data/my wards", 'dataset="csv"', "/data/my wards"),
        ("csv: my wards", 'dataset="csv"', "my wards"),
        (" csv : ./wards.csv ", 'dataset="csv"', "./wards.csv"),
        ("csv ./wards.csv", 'dataset="csv"', "./wards.csv"),
        ("csv=wards", 'dataset="csv"', "wards"),
        ("CSV:c:\\wards", 'dataset="csv"', "c:\\\\wards"),
        ("csv:", 'dataset="csv"', "PATH"),
        ("image-folder:photos", 'dataset="imagefolder"', "photos"),
        ("wards.csv", 'dataset="csv"', "wards.csv"),
        ("Wards.NPZ", 'dataset="npz"', "Wards.NPZ"),
        ("./photos", ANY, "./photos"),
        ("~/wards", ANY, "~/wards"),
        ("c:\\data\\wards", ANY, "c:\\\\data\\\\wards"),
        ("file:///data/wards.csv", 'dataset="csv"', "file:///data/wards.csv"),
    ],
)
def test_a_path_in_the_place_of_a_name_leads_to_its_key(wrong: str, forms: str, path: str) -> None:
    said = rf"{forms} data-path=\"{re.escape(path)}\"; got \"{re.escape(wrong)}\""
    with pytest.raises(ConfigError, match=said):
        load(dataset=wrong)
    with pytest.raises(ConfigError, match=said):  # a run's own check comes first
        read_config({"dataset": wrong})


@pytest.mark.parametrize("name", ["net:Data", "hf:a/b", "hf:./folder", "csv", "digits"])
def test_names_of_data_are_no_paths(name: str) -> None:
    check_no_path(name)


def test_the_forms_of_own_files_are_those_of_the_catalogue() -> None:
    assert tuple(name for name, spec in DATASETS.items() if spec.own) == OWN_FORMS


@pytest.mark.parametrize(
    "typed", ["dataset=csv:/x", "dataset=/x.csv seed=2", 'dataset=csv:/y data-path="/x"']
)
def test_what_an_error_says_to_type_is_accepted(typed: str) -> None:
    with pytest.raises(ConfigError, match="Type: -c ") as told:
        parse_options([typed])
    (again,) = shlex.split(str(told.value).partition("Type: -c ")[2])
    assert read_config(parse_options([again])).data.data_path.startswith("/x")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("job,y\nnurse,0\nclerk,1\n", r'column-types="job:category\(clerk\|nurse\)", or in the header'),
        ("job,y\n1,0\n2,1\nold,0\n", r'line 4.* got "old". Correct it; a column of text needs a type'),
        (
            "x,y\n,0\n1,1\n",
            r'column 1 "x": expected a value; the cell is empty.*set the run-config key missing="mean"',
        ),
        ("x,y\nNaN,0\n", r'line 2, column 1 "x": expected a value; got "NaN"'),
        ("x,y\n1e39,0\n", r'expected a number; got "1e39"'),  # it is none that a float32 can be
        ("x:category(a|b),y\nc,0\n", r'column 1 "x": expected one of a, b; got "c"'),
        ("x:category(a|b),y\n,0\n", r'expected a value; the cell is empty.*missing="mean"'),
        ("x:category(a|a),y\na,0\n", r"line 1, column 1: expected two or more values, each once"),
        ("x:number(a|b),y\n1,0\n", r"line 1, column 1: expected two or more values"),
        ("x:categry,y\n1,0\n", r'column 1: expected a type among .* got \'x:categry\'. Write ":category"'),
        ("x,client:number,y\n1,a,0\n2,3,0\n", r'line 2, column 2 "client": expected a number; got "a"'),
        ("x,ward:client,client,y\n1,a,a,0\n", r"one column of type client; got \['ward', 'client'\]"),
        ("x,fold:split,split,y\n1,a,a,0\n", r"one column of type split; got \['fold', 'split'\]"),
        ("x,fold:split,y\n1,a,0\n", r'line 2, column 2 "fold": expected train, test or validation; got'),
        ("x,ward:client,y\n1,,0\n", r'line 2, column 2 "ward": expected a name; the cell is empty'),
        ("x:target,y:target\n1,0\n", "at least one feature"),
        ("x,a:target,b:target(u|v)\n1,0,u\n", "without a list of classes"),
        ("x,y:target\n1,0.5\n2,inf\n", r'line 3, column "y": expected a number to predict; got "inf"'),
        ("x:number,y:category(a|b)\n1,a\n", r"expected a column to predict"),
        ("x:ignore,y\n1,0\n", "at least one feature"),
        ("x,x:number,y\n1,1,0\n", "each name once"),
        ("x;y\n1;0\n", "Save it with commas between the cells, not ';'"),
        ("x\ty\n1\t0\n", "Save it with commas between the cells, not '.t'"),
        ("0.5,-1,1\n0.25,2,0\n", "expected names of columns; got numbers, .*Put the column names into the"),
        ("x,y:target(a|b)\n1,c\n", r'line 2, column "y": expected one of a, b; got "c"'),
    ],
)
def test_a_wrong_header_or_cell_is_named(table, text, says):
    with pytest.raises(DataError, match=says):
        load(dataset="csv", data_path=table(text))


def test_a_header_of_numbers_is_one_if_they_count_the_columns(tmp_path):
    """As pandas writes a table without names."""
    assert [c.name for c in parse_header(tmp_path, ["0", "1", "2"])] == ["0", "1", "2"]


def test_a_colon_may_be_a_part_of_a_name(tmp_path):
    """Headers that had no types read as before."""
    names = [c.name for c in parse_header(tmp_path, ["a:b", "ratio 1:2", "time: s", "label"])]
    assert names == ["a:b", "ratio 1:2", "time: s", "label"]


def test_a_node_starts_with_gaps_and_the_run_says_what_becomes_of_them(table, tmp_path):
    path = table(TYPED)
    assert check_owned(tmp_path / "t.csv", "ward", tmp_path / "cache").endswith("2 values missing")
    config = DataConfig(dataset="csv", num_classes=2)
    with pytest.raises(
        DataError, match=r't.csv, line 3, column 2 "age": expected a value; the cell is empty'
    ):
        load_owned(config, path, "ward", 1)
    got = load_owned(DataConfig(dataset="csv", num_classes=2, missing="zero"), path, "ward", 1)
    assert got.inputs(slice(0, 2)).tolist() == [[30, 0, 1], [0, 1, 0]]
    with pytest.raises(DataError, match=r"expected num-classes = 3 names of classes after target; got 2"):
        load_owned(DataConfig(dataset="csv", num_classes=3, missing="zero"), path, "ward", 1)


def test_gaps_of_arrays(tmp_path):
    np.savez(tmp_path / "t.npz", x=[[1.0, np.nan], [3.0, 4.0]], y=[0, 1], x_test=[[0.0, 0.0]], y_test=[0])
    with pytest.raises(DataError, match=r'finite numbers.*set the run-config key missing="mean"'):
        load(dataset="npz", data_path=str(tmp_path / "t.npz"))
    data = load(dataset="npz", data_path=str(tmp_path / "t.npz"), missing="zero", missing_indicator=True)
    assert data.inputs(slice(0, 2)).tolist() == [[1, 0, 0, 1], [3, 4, 0, 0]]


def test_pictures_have_no_columns(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.zeros((9, 4, 4), np.uint8), y=np.arange(9) % 2)
    with pytest.raises(ConfigError, match=r"expected a table, examples of shape \(columns,\); got image"):
        load(dataset="npz", data_path=str(tmp_path / "t.npz"), standardise=True)


def sized(table, *columns, **keys):
    """Return the warning for columns of a file, given by name and values."""
    names, values = zip(*columns, strict=True)
    lines = [
        "".join(f"{value}," for value in row) + str(i % 2) for i, row in enumerate(zip(*values, strict=True))
    ]
    path = table(",".join([*names, "y"]) + "\n" + "\n".join(lines * 5) + "\n")
    data = load(dataset="csv", data_path=path, **keys)
    return unscaled(data, DataConfig(dataset="csv", **keys))


def test_a_large_column_is_named_once_and_standardisation_offered(table):
    """Raw areas of some thousands made a loss of 7e3 without a word."""
    small, area, year = ("smooth", [0.01, 0.03]), ("area", [143.5, -4254]), ("year", [2001, 2002])
    got = sized(table, small, area, year)
    assert got.startswith('columns "area" (up to 4254), "year" (up to 2002): large to train on as they are')
    assert 'where "smooth" is at most 0.03' in got
    assert '"standardise"' in got
    assert sized(table, small, area, year, standardise=True) == ""
    assert sized(table, ("years", [20, 70]), ("share", [0.5, 1])) == ""  # 70 times as large
    assert sized(table, ("years", [20, 70]), ("share", [0.1, 0.5])).startswith('column "years" (up to 70)')
    assert sized(table, ("year", [2001, 2002])).startswith('column "year" (up to 2002): large to train on')
    one_hot = ("job:category(a|b)", ["a", "b"])
    assert sized(table, one_hot, ("dose", [0.001, 0.002]), ("none", [0, 0])) == ""
    assert sized(table, small, ("area", ["", 4254]), missing="zero").startswith('column "area"')


def test_one_class_is_nothing_to_learn(table, tmp_path):
    with pytest.raises(DataError, match='of two classes or more; all 2 are of one, "ill"'):
        load(dataset="csv", data_path=table("x,label\n1,ill\n2,ill\n3,ill\n"))
    prices = load(dataset="csv", data_path=table("x,price:target\n1,7.5\n2,7.5\n3,7.5\n", "v.csv"))
    assert prices.task == "regression"
    zeros = table("x,label\n1,0\n2,0\n3,0\n", "w.csv")  # at a node, others may have the other class
    assert load_owned(DataConfig(dataset="csv", num_classes=2), zeros, "ward", 1).num_classes == 2
    with pytest.raises(ConfigError, match=r'"num-classes": expected two classes or more .* got 1'):
        load_owned(DataConfig(dataset="csv", num_classes=1), zeros, "ward", 1)


def test_targets_are_numbers_where_header_or_run_say_so(table, tmp_path):
    """Prices are no classes; whole ones need the run's word."""
    whole, broken = "x,price:target\n1,7\n2,9\n", "x,price:target\n1,7\n2,9.5\n"
    path = table(broken)
    data = load(dataset="csv", data_path=path)
    assert (data.task, data.num_classes, data.y.dtype) == ("regression", 1, np.float32)
    assert sorted(data.y.tolist()) == [7, 9.5]
    assert check_owned(tmp_path / "t.csv", "ward", tmp_path / "cache").startswith("csv, 2 training")
    assert load_owned(DataConfig(dataset="csv", task="regression"), path, "ward", 1).num_classes == 1
    with pytest.raises(ConfigError, match='expected task = "regression"'):
        load_owned(DataConfig(dataset="csv", num_classes=1), path, "ward", 1)
    path = table(whole)
    assert load(dataset="csv", data_path=path).task == "classification"
    assert load(dataset="csv", data_path=path, task="regression").y.dtype == np.float32
    assert load_owned(DataConfig(dataset="csv", task="regression"), path, "ward", 1).task == "regression"
    plain = table("x,label\n1,7.5\n2,9.5\n", "plain.csv")
    assert load(dataset="csv", data_path=plain).classes == ("7.5", "9.5")  # as ever
    assert load(dataset="csv", data_path=plain, task="regression").task == "regression"


def test_several_targets_are_numbers_or_labels(table):
    path = table("a:target,x,b:target\n0,5,1\n1,6,1\n")
    data = load(dataset="csv", data_path=path, task="multi-label")
    assert (data.task, data.num_classes, sorted(data.y.tolist())) == ("multi-label", 2, [[0, 1], [1, 1]])
    assert load(dataset="csv", data_path=path, task="regression").y.shape == (2, 2)
    with pytest.raises(DataError, match=r'"classification" expects one column to predict; got 2'):
        load(dataset="csv", data_path=path, task="classification")
    with pytest.raises(DataError, match='line 3, column "b": expected a label 0 or 1 to predict; got "2"'):
        load(dataset="csv", data_path=table("a:target,x,b:target\n0,5,1\n1,6,2\n"), task="multi-label")
    with pytest.raises(DataError, match=r'"num-classes": expected 2, the number of columns to predict, or 0'):
        load(dataset="csv", data_path=path, task="regression", num_classes=3)


def test_a_node_starts_with_rows_that_only_statistics_read(table, tmp_path):
    table("age:number,ill:target(no|yes)\n40,yes\n50,\n60,no\n")
    said = check_owned(tmp_path / "t.csv", "ward", tmp_path / "cache")
    assert "for statistics only" in said
    assert "line 3" in said
    table("age:number,ill:target(no|yes)\nforty,yes\n50,\n")
    with pytest.raises(DataError, match="line 2"):
        check_owned(tmp_path / "t.csv", "ward", tmp_path / "cache")
