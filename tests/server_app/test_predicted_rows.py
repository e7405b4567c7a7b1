"""What `bouquet predict` says of rows by an analysis is what statsmodels and scikit-learn say."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from typer.testing import CliRunner

from server_app.cli.main import app
from server_app.takeout.taken import as_csv, taken_in
from task.errors import ConfigError, DataError
from tests.classical.test_more_regressions import PEOPLE, TARGET, X
from tests.classical.test_multivariate import PEOPLE as PATIENTS
from tests.classical.test_multivariate import keys_of
from tests.classical.test_multivariate import written as patients
from tests.support.federation import in_one_process

NEW = PEOPLE.iloc[::7].drop(columns=[*TARGET.values()])


def said(folder: Path, frame: pd.DataFrame, header: list[str] | None = None) -> pd.DataFrame:
    """Return what a run says of rows."""
    path = folder.parent / "new.csv"
    frame.to_csv(path, index=False, header=header or True)
    return pd.read_csv(io.StringIO(as_csv(taken_in(folder).predict(path, whole=False, batch=1).columns)))


def regression(folder: Path, family: str, **more: Any) -> Path:
    target = PEOPLE[TARGET[family]]
    named = PEOPLE.assign(client=[f"site-{i % 2}" for i in range(len(PEOPLE))])
    named["sex"] = np.where(named.smoker == 1, "m", "f")
    header = ["sex:category(f|m)" if c == "sex" else f"{c}:target" if c == target.name else c for c in named]
    named.to_csv(folder / "people.csv", index=False, header=header)
    algorithm = {"algorithm": "glm", "regression.family": family} if family != "gaussian" else {}
    keys = {
        "algorithm": "least-squares", "dataset": "csv", "data-path": str(folder / "people.csv"),
        "partition": "natural", "num-clients": 0, "num-server-rounds": 25, "run-name": "one",
        "regression.columns": "age(0..100), sex(f|m)", "regression.target": f"{target.name}(-99..999)",
    }  # fmt: skip
    return in_one_process(keys | algorithm | more, folder, nodes=2)


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("gaussian", {"regression.weights": "size(0..9)"}),
        ("binomial", {"regression.target": "ill(0..1)"}),
        ("poisson", {"regression.exposure": "years(0..40)", "regression.offset": "shift(-9..9)"}),
        ("gamma", {"regression.link": "inverse"}),
    ],
)
@pytest.mark.filterwarnings("ignore:The InversePower link", "ignore:divide by zero")  # of statsmodels
def test_means_and_their_intervals_are_statsmodels(family: str, more: dict[str, Any], tmp_path: Path) -> None:
    y, new, folder = PEOPLE[TARGET[family]], X.loc[NEW.index], regression(tmp_path, family, **more)
    if family == "gaussian":
        wanted = sm.WLS(y, X, weights=PEOPLE["size"]).fit().get_prediction(new)
    else:
        kinds = sm.families
        kind = {"binomial": kinds.Binomial, "poisson": kinds.Poisson, "gamma": kinds.Gamma}[family]
        shifts = {"exposure": PEOPLE.years, "offset": PEOPLE["shift"]} if family == "poisson" else {}
        start = pd.read_csv(folder / "table.csv").coefficient.to_numpy()  # an inverse link needs a good one
        fit = sm.GLM(y, X, family=kind(), **shifts).fit(start_params=start, tol=1e-14, maxiter=5)
        wanted = fit.get_prediction(new, **{name: column[NEW.index] for name, column in shifts.items()})
    rows = NEW.assign(sex=np.where(NEW.smoker == 1, "m", "f"))[::-1]  # another order of rows and columns
    found = said(folder, rows[[*rows.columns[::-1]]])
    assert found.columns.tolist() == ["id", "mean", "low", "high"]
    frame = wanted.summary_frame()[["mean", "mean_ci_lower", "mean_ci_upper"]]
    ends = np.sort(frame.to_numpy()[::-1], axis=1)  # an inverse link turns them round
    np.testing.assert_allclose(found[["low", "mean", "high"]], ends, rtol=1e-7)
    assert found.id.tolist() == list(range(len(NEW)))


def test_a_penalised_regression_says_means_alone(tmp_path: Path) -> None:
    folder = regression(tmp_path, "gaussian", **{"regression.penalty": 1.0})
    found = said(folder, NEW.assign(sex="f"))
    assert found.columns.tolist() == ["id", "mean"]
    table = pd.read_csv(folder / "table.csv").set_index("name").coefficient
    np.testing.assert_allclose(found["mean"], table["const"] + table["age"] * NEW.age, rtol=1e-12)


def test_clusters_and_scores_of_new_rows(tmp_path: Path) -> None:
    keys = patients(tmp_path, 2)
    cells = in_one_process(keys_of("k-means") | keys | {"run-name": "cells"}, tmp_path, nodes=2)
    axes = in_one_process(keys_of("pca") | keys | {"run-name": "axes"}, tmp_path, nodes=2)
    new = PATIENTS.iloc[:50].assign(id=[f"p{i}" for i in range(50)])
    header = ["age", "pressure", "smoker", "id:id"]
    found, table = said(cells, new, header), pd.read_csv(cells / "table.csv")
    spread = PATIENTS[["age", "pressure"]].std(ddof=0).to_numpy()
    centres = table[["age", "pressure"]].to_numpy()
    away = np.sqrt((((new[["age", "pressure"]].to_numpy()[:, None] - centres) / spread) ** 2).sum(axis=2))
    assert found.id.tolist() == new.id.tolist()
    assert found.cluster.tolist() == away.argmin(axis=1).tolist()
    np.testing.assert_allclose(found.distance, away.min(axis=1), rtol=1e-12)
    scores, loadings = said(axes, new, header), pd.read_csv(axes / "table.csv")[list(PATIENTS)].to_numpy()
    want = (new[list(PATIENTS)] - PATIENTS.mean()).to_numpy() @ loadings.T
    np.testing.assert_allclose(scores[[f"component_{k}" for k in (1, 2, 3)]], want, atol=1e-10)


@pytest.mark.parametrize(
    ("change", "error", "why"),
    [
        (
            lambda f: f.drop(columns="pressure"),
            ConfigError,
            "a column 'pressure', as the run's",
        ),
        (
            lambda f: f.assign(age=130),
            DataError,
            "line 2, column 'age': .* from 0 to 120.*'130'",
        ),
        (lambda f: f.assign(age=["x", *f.age[1:]]), DataError, "line 2, column 'age'.* got 'x'"),
        (lambda f: f.assign(age=np.nan), DataError, "line 2, column 'age'.* got ''"),
        (lambda f: f.iloc[:0], DataError, "expected rows below the header"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    change: Any, error: type[Exception], why: str, tmp_path: Path
) -> None:
    keys = keys_of("k-means") | patients(tmp_path, 2) | {"run-name": "cells"}
    folder = in_one_process(keys, tmp_path, nodes=2)
    with pytest.raises(error, match=why):
        said(folder, change(PATIENTS.iloc[:5]))


def test_the_command(tmp_path: Path) -> None:
    keys = keys_of("k-means") | patients(tmp_path, 2) | {"run-name": "cells"}
    folder = in_one_process(keys, tmp_path, nodes=2)
    PATIENTS.to_csv(tmp_path / "new.csv", index=False)

    def call(*more: str, run: Path = folder) -> Any:
        return CliRunner().invoke(app, ["predict", str(run), *more])

    lines = call("--data", str(tmp_path / "new.csv")).stdout.splitlines()
    assert (lines[0], len(lines)) == ("id,cluster,distance", len(PATIENTS) + 1)
    assert call("--data", str(tmp_path / "new.csv"), "--out", str(tmp_path / "out.csv")).stdout == ""
    assert (tmp_path / "out.csv").read_text().splitlines() == lines
    for more in ([], ["--data", str(tmp_path / "new.csv"), "--client", "a"]):
        assert "expected --data FILE.csv" in str(call(*more).exception)
    assert "expected a csv file" in str(call("--data", str(tmp_path)).exception)
    short = in_one_process(keys | {"run-name": "short", "num-server-rounds": 1}, tmp_path, nodes=2)
    error = str(call("--data", str(tmp_path / "new.csv"), run=short).exception)
    assert "expected a run that has ended" in error


def test_rows_without_the_ids_that_the_run_declares_are_numbered_and_the_user_is_told(tmp_path: Path) -> None:
    keys = keys_of("k-means") | patients(tmp_path, 2) | {"run-name": "cells", "column-types": "who:id"}
    rows = pd.read_csv(keys["data-path"])
    rows.assign(who=range(len(rows))).to_csv(keys["data-path"], index=False)
    taken = taken_in(in_one_process(keys, tmp_path, nodes=2))
    PATIENTS.iloc[:5].to_csv(tmp_path / "new.csv", index=False)
    found = taken.predict(tmp_path / "new.csv", whole=False, batch=1)
    assert list(found.columns[0][1]) == list("01234")
    assert 'new.csv has no column "who", the ids that the run declares' in "".join(found.lines)
