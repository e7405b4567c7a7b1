"""Descriptive statistics: the figures of the pooled rows, one hash for any division of them, and runs."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes

import bouquet
from bouquet.api import kebab
from server_app.cli import describe
from strategies.rules.statistics import nothing
from task.classical.columns import NamedColumns
from task.classical.described import Report, described
from task.classical.parts import (
    Leaf,
    after,
    histogram_of,
    next_cuts,
    parts_of,
    quantiles_of,
    rows_of,
    whole_range,
)
from task.classical.survey import (
    DEPTH,
    Cut,
    RangePart,
    SiteColumns,
    Survey,
    check_counts,
    cut_of,
    step_of,
    survey_of,
)
from task.config.options import parse_options
from task.errors import ConfigError, DataError
from task.numerics.row_sums import to_wire
from task.resolve.read import read_config
from tests.classical.support import splits
from tests.support.federation import in_one_process, play

COLUMNS = "age(0..120), bmi(10.5..60), bp(40..170), sex(a|b), high(no|yes), y(0..400)"
SECTION = {"columns": COLUMNS, "cross": "sex*high", "correlation": True}


def patients() -> pd.DataFrame:
    """Return real rows, some of them without a value of a number, a category or the target."""
    frame = load_diabetes(scaled=False, as_frame=True).frame.rename(columns={"target": "y"})
    frame["sex"] = frame.sex.map({1: "a", 2: "b"})
    frame["high"] = np.where(frame.bp > 95, "yes", "no")
    frame.loc[::17, "bmi"] = np.nan
    frame.loc[::23, "sex"] = None
    frame.loc[[3, 7], "y"] = np.nan
    return frame[["age", "bmi", "bp", "sex", "high", "y"]]


FRAME = patients()
BARS = {"quantiles": "", "bins": 4}  # three rounds
NUMBERS = ["age", "bmi", "bp", "y"]
HEADER = ["age", "bmi", "bp", "sex:category(a|b)", "high:category(no|yes)", "y:target"]
KEYS = {
    "algorithm": "statistics", "dataset": "csv", "partition": "natural", "num-clients": 0,
    "num-server-rounds": 30,
}  # fmt: skip


def keys_of(**more: Any) -> dict[str, Any]:
    section = {f"statistics.{k.replace('_', '-')}": v for k, v in {**SECTION, **more}.items()}
    return KEYS | section


def written(folder: Path, owners: list[str], **more: Any) -> dict[str, Any]:
    """Write the table with these owners of its rows; return a run's keys."""
    path = folder / "patients.csv"
    FRAME.assign(client=owners).to_csv(path, index=False, header=[*HEADER, "client"])
    return keys_of(**more) | {"data-path": str(path)}


def owners_of(parts: list[pd.DataFrame]) -> list[str]:
    of = {row: f"site-{i}" for i, part in enumerate(parts) for row in part.index}
    return [of[row] for row in FRAME.index]


def report_of(survey: Survey, tables: list[NamedColumns]) -> Report:
    """Return the tables without a run: sums and counts of parts are added over sites here."""
    sites = [SiteColumns.of(survey, table) for table in tables]
    arrays = nothing(survey)
    arrays["sums"] = to_wire([sum(column) for column in zip(*(s.sums() for s in sites), strict=True)])
    arrays["sites"] = np.frombuffer(b"x", np.uint8)
    leaves: list[Leaf] = []
    for i in survey.numbers:
        values = np.concatenate([s.columns[i] for s in sites])
        leaves += leaves_of(survey, i, values[~np.isnan(values)])
    arrays["parts"] = rows_of(leaves)
    return described(survey, arrays)


def leaves_of(survey: Survey, variable: int, values: np.ndarray) -> list[Leaf]:
    """Return the parts of a range after all cuts, by counting."""
    v, leaves = survey.variables[variable], [whole_range(variable, len(values), closed=False)]
    while cuts := [c for c in next_cuts(survey, leaves) if c.part.variable == variable]:
        lower = []
        for cut in cuts:
            low, at = cut_of(v, cut.part.ends[0]), cut_of(v, cut.at)
            lower.append(int(((values <= at) & ((values > low) | (cut.part.ends[0] == 0))).sum()))
        leaves = after(survey, leaves, cuts, [0] * len(cuts), lower)
    return leaves


# ----------------------------------------------------------------------------------------- figures


def test_a_run_gives_the_figures_of_pandas(tmp_path: Path) -> None:
    owners = owners_of(splits(FRAME)["3"])
    folder = in_one_process(written(tmp_path, owners, by_site=True), tmp_path, nodes=3)
    assert "1 from 25 to 346" in (folder / "report.html").read_text()  # two rows have no target
    table = json.loads((folder / "result.json").read_text())["table"]
    found = {column["column"]: column for column in table["columns"]}
    for name in NUMBERS:
        column, values = found[name], FRAME[name].dropna()
        assert (column["count"], column["missing"]) == (len(values), FRAME[name].isna().sum())
        assert column["mean"] == pytest.approx(values.mean(), rel=1e-13)
        assert column["sd"] == pytest.approx(values.std(), rel=1e-12)
        for quantile in column["quantiles"]:
            q = Fraction(quantile["q"])
            exact = np.quantile(values, float(q))
            assert quantile["value"] - exact > -1e-9
            assert quantile["value"] - exact < column["step"]
        edges = [bar["low"] for bar in column["histogram"]] + [column["histogram"][-1]["high"]]
        counted = pd.cut(values, edges, include_lowest=True).value_counts(sort=False)
        assert [bar["count"] for bar in column["histogram"]] == counted.tolist()
        assert sum(counted) == len(values)
    assert found["age"]["quantiles"][2]["value"] == 50.0  # whole numbers lie on the grid
    assert found["sex"]["levels"] == FRAME.sex.value_counts()[["a", "b"]].to_dict()
    assert found["sex"]["missing"] == FRAME.sex.isna().sum()
    crossed = pd.crosstab(FRAME.sex.fillna("missing"), FRAME.high)
    assert [row[:2] for row in table["cross"][0]["cells"]] == crossed.loc[
        ["a", "b", "missing"]
    ].to_numpy().tolist()
    complete = FRAME[NUMBERS].dropna()
    assert table["correlation"]["rows"] == len(complete)
    np.testing.assert_allclose(table["correlation"]["matrix"], complete.corr(), rtol=1e-12)
    for site in table["by_site"]:
        own = FRAME[[o == site["site"] for o in owners]]
        column = site["columns"][1]
        assert (column["count"], column["missing"]) == (own.bmi.count(), own.bmi.isna().sum())
        assert column["mean"] == pytest.approx(own.bmi.mean(), rel=1e-13)
        assert site["columns"][3]["levels"] == own.sex.value_counts()[["a", "b"]].to_dict()
    lines = pd.read_csv(folder / "table.csv", dtype=str)
    means = lines[(lines.column == "bp") & (lines.statistic == "mean") & (lines.site == "all")]
    assert float(means.value.item()) == found["bp"]["mean"]
    page = (folder / "statistics.html").read_text()
    assert "<h2>bmi</h2>" in page
    assert "site-2" in page
    assert table["sums_sha256"] in page


@pytest.mark.parametrize(
    ("parts", "nodes", "more"),
    [("1", 1, {}), ("10", 4, {}), ("every tenth", 10, {}), ("3", 3, {"secagg": True})],
)
def test_one_hash_for_any_division_and_under_masks(
    parts: str, nodes: int, more: dict[str, Any], tmp_path: Path, hash_of_three_sites: str
) -> None:
    keys = written(tmp_path, owners_of(splits(FRAME)[parts]), **BARS) | more
    played = play(keys, nodes=nodes)
    assert played.arrays(len(played.rows) - 1)["sums-sha256"].tobytes().hex() == hash_of_three_sites


@pytest.fixture(scope="module")
def hash_of_three_sites(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("three")
    played = play(written(folder, owners_of(splits(FRAME)["3"]), by_site=True, **BARS), nodes=3)
    return played.arrays(len(played.rows) - 1)["sums-sha256"].tobytes().hex()


def survey(columns: str, **more: Any) -> Survey:
    return survey_of(read_config(keys_of(**{"columns": columns, "cross": "", "correlation": False} | more)))


def test_quantiles_of_breast_cancer_are_within_a_step() -> None:
    """The figures of a search by bisection over the same grid of 2^-10, by hand."""
    values = load_breast_cancer(as_frame=True).frame["mean area"].to_numpy()
    asked = survey("area(0..4096)", quantiles="0.1, 0.25, 0.5, 0.9")
    assert step_of(asked.variables[0]) == 2.0**-10
    (column,) = (
        report_of(asked, [NamedColumns({"area": part}, {}) for part in np.array_split(values, 10)])
        .tables[0]
        .columns
    )
    found = [q.value for q in column.quantiles]
    assert found == pytest.approx(np.quantile(values, [0.1, 0.25, 0.5, 0.9]), abs=2.0**-10)
    assert found[1:3] == pytest.approx([420.3007812, 551.1005859], abs=5e-8)


def test_a_variance_far_from_zero_keeps_its_digits() -> None:
    """Sums of unshifted squares would give 12.37; the declared range says where the values are."""
    values = load_breast_cancer(as_frame=True).frame["mean radius"].to_numpy() + 1e8
    (column,) = report_of(survey("r(1e8..100000030)"), [NamedColumns({"r": values}, {})]).tables[0].columns
    assert column.sd == pytest.approx(math.sqrt(12.41892013), rel=1e-8)
    assert column.sd == pytest.approx(np.std(values - 1e8, ddof=1), rel=1e-9)
    assert column.mean == pytest.approx(values.mean(), rel=1e-15)


def test_figures_that_are_not_defined_are_none() -> None:
    asked = survey("a(0..4), b(0..4), c(x|y)", correlation=True)
    nothing_there = np.full(3, np.nan)
    table = NamedColumns(
        {"a": np.array([1.0, np.nan, np.nan]), "b": np.full(3, 2.0)}, {"c": (np.full(3, -1), ("x", "y"))}
    )
    found = report_of(asked, [table]).tables[0]
    assert (found.columns[0].mean, found.columns[0].sd) == (1.0, None)
    assert found.columns[2].levels == {"x": 0, "y": 0}
    assert found.columns[2].missing == 3
    assert found.correlations is not None
    assert found.correlations.matrix[0][1] is None
    empty = report_of(asked, [NamedColumns({"a": nothing_there, "b": nothing_there}, table.places)]).tables[0]
    assert (empty.columns[0].count, empty.columns[0].mean, empty.columns[0].quantiles) == (0, None, ())


def test_parts_and_bars_by_hand() -> None:
    """Values 0, 1, 1, 3 of a range 0..4 in two bars; the median lies between ranks 2 and 3."""
    asked = survey("a(0..4)", quantiles="0.5", bins=2)
    values = np.array([0.0, 1.0, 1.0, 3.0])
    leaves = leaves_of(asked, 0, values)
    assert parts_of(rows_of(leaves)) == leaves
    assert [(b.low, b.high, b.count) for b in histogram_of(asked, 0, leaves)] == [(0, 2, 3), (2, 4, 1)]
    (median,) = quantiles_of(asked, 0, leaves)
    assert (median.value, median.high - median.low) == (1.0, 2.0**-20)
    # The lower half must not be cut in its middle, and is cut after a quarter; then it stays whole.
    lower, upper = Cut(RangePart(0)).pieces
    wide = [Leaf(lower, 3, 1), Leaf(upper, 1)]
    (cut,) = next_cuts(asked, wide)
    assert cut_of(asked.variables[0], cut.at) == 0.5
    wide = [Leaf(lower, 3, 3), Leaf(upper, 1)]
    assert next_cuts(asked, wide) == []
    (median,) = quantiles_of(asked, 0, wide)
    assert (median.low, median.high, median.value) == (0.0, 2.0, None)


@pytest.mark.parametrize(("low", "high"), [(0, 120), (-3, 5), (0.1, 0.7), (1e8, 1e8 + 30), (-1e-6, 1e-6)])
def test_a_range_is_on_the_grid(low: float, high: float) -> None:
    (v,) = survey(f"a({low!r}..{high!r})").variables
    assert cut_of(v, 0) == low
    assert cut_of(v, 1 << DEPTH) >= high > cut_of(v, (1 << DEPTH) // 2 - 1)


def test_counts_that_no_rows_have_are_refused() -> None:
    """A hostile site sends a negative count, more than its rows, or levels that do not add up."""
    asked = survey("a(0..4), c(x|y)")
    table = NamedColumns({"a": np.array([1.0, 2.0])}, {"c": (np.array([0, 1]), ("x", "y"))})
    sums, shut = SiteColumns.of(asked, table).sums(), [0] * asked.cells
    check_counts(asked, shut, sums, 1, "ward")
    for place, count in ((1, -1), (1, 2**40), (3, 2)):
        wrong = [count if i == place else total for i, total in enumerate(sums)]
        with pytest.raises(DataError, match="ward: expected counts of 0 to all rows"):
            check_counts(asked, shut, wrong, 1, "ward")
    with pytest.raises(DataError, match="ward: expected counts"):
        check_counts(asked, [2, *shut[1:]], sums, 1, "ward")
    with pytest.raises(DataError, match="column a: expected counts of 0 to the 2 values"):
        after(asked, [Leaf(RangePart(0), 2)], [Cut(RangePart(0))], [0], [3])


def test_a_value_at_the_low_end_is_what_it_is() -> None:
    (column,) = report_of(survey("a(0..7)"), [NamedColumns({"a": np.zeros(9)}, {})]).tables[0].columns
    assert [q.value for q in column.quantiles] == [0.0] * 5


# -------------------------------------------------------------------------------------------- runs


def test_a_resumed_run_ends_alike(tmp_path: Path, hash_of_three_sites: str) -> None:
    owners = owners_of(splits(FRAME)["3"])
    keys = written(tmp_path, owners, **BARS) | {"run-name": "cut", "num-server-rounds": 2}
    cut = in_one_process(keys, tmp_path, nodes=3)
    table = json.loads((cut / "result.json").read_text())["table"]
    assert table["ended"] is False
    assert len(table["columns"][0]["histogram"]) < 4
    folder = in_one_process(keys | {"num-server-rounds": 30, "resume": True}, tmp_path, nodes=3)
    table = json.loads((folder / "result.json").read_text())["table"]
    assert table["sums_sha256"] == hash_of_three_sites
    assert len(table["columns"][0]["histogram"]) == 4


LEVELS = "|".join(map(str, range(99)))
MANY = ", ".join(f"c{i}({LEVELS})" for i in range(300))
WRONG = [
    ({"columns": "age(0..120), age(0..9)"}, "expected each column once; got age"),
    ({"columns": "age"}, "expected names with ranges or levels"),
    ({"bins": 12}, "statistics.bins.*got 12"),
    ({"cross": "sex*age"}, "expected pairs of categories .*sex, high.* got 'sex.age'"),
    ({"quantiles": "0.5, 1.2"}, "expected numbers from 0 to 1; got '1.2'"),
    ({"columns": "age(0..120), sex(a|b)", "cross": ""}, "statistics.correlation.*two columns of numbers"),
    ({"columns": MANY, "cross": "", "correlation": False}, "at most 20,000 cells"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "why"), WRONG)
def test_what_is_not_declared_well_is_refused(more: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_config(keys_of(**more))


def test_sites_are_not_shown_under_masks() -> None:
    with pytest.raises(ConfigError, match=r"statistics\.by-site.*sums over sites only"):
        read_config(keys_of(by_site=True) | {"secagg": True})


def test_regressions_still_refuse_rows_without_a_value(tmp_path: Path) -> None:
    keys = written(tmp_path, owners_of(splits(FRAME)["3"]))
    keys = {k: v for k, v in keys.items() if not k.startswith("statistics.")}
    keys |= {
        "algorithm": "least-squares",
        "regression.columns": "age(0..120)",
        "regression.target": "bp(0..200)",
    }
    with pytest.raises(Exception, match="Fill it in"):
        play(keys, nodes=1)


def test_the_command_and_the_function_are_runs_of_the_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same config; masks leave out figures by site."""
    runs: list[dict[str, Any]] = []
    monkeypatch.setattr(describe, "run", lambda config, **options: runs.append(parse_options(config)))
    monkeypatch.setattr(bouquet, "run", lambda name, **keys: runs.append({"algorithm": name, **kebab(keys)}))
    columns = "age(0..120), name(a|b c)"
    describe.statistics(columns=columns, data="d.csv", quantiles="", config=["secagg=true"])
    bouquet.statistics(columns, "d.csv", quantiles="", secagg=True)
    command, function = (read_config(keys) for keys in runs)
    assert command.statistics == function.statistics
    assert command.statistics.columns == columns
    assert not command.statistics.by_site
    assert command.data == function.data
    assert command.server == function.server
    describe.statistics(columns=columns, link=Path("kits/link"))
    at_link = read_config(runs[-1])
    assert at_link.statistics.by_site
    assert at_link.statistics.quantiles == survey_default()
    assert at_link.data.data_path == ""


def survey_default() -> str:
    return read_config({}).statistics.quantiles
