"""Which groups a run compares and who is in them: the key, csv and npz columns, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from task.config.sections import DataConfig, SyntheticConfig
from task.datasets import Dataset, load_dataset
from task.errors import BouquetError, ConfigError, DataError
from task.fairness.groups import comparisons_of, named, places_of, with_levels

CSV = """age,job:category(clerk|nurse),sex:group,since:group,ill
30,clerk,f,1990,no
66,nurse,m,2001,yes
65,nurse,,NA,no
80,clerk,m,2020,yes
"""


def loaded(path: Path, dataset: str = "csv") -> Dataset:
    data = DataConfig(dataset=dataset, data_path=str(path), cache_dir=str(path.parent / "cache"))
    return load_dataset(data, SyntheticConfig(), 1)


@pytest.fixture
def people(tmp_path: Path) -> Dataset:
    (tmp_path / "people.csv").write_text(CSV)
    return loaded(tmp_path / "people.csv")


def groups(key: str, data: Dataset) -> list[str]:
    """Return the group of each person by age."""
    (one,) = comparisons_of(key)
    order = np.argsort(data.x[:, 0], kind="stable")
    return [(*one.names, "-")[place] for place in places_of(one, data, order)]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("sex(f|m)", ["f", "-", "m", "m"]),
        ("age>65", ["age <= 65", "age <= 65", "age > 65", "age > 65"]),
        ("age >= 65", ["age < 65", "age >= 65", "age >= 65", "age >= 65"]),
        ("age<66", ["age < 66", "age < 66", "age >= 66", "age >= 66"]),
        ("since<=2001", ["since <= 2001", "-", "since <= 2001", "since > 2001"]),
        ("job(nurse|clerk)", ["clerk", "nurse", "nurse", "clerk"]),
        ("sex(f|m) * age>65", ["f, age <= 65", "-", "m, age > 65", "m, age > 65"]),
    ],
)
def test_each_person_is_in_her_group(people: Dataset, key: str, expected: list[str]) -> None:
    assert groups(key, people) == expected


def test_no_model_reads_a_column_of_groups(people: Dataset) -> None:
    assert people.input_shape == (3,)  # age, and a 1 for the job
    assert people.columns == ("age", "job:category(clerk|nurse)", "ill")


def test_values_that_the_key_leaves_out_are_those_of_the_data(people: Dataset) -> None:
    assert with_levels("sex, job*age>65", people) == "sex(f|m), job(clerk|nurse)*age>65"
    assert with_levels("age", people) == "age(30|65|66|80)"


def test_other_data_have_another_fingerprint_where_only_the_groups_differ(tmp_path: Path) -> None:
    found = set()
    for text in (CSV, CSV.replace(",f,", ",m,")):
        (tmp_path / "people.csv").write_text(text)
        found.add(loaded(tmp_path / "people.csv").fingerprint)
    assert len(found) == 2


def test_npz_has_groups_of_training_and_test_examples(tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32)[:, None]
    arrays = {"x": x[:4], "y": np.array([0, 1, 0, 1]), "x_test": x[4:], "y_test": np.array([0, 1])}
    sex = np.array(["f", "m", "m", "f", "m", "f"])
    np.savez(tmp_path / "a.npz", **arrays, **{"group.sex": sex})
    assert groups("sex(f|m)", loaded(tmp_path / "a.npz", "npz")) == sex.tolist()
    np.savez(tmp_path / "b.npz", **arrays, **{"group.sex": sex[:4]})
    with pytest.raises(DataError, match=r"expected group.sex of 6 texts or numbers"):
        loaded(tmp_path / "b.npz", "npz")


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("", "each once"),
        ("sex(f)", "two values and more"),
        ("sex(f|f)", "two values and more"),
        ("age>old", 'a number after "age>"'),
        ("age>nan", 'a number after "age>"'),
        ("sex(f|m), sex(m|f)", "each once"),
        ("age>6*age<8", "each once"),
        ("sex(f|m", "columns with values or a threshold"),
        (">6", "columns with values or a threshold"),
        (", ".join(f"c{i}>0" for i in range(33)), "at most 64 groups; got 66"),
    ],
)
def test_a_wrong_key_is_refused(key: str, why: str) -> None:
    with pytest.raises(ConfigError, match='run-config key "groups"') as refused:
        comparisons_of(key)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("height>2", "got 'height'. A column of a csv file that no model reads is typed height:group"),
        ("sex>2", "because its cells are no numbers"),
        ("sex(f|x)", "expected the values that the run names, f, x; got others"),
        ("age(30|65)", "got others"),
    ],
)
def test_a_column_that_does_not_fit_is_refused(people: Dataset, key: str, why: str) -> None:
    with pytest.raises(BouquetError) as refused:
        places_of(comparisons_of(key)[0], people, slice(None))
    assert why in str(refused.value)


def test_too_many_values_are_refused(tmp_path: Path) -> None:
    lines = [f"{i},{i},{('no', 'yes')[i % 2]}" for i in range(17)]
    (tmp_path / "a.csv").write_text("\n".join(["a,town:group,ill", *lines]))
    with pytest.raises(ConfigError, match="2 to 16 values, or a threshold"):
        with_levels("town", loaded(tmp_path / "a.csv"))


def test_nodes_must_be_told_the_values() -> None:
    with pytest.raises(ConfigError, match=r'the values of \'sex\', as in "sex\(a\|b\)"'):
        named(comparisons_of("age>3, sex"))
