"""Tables of analyses are exported as they were written, or as a summary to read."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest
import statsmodels.api as sm
from typer.testing import CliRunner

from server_app.cli.main import app
from server_app.takeout.tables import FORMS, WIDTH, table_text
from task.errors import ConfigError, StateError
from tests.classical.test_multivariate import keys_of
from tests.classical.test_multivariate import written as people
from tests.classical.test_runs import COLUMNS, FRAME, written
from tests.server_app.test_takeout import trained
from tests.support.federation import in_one_process


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("regression")
    return in_one_process(written(folder, 3) | {"run-name": "ill"}, folder, nodes=3)


def test_csv_and_latex_are_the_runs_files(regression: Path) -> None:
    assert table_text(regression, "csv") == (regression / "table.csv").read_text()
    assert table_text(regression / "model.safetensors", "latex") == (regression / "table.tex").read_text()


def test_a_summary_has_what_was_asked_the_figures_and_the_rows(regression: Path) -> None:
    text = table_text(regression, "summary")
    assert max(map(len, text.splitlines())) <= WIDTH + len("columns: ")
    design = sm.add_constant(FRAME[["age"]]).assign(
        cook=(FRAME.job == "cook") * 1.0, nurse=(FRAME.job == "nurse") * 1.0
    )
    fit = sm.GLM(FRAME.ill, design, family=sm.families.Binomial()).fit(tol=1e-14)
    for part in ("Generalised linear models", "family:", "binomial", COLUMNS):
        assert part in text
    assert f"{fit.deviance:.6g}" in text
    line = next(line.split() for line in text.splitlines() if line.startswith("age "))
    parts = (fit.params, fit.bse, fit.tvalues, fit.pvalues)
    wanted = [*(part["age"] for part in parts), *fit.conf_int().loc["age"]]
    assert [float(cell) for cell in line[1:7]] == pytest.approx(wanted, rel=1e-4)
    digest = json.loads((regression / "result.json").read_text())["table"]["sums_sha256"]
    assert text.splitlines()[-1] == f"SHA-256 of all sums: {digest}"


def test_the_command_prints_or_writes(regression: Path, tmp_path: Path) -> None:
    def call(*more: str) -> str:
        done = CliRunner().invoke(app, ["export", str(regression), *more], catch_exceptions=False)
        assert done.exit_code == 0
        return done.stdout

    assert call("--format", "csv") == (regression / "table.csv").read_text()
    out = tmp_path / "new" / "table.txt"
    assert call("--format", "summary", "--out", str(out)) == ""
    assert out.read_text() == table_text(regression, "summary")


@pytest.mark.parametrize("name", ["k-means", "pca"])
def test_a_summary_of_clusters_and_components(name: str, tmp_path: Path) -> None:
    folder = in_one_process(keys_of(name) | people(tmp_path, 2) | {"run-name": "one"}, tmp_path, nodes=2)
    text, rows = table_text(folder, "summary"), pd.read_csv(folder / "table.csv")
    found = [line.split() for line in text.splitlines() if line[:1].isdigit()]
    assert [[float(cell) for cell in line] for line in found] == [
        pytest.approx(row, rel=1e-4) for row in rows.to_numpy().tolist()
    ]
    if name == "pca":
        assert "mean: age " in text


def test_columns_that_do_not_fit_are_in_further_blocks(tmp_path: Path) -> None:
    wide = pd.DataFrame({"row": ["a", "b"]} | {f"column {i}": [i / 3, -i] for i in range(30)})
    wide.loc[1, "column 7"] = math.nan
    wide.to_csv(tmp_path / "table.csv", index=False)
    table = {"converged": True, "rows": 2, "sums_sha256": "ab"}
    (tmp_path / "result.json").write_text(json.dumps({"algorithm": "glm", "table": table}))
    (tmp_path / "config.json").write_text(json.dumps({"run": {"algorithm": "glm"}}))
    text = table_text(tmp_path, "summary")
    lines = text.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert sum(line.startswith("a ") for line in lines) == sum(line.startswith("row ") for line in lines) > 3
    assert [w for line in lines if line.startswith("a ") for w in line.split()[1:]] == [
        f"{i / 3:.5g}" for i in range(30)
    ]


def test_words_and_numbers_that_are_kept_back(tmp_path: Path) -> None:
    """A count below a site's bound stays as it was written, and words begin where their column does."""
    (tmp_path / "table.csv").write_text("site,column,value\nall,age,<m\nward-1,sex,12.3456789\n")
    table = {"converged": True, "ended": False, "rows": 2, "sums_sha256": "ab"}
    (tmp_path / "result.json").write_text(json.dumps({"algorithm": "statistics", "table": table}))
    (tmp_path / "config.json").write_text(json.dumps({"run": {"algorithm": "statistics"}}))
    text = table_text(tmp_path, "summary")
    for line in ("site    column  value", "all     age     <m", "ward-1  sex     12.346"):
        assert line in text.splitlines()
    assert "ended" not in text


@pytest.mark.parametrize("form", FORMS)
def test_a_run_without_a_table_is_refused(form: str, tmp_path: Path) -> None:
    folder = trained(tmp_path)
    with pytest.raises(ConfigError, match=r"has a table \(.*glm.*\); got one of fedavg.* --format onnx"):
        table_text(folder, form)


def test_what_is_no_table_is_refused(regression: Path, tmp_path: Path) -> None:
    keys = written(tmp_path, 3) | {"run-name": "short", "num-server-rounds": 1}
    short = in_one_process(keys, tmp_path, nodes=3)
    with pytest.raises(ConfigError, match="its iteration has not ended in num-server-rounds"):
        table_text(short, "csv")
    with pytest.raises(ConfigError, match=r"expected a result folder or .*; got .*no-run"):
        table_text(tmp_path / "no-run", "csv")
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match="this one is no run"):
        table_text(tmp_path / "other", "csv")
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "config.json").write_text((regression / "config.json").read_text())
    (begun / "rounds.jsonl").write_text("")
    with pytest.raises(ConfigError, match="has not finished; continue it with --resume"):
        table_text(begun, "csv")
    (begun / "result.json").write_text((regression / "result.json").read_text())
    with pytest.raises(StateError, match=r"table\.csv: expected the run's table; No such file"):
        table_text(begun, "summary")
    (begun / "table.csv").write_text("name\n")
    with pytest.raises(ConfigError, match="glm writes no LaTeX table; expected csv or summary"):
        table_text(begun, "latex")
    with pytest.raises(ConfigError, match="whose table lies beside its model"):
        table_text(regression / "table.csv", "csv")


@pytest.mark.parametrize("more", [["--int8"], ["--client", "ward"], ["--kit", "kit"], ["--data", "a.csv"]])
def test_options_of_models_are_refused(more: list[str], regression: Path) -> None:
    with pytest.raises(ConfigError, match="expected a run of an analysis, and no option but --out"):
        CliRunner().invoke(app, ["export", str(regression), "-f", "csv", *more], catch_exceptions=False)


def test_a_model_of_an_analysis_is_refused_with_the_right_command(regression: Path) -> None:
    with pytest.raises(ConfigError, match=r"got a table of glm.* bouquet export RUN --format summary"):
        CliRunner().invoke(app, ["export", str(regression), "-f", "onnx"], catch_exceptions=False)
