"""Types of columns that a run or a node's owner declares: the header's language, and who may say what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from task.config.sections import DataConfig
from task.datasets import Dataset, check_owned, load_owned
from task.datasets.column_types import OWNER, RUN, as_key, read_types, write_types
from task.datasets.facts import facts_of
from task.datasets.header import TypedColumn
from task.errors import ConfigError, DataError
from task.resolve.read import read_config
from tests.task.helpers import load

ROWS = """
30,f,2024-03-01,never,ward-1,train,well
50,m,2024-03-02,"pipe, cigar",ward-2,train,ill
60,m,2024-03-02,never,ward-2,test,well
40,f,2024-03-03,"pipe, cigar",ward-1,test,ill
"""
PLAIN = "age,sex,visit date,smoking,ward,fold,outcome" + ROWS
TYPED = (
    'age,sex:category(m|f),visit date:ignore,"smoking:category(never|pipe, cigar)",ward:client,fold:split,'
    "outcome:target(well|ill)" + ROWS
)
TYPES = (
    'sex:category(m|f), visit date:ignore, "smoking:category(never|pipe, cigar)", ward:client, fold:split\n'
    "outcome:target(well|ill)"
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))


def pooled(folder: Path, text: str, types: str = "", **keys: object) -> Dataset:
    (folder / "t.csv").write_text(text)
    return load(dataset="csv", data_path=str(folder / "t.csv"), column_types=types, **keys)


def own(folder: Path, text: str, types: str = "", owner: str = "", **keys: object) -> Dataset:
    (folder / "own.csv").write_text(text)
    config = DataConfig(dataset="csv", local_test_fraction=0.0, column_types=types, own_types=owner, **keys)
    return load_owned(config, str(folder / "own.csv"), "ward", 1)


def test_a_plain_table_with_the_key_is_the_table_with_the_types_in_its_header(tmp_path: Path) -> None:
    """Inputs, classes, owners, split and facts: nothing is left in which they could differ."""
    plain, typed = pooled(tmp_path, PLAIN, TYPES), pooled(tmp_path, TYPED)
    assert plain.fingerprint == typed.fingerprint
    assert facts_of(plain) == facts_of(typed)
    assert plain.columns == ("age", "sex:category(m|f)", "smoking:category(never|pipe, cigar)", "outcome")
    assert (plain.num_train, plain.classes) == (2, ("well", "ill"))
    assert plain.owners is not None
    assert list(plain.owners.names) == ["ward-1", "ward-2"]
    half = pooled(tmp_path, PLAIN.replace("sex", "sex:category").replace("fold", "fold:split"), TYPES)
    assert half.fingerprint == typed.fingerprint


@pytest.mark.parametrize(
    ("header", "types"),
    [(",age,y,", ":ignore"), ("Unnamed: 0,age,y,Unnamed: 3", "Unnamed: 0:ignore, Unnamed: 3:ignore")],
)
def test_the_index_that_pandas_writes_can_be_ignored(header: str, types: str, tmp_path: Path) -> None:
    rows = "0,30,0,\n1,40,1,\n" * 5
    with pytest.raises(DataError, match=f'or set column-types="{types.partition(",")[0]}"'):
        pooled(tmp_path, f"{header}\n{rows}")
    assert pooled(tmp_path, f"{header}\n{rows}", types).columns == ("age", "y")


def test_a_column_called_client_may_be_another(tmp_path: Path) -> None:
    data = pooled(
        tmp_path, "client,ward,y\n" + "1,a,0\n2,a,1\n3,b,0\n4,b,1\n" * 3, "client:number, ward:client"
    )
    assert data.columns == ("client", "y")
    assert data.owners is not None
    assert list(data.owners.names) == ["a", "b"]


@pytest.mark.parametrize(
    "columns",
    [
        (TypedColumn("weight (kg)", "number"), TypedColumn("last, first", "ignore")),
        (TypedColumn("it's", "category", ("a b", 'say "no"')), TypedColumn("ratio 1:2", "target")),
        (TypedColumn("sex", "category", ("f", "m")), TypedColumn("é", "client")),
    ],
)
def test_any_name_and_value_can_be_declared(columns: tuple[TypedColumn, ...]) -> None:
    import tomllib

    assert read_types(RUN, write_types(columns)) == columns
    assert read_types(RUN, tomllib.loads(as_key(columns))["column-types"]) == columns


@pytest.mark.parametrize(
    ("types", "words"),
    [
        ("sex", "declaration 1: expected NAME:TYPE, a type among category, .*got 'sex'"),
        ("age:number, sex:category(f|m) visit:ignore", "declaration 2: .*a comma between two"),
        ("age:number, sex:categry(f|m)", 'declaration 2: expected a type among .* Write ":category"'),
        ("sex:category(f)", "declaration 1: expected two or more values"),
        ("sex:ignore, sex:ignore", "declaration 2: expected each column once; got 'sex' again"),
        ('"sex:ignore', "expected declarations between commas, each quotation mark closed"),
        (":number", "declaration 1: expected NAME:TYPE"),
    ],
)
def test_a_malformed_declaration_is_refused_with_its_place(types: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f'run-config key "column-types".*{words}'):
        read_config({"dataset": "csv", "data-path": "t.csv", "column-types": types})


def test_only_a_csv_file_has_columns_to_declare() -> None:
    with pytest.raises(ConfigError, match="column-types"):
        read_config({"dataset": "digits", "column-types": "sex:category(f|m)"})


@pytest.mark.parametrize(
    ("header", "types", "words"),
    [
        ("age,sex,y", "Agee:number", "got 'Agee', which it has not. Did you mean \"age\"?"),
        ("age,sex,y", "zip:ignore", "got 'zip', which it has not. Correct the name"),
        ("age,sex:ignore,y", "sex:number", "got sex:number, where sex:ignore is declared already"),
        ("age:target,sex,y", "age:number", "got age:number, where age:target is"),
        ("age,sex,y:target(0|1)", "y:target(0|2)", r"got y:target\(0\|2\), where y:target\(0\|1\) is"),
    ],
)
def test_a_column_that_is_not_there_or_has_another_type_is_refused(
    header: str, types: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, DataError), match=f'run-config key "column-types".*{words}'):
        pooled(tmp_path, f"{header}\n1,2,0\n2,3,1\n3,4,0\n", types)


def test_in_a_folder_each_file_may_lack_what_is_ignored(tmp_path: Path) -> None:
    sites = tmp_path / "sites"
    sites.mkdir()
    (sites / "a.csv").write_text("age,note,y\n1,x,0\n2,y,1\n3,z,0\n")
    (sites / "b.csv").write_text("age,y\n1,0\n2,1\n3,0\n")
    keys = {"dataset": "csv", "data_path": str(sites)}
    assert load(**keys, column_types="note:ignore").columns == ("age", "y")
    with pytest.raises(ConfigError, match="got 'other', which it has not"):
        load(**keys, column_types="note:ignore, other:ignore")


def test_the_error_prints_the_types_to_paste(tmp_path: Path) -> None:
    """Columns of text with their values; more than 20 are ignored; what is declared already stays."""
    dates = "".join(f"{i},{'fm'[i % 2]},day {i},{('train', 'test')[i % 2]},{i // 2 % 2}\n" for i in range(30))
    with pytest.raises(DataError, match=r'line 2, column 2 "sex": expected a number; got "f"') as told:
        pooled(tmp_path, "age,sex,day,fold,y\n" + dates, "age:number")
    types = "age:number, sex:category(f|m), day:ignore, fold:split"
    assert f'column-types="{types}"' in str(told.value)
    assert pooled(tmp_path, "age,sex,day,fold,y\n" + dates, types).columns[:2] == ("age", "sex:category(f|m)")
    with pytest.raises(DataError, match=r"'sxe' is no column. Did you mean \"sex\"\?"):
        pooled(tmp_path, "age,sex,day,fold,y\n" + dates, "sxe:category(f|m)")
    with pytest.raises(DataError, match='"date" is no type; the types are category, client, group'):
        pooled(tmp_path, "age,day:date,y\n1,2024-03-01,0\n2,2024-03-02,1\n", "age:number")
    with pytest.raises(DataError) as told:
        own(tmp_path, "age,outcome\n1,ill\n2,well\n")
    assert 'column-types="outcome:target(ill|well)"' in str(told.value)
    assert "ill" not in told.value.public.replace("[withheld]", "")


def test_values_to_paste_that_differ_in_spelling_only_are_pointed_out(tmp_path: Path) -> None:
    """One stray cell would become an input of every site's model."""
    with pytest.raises(DataError, match=r"sex:category\(Female\|Male\|male\)") as told:
        pooled(tmp_path, "age,sex,y\n1,Male,0\n2,Female,1\n3,male,0\n4,Male,1\n")
    where = 'of column "sex" the values "Male" (t.csv, line 2) and "male" (t.csv, line 4) differ in spelling'
    assert where in str(told.value)
    assert "male" not in told.value.public
    said = check_owned(tmp_path / "t.csv", "ward", tmp_path / "cache")
    assert f'Female|Male|male)" (but {where}' in said
    with pytest.raises(DataError, match=r'got "Ill", and "ill" in own.csv, line 2. Write them alike'):
        own(tmp_path, "age,outcome\n1,ill\n2,well\n3,Ill\n")


def test_all_that_is_wrong_in_a_table_is_said_at_once(tmp_path: Path) -> None:
    """Columns of text, gaps, marks and labels; how many cells are wrong stays on the machine."""
    rows = 'age,sex,chol,dose,y\n30,f,,"1,5",0\n,m,,2,\n50,f,1,2,1\n'
    with pytest.raises(DataError) as told:
        pooled(tmp_path, rows)
    said = str(told.value)
    assert said.startswith(f'{tmp_path / "t.csv"}, line 2, column 2 "sex": expected a number; got "f". Give ')
    assert 'column-types="sex:category(f|m)"' in said
    assert 'line 2, column 3 "chol": expected a value; the cell is empty (and 1 more);\n' in said
    assert 'line 3, column 1 "age": expected a value; the cell is empty. Fill it in, or set' in said
    assert said.count('missing="mean"') == 1
    assert 'column 4 "dose": expected a number; got "1,5". Write numbers with a decimal point' in said
    assert 'line 3, column 5 "y": expected a label; the cell is empty. Fill it in or remove the line.' in said
    assert all(line.startswith(str(tmp_path)) for line in said.splitlines())
    assert "line 2, column 3: expected a value" in told.value.public
    assert "\n" not in told.value.public
    assert "1 more" not in told.value.public
    many = ",".join(f"c{i}" for i in range(9))
    with pytest.raises(DataError, match=r'column 5 "c4": .*empty;\nand 3 more columns. Fill it in'):
        pooled(tmp_path, f"{many}\n,,,,,,,,1\n")


@pytest.mark.parametrize(
    ("text", "said", "public"),
    [
        (
            "sex:category(f|m),y\nmale,1\n",
            'column 1 "sex": expected one of f, m; got "male". C',
            "column 1: expected one of the values in its list; got another. C",
        ),
        (
            "age,y:target(ill|well)\n1,poor\n",
            'column "y": expected one of ill, well; got "poor". C',
            "its target: expected one of the values in its list; got another. C",
        ),
    ],
)
def test_a_server_is_told_in_words_of_a_value_that_is_not_listed(
    text: str, said: str, public: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as told:
        own(tmp_path, text)
    assert f"own.csv, line 2, {said}" in str(told.value)
    assert told.value.public.startswith(f"one of its files, line 2, {public}")


def test_a_node_starts_with_a_plain_file_and_says_what_a_run_has_to_declare(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(PLAIN)
    said = check_owned(tmp_path / "t.csv", "ward", tmp_path / "cache")
    assert said.startswith("csv, 2 training and 2 test examples")
    assert "if a run declares its columns of text, as in column-types='sex:category(f|m)" in said


@pytest.mark.parametrize(("age", "todo"), [('"3,0"', "Write numbers with a decimal"), ("n.d.", "Correct it")])
def test_a_node_is_stopped_by_what_no_run_can_mend(age: str, todo: str, tmp_path: Path) -> None:
    """Types of its columns of text a run may give it, so they are not what the error begins with."""
    (tmp_path / "t.csv").write_text(PLAIN.replace("30,f", f"{age},f"))
    why = f'line 2, column 1 "age": expected a number; got "{age.strip(chr(34))}". {todo}'
    with pytest.raises(DataError) as told:
        check_owned(tmp_path / "t.csv", "ward", tmp_path / "cache")
    assert str(told.value).startswith(f"{tmp_path / 't.csv'}, {why}")


def test_a_plain_file_without_a_label_is_for_statistics_as_a_typed_one(tmp_path: Path) -> None:
    for text in (TYPED, PLAIN):
        (tmp_path / "t.csv").write_text(text.replace("train,well", "train,"))
        said = check_owned(tmp_path / "t.csv", "ward", tmp_path / "cache")
        assert "for statistics only, as training refuses it: " in said
        assert 'line 2, column 7 "outcome": expected a label' in said


def test_an_owner_declares_what_a_header_could(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(PLAIN)
    args = tmp_path / "t.csv", "ward", tmp_path / "cache"
    assert check_owned(*args, TYPES) == "csv, 2 training and 2 test examples of shape (5,)"
    with pytest.raises(ConfigError, match=r'node config: key "column-types": .*got \'sx\'.*mean "sex"'):
        check_owned(*args, f"{TYPES}, sx:ignore")
    with pytest.raises(ConfigError, match="declaration 1: expected NAME:TYPE"):
        check_owned(*args, "sex")


ORDERS = {
    "it ignores": ("sex:ignore", "sex:category(m|f)", "sex:ignore"),
    "it has as ids": ("visit date:id", "visit date:ignore", "visit date:id"),
    "it has in groups": ("sex:group", "sex:category(m|f)", "sex:group"),
    "it predicts": ("outcome:target(well|ill)", "outcome:ignore, age:target", "outcome:target"),
}


@pytest.mark.parametrize("by", ["the header", "the owner"])
@pytest.mark.parametrize("what", ORDERS)
def test_no_run_changes_what_a_site_declares(what: str, by: str, tmp_path: Path) -> None:
    """A server orders a column that the site keeps out, under another type, as an input."""
    mine, theirs, words = ORDERS[what]
    rest = "smoking:ignore, ward:ignore, fold:ignore, "
    text = PLAIN if by == "the owner" else PLAIN.replace(mine.partition(":")[0], mine, 1)
    with pytest.raises(DataError, match=f"where {words}.*is declared already"):
        own(tmp_path, text, rest + theirs, owner=mine if by == "the owner" else "")


def test_a_node_may_lack_what_no_model_reads_and_a_party_any_column(tmp_path: Path) -> None:
    text, keys = "age,y\n1,0\n2,1\n3,0\n", {"num_classes": 2}
    assert own(tmp_path, text, "note:ignore, ward:client, fold:split", **keys).columns == ("age", "y")
    with pytest.raises(ConfigError, match="got 'bmi', which it has not"):
        own(tmp_path, text, "bmi:number", **keys)
    with pytest.raises(ConfigError, match=f"{OWNER}.* got 'note', which it has not"):
        own(tmp_path, text, "note:ignore", owner="note:ignore", **keys)
    party = own(tmp_path, text, "bmi:number, who:id, age:id", partition="columns", **keys)
    assert party.ids is not None


def test_types_of_an_owner_are_no_part_of_the_run() -> None:
    """A run config has no key for them, so that no server sets or removes them."""
    with pytest.raises(ConfigError, match="own-types"):
        read_config({"dataset": "csv", "data-path": "t.csv", "own-types": "sex:number"})
    assert replace(DataConfig(), own_types="sex:ignore").column_types == ""
