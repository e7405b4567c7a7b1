"""Offsets, weights, links, errors by site, intervals and tests of regressions are statsmodels'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy.stats import norm

from client_app.classical.regression import check_size
from task.errors import BouquetError, ConfigError, DataError, FieldError, RefusedError
from task.numerics.row_sums import value
from tests.classical.support import Played, config_of, declared, splits
from tests.classical.test_fit import close
from tests.classical.test_runs import FRAME, at_sites, written
from tests.support.federation import in_one_process, play

FAMILIES = {
    "gaussian": sm.families.Gaussian(),
    "binomial": sm.families.Binomial(),
    "poisson": sm.families.Poisson(),
    "gamma": sm.families.Gamma(sm.families.links.Log()),
}


def exposed(n: int = 400) -> pd.DataFrame:
    """Return people with years at risk, counts of alike ones and sizes, at twelve sites of other levels."""
    rng = np.random.default_rng(8)
    age, smoker = rng.uniform(20, 80, n).round(2), rng.integers(0, 2, n).astype(float)
    years, site = rng.uniform(0.5, 30, n).round(3), rng.integers(0, 12, n)
    level = rng.normal(0, 0.4, 12)[site]
    eta = -3 + 0.02 * age + 0.4 * smoker + level
    shift = rng.normal(0, 0.5, n).round(3)
    return pd.DataFrame({
        "age": age, "smoker": smoker, "years": years, "shift": shift, "site": site.astype(float),
        "falls": rng.poisson(years * np.exp(eta)).astype(float),
        "ill": (rng.random(n) < 1 / (1 + np.exp(-(eta + 2 + shift)))).astype(float),
        "cost": rng.gamma(2, years * np.exp(eta) / 2).round(4) + 0.001,
        "score": (eta * 10 + shift + rng.normal(0, 1, n)).round(4),
        "count": rng.integers(1, 6, n).astype(float), "size": rng.uniform(0.2, 4, n).round(3),
    })  # fmt: skip


PEOPLE = exposed()
X = sm.add_constant(PEOPLE[["age", "smoker"]])
TARGET = {"gaussian": "score", "binomial": "ill", "poisson": "falls", "gamma": "cost"}
EXPOSURE, OFFSET = {"exposure": "years(0..40)"}, {"offset": "shift(-9..9)"}
FREQUENCY, WEIGHTS = {"frequency": "count(1..9)"}, {"weights": "size(0..9)"}


def of(family: str, **more: Any) -> Played:
    target, columns = declared(PEOPLE, TARGET[family]), "age(0..100), smoker(0..1)"
    return Played(config_of("glm", columns, target, family=family, **more), splits(PEOPLE)["every tenth"])


def against(played: Played, model: sm.GLM, *, likelihood: bool = True) -> Any:
    """Compare a table with a fit of statsmodels, and return the fit."""
    first = model.fit(tol=1e-14, maxiter=100)
    fit = model.fit(start_params=first.params, tol=1e-14, maxiter=1)
    close(played.column("coefficient"), np.asarray(fit.params), np.asarray(fit.bse))
    close(played.column("se"), np.asarray(fit.bse))
    ends = np.asarray(fit.conf_int())
    close(played.column("low"), ends[:, 0], np.asarray(fit.bse))
    close(played.column("high"), ends[:, 1], np.asarray(fit.bse))
    figures = played.table.figures
    names = {"deviance": "deviance", "pearson_chi2": "pearson_chi2", "dispersion": "scale"}
    names |= {"df_residual": "df_resid"} | ({"log_likelihood": "llf", "aic": "aic"} if likelihood else {})
    names |= {"null_deviance": "null_deviance"} if figures["null_deviance"] is not None else {}
    for ours, theirs in names.items():
        assert figures[ours] == pytest.approx(getattr(first, theirs), rel=1e-9), ours
    return first


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("poisson", EXPOSURE), ("poisson", OFFSET), ("poisson", EXPOSURE | OFFSET), ("gamma", EXPOSURE),
        ("gaussian", OFFSET), ("binomial", OFFSET),
        *((family, kind) for family in FAMILIES for kind in (FREQUENCY, WEIGHTS)),
        ("poisson", EXPOSURE | FREQUENCY | WEIGHTS),
    ],
    ids=lambda v: v if isinstance(v, str) else "-".join(v),
)  # fmt: skip
def test_offsets_and_weights(family: str, more: dict[str, str]) -> None:
    played = of(family, **more)
    of_rows = {
        "exposure": "years" if "exposure" in more else None, "offset": "shift" if "offset" in more else None,
        "freq_weights": "count" if "frequency" in more else None,
        "var_weights": "size" if "weights" in more else None,
    }  # fmt: skip
    given = {k: PEOPLE[name] for k, name in of_rows.items() if name}
    model = sm.GLM(PEOPLE[TARGET[family]], X, family=FAMILIES[family], **given)
    unknown = family == "gamma" and "weights" in more
    first = against(played, model, likelihood=not unknown)
    figures = played.table.figures
    assert figures["rows"] == (PEOPLE["count"].sum() if "frequency" in more else len(PEOPLE))
    assert (figures["log_likelihood"] is None) == unknown
    assert (figures["null_deviance"] is None) == (family == "binomial" and "offset" in more)
    if family in ("binomial", "poisson"):
        bread = np.asarray(model.fit(start_params=first.params, tol=1e-14, maxiter=1, cov_type="HC0").bse)
        close(played.column("hc0"), bread)


def test_a_frequency_is_as_many_rows() -> None:
    """By definition: the same coefficients and errors as of the table with each row written so often."""
    again = PEOPLE.loc[PEOPLE.index.repeat(PEOPLE["count"].astype(int))]
    columns, target = "age(0..100), smoker(0..1)", declared(PEOPLE, "falls")
    long = Played(config_of("glm", columns, target, family="poisson"), [again])
    short = of("poisson", **FREQUENCY)
    for name in ("coefficient", "se", "hc0", "hc1"):
        close(short.column(name), np.array(long.column(name)))


def test_weighted_least_squares() -> None:
    columns, target = "age(0..100), smoker(0..1)", declared(PEOPLE, "score")
    one, three = (
        Played(config_of("least-squares", columns, target, **WEIGHTS), splits(PEOPLE)[k]) for k in ("1", "3")
    )
    assert one.arrays["sums-sha256"].tobytes() == three.arrays["sums-sha256"].tobytes()
    wls = sm.WLS(PEOPLE.score, X, weights=PEOPLE["size"]).fit()
    close(one.column("coefficient"), np.asarray(wls.params), np.asarray(wls.bse))
    close(one.column("se"), np.asarray(wls.bse))
    close(one.column("hc1"), np.asarray(wls.get_robustcov_results("HC1").bse))
    close(one.column("low"), np.asarray(wls.conf_int())[:, 0], np.asarray(wls.bse))
    close(one.column("high"), np.asarray(wls.conf_int())[:, 1], np.asarray(wls.bse))
    figures = one.table.figures
    found = [figures[k] for k in ("f", "f_p", "r_squared", "log_likelihood", "aic")]
    close(found, np.array([wls.fvalue, wls.f_pvalue, wls.rsquared, wls.llf, wls.aic]))
    assert (figures["f_df"], figures["df_residual"]) == (wls.df_model, wls.df_resid)


@pytest.mark.filterwarnings("ignore:The InversePower link")
def test_gamma_with_its_canonical_link() -> None:
    """Of a large target, whose square would not fit without its scale."""
    data = sm.datasets.scotland.load_pandas()
    names = list(data.exog.columns)
    frame = data.exog.assign(yes=data.endog * 1000)
    keys = {"family": "gamma", "link": "inverse"}
    config = config_of("glm", declared(frame, *names), "yes(0..99999)", **keys)
    one, three = (Played(config, splits(frame)[k]) for k in ("1", "3"))
    assert one.arrays["sums-sha256"].tobytes() == three.arrays["sums-sha256"].tobytes()
    model = sm.GLM(frame.yes, sm.add_constant(data.exog), family=sm.families.Gamma())
    first = against(one, model)
    # The link is canonical: the observed information is the expected one.
    robust = model.fit(start_params=first.params, tol=1e-14, maxiter=1, cov_type="HC0").bse
    close(one.column("hc0"), np.asarray(robust))
    assert one.column("coefficient")[0] == pytest.approx(-0.01776527 / 1000, rel=1e-6)


def test_tests_of_all_slopes() -> None:
    played = of("poisson", **EXPOSURE)
    full = sm.GLM(PEOPLE.falls, X, family=FAMILIES["poisson"], exposure=PEOPLE.years)
    null = sm.GLM(PEOPLE.falls, X[["const"]], family=FAMILIES["poisson"], exposure=PEOPLE.years)
    nothing = null.fit(tol=1e-14)
    ratio = 2 * (full.fit(tol=1e-14).llf - nothing.llf)
    mu = np.asarray(nothing.fittedvalues)
    u = X.to_numpy().T @ (PEOPLE.falls.to_numpy() - mu)
    h = X.to_numpy().T @ (X.to_numpy() * mu[:, None])
    figures = played.table.figures
    assert figures["lr_chi2"] == pytest.approx(ratio, rel=1e-9)
    assert figures["score_chi2"] == pytest.approx(u @ np.linalg.solve(h, u), rel=1e-9)
    assert (figures["lr_df"], figures["lr_p"]) == (2, pytest.approx(np.exp(-ratio / 2), rel=1e-7))
    assert "lr_chi2" not in of("binomial", **OFFSET).table.figures


@pytest.mark.parametrize("family", ["binomial", "poisson", "gaussian"])
def test_errors_clustered_by_site(family: str) -> None:
    columns, target = "age(0..100), smoker(0..1)", declared(PEOPLE, TARGET[family])
    config = config_of("glm", columns, target, family=family, errors="site")
    parts = [frame for _, frame in PEOPLE.groupby("site")]
    played = Played(config, parts)
    again = Played(config, parts[::-1])
    assert {n: a.tobytes() for n, a in played.arrays.items()} == {
        n: a.tobytes() for n, a in again.arrays.items()
    }
    assert played.table.head[7:] == ("cl0", "cl1", "cl1_z", "cl1_p", "cl1_low", "cl1_high")
    assert played.table.figures["sites"] == 12
    model = sm.GLM(PEOPLE[TARGET[family]], X, family=FAMILIES[family])
    start = model.fit(tol=1e-14).params
    for name, correction in (("cl0", False), ("cl1", True)):
        kind = {"groups": PEOPLE.site.astype(int), "use_correction": correction}
        fit = model.fit(start_params=start, tol=1e-14, maxiter=1, cov_type="cluster", cov_kwds=kind)
        close(played.column(name), np.asarray(fit.bse))
    like_statsmodels(played, "cl1", fit)


def like_statsmodels(played: Played, kind: str, fit: Any, larger: float = 1.0) -> None:
    """Compare z, p and limits of a robust error with a fit of statsmodels; `larger` multiplies its errors."""
    se, ends = np.asarray(fit.bse) * larger, np.asarray(fit.conf_int())
    middle = ends.mean(axis=1, keepdims=True)
    low, high = (middle + (ends - middle) * larger).T
    z = np.asarray(fit.tvalues) / larger
    p = 2 * norm.sf(abs(z)) if larger > 1 else np.asarray(fit.pvalues)
    close(played.column(kind), se)
    close(played.column(f"{kind}_z"), z, np.ones(len(se)))
    assert played.column(f"{kind}_p") == pytest.approx(p, abs=1e-9)
    close(played.column(f"{kind}_low"), low, se)
    close(played.column(f"{kind}_high"), high, se)


def test_z_and_p_of_robust_errors_are_of_the_normal_distribution_in_least_squares_too() -> None:
    config = config_of("least-squares", "age(0..100), smoker(0..1)", declared(PEOPLE, "score"))
    played = Played(config, [PEOPLE])
    like_statsmodels(played, "hc1", sm.OLS(PEOPLE.score, X).fit(cov_type="HC1"))


@pytest.mark.parametrize("family", ["binomial", "poisson", "gaussian"])
def test_z_and_p_of_robust_errors(family: str) -> None:
    """Of its GLM statsmodels calls HC1 what is HC0, so the factor is put in here."""
    model = sm.GLM(PEOPLE[TARGET[family]], X, family=FAMILIES[family])
    start = model.fit(tol=1e-14, maxiter=100).params
    fit = model.fit(start_params=start, tol=1e-14, maxiter=1, cov_type="HC1")
    like_statsmodels(of(family), "hc1", fit, (len(X) / (len(X) - 3)) ** 0.5)


def test_a_sites_products_are_its_scores_by_hand() -> None:
    """y = 1, 0 | 0, 3 of the intercept alone: beta = 1, scores 0 - 1 and -1 + 2, U U' = 1 and 1."""
    parts = [pd.DataFrame({"a": [0.0, 1], "y": [1.0, 0]}), pd.DataFrame({"a": [1.0, 0], "y": [0.0, 3]})]
    played = Played(config_of("glm", "a(0..1)", "y(0..4)", errors="site"), [*parts, parts[0]])
    total = played.replies["error-sums"]
    assert len(total) == 4
    beta = played.column("coefficient")
    scores = [
        [(f.y - beta[0] - beta[1] * f.a).sum() / 4, ((f.y - beta[0] - beta[1] * f.a) * f.a).sum() / 4]
        for f in [*parts, parts[0]]
    ]  # y and its residuals are in units of the declared range
    want = sum(np.outer(u, u) for u in scores)
    assert [float(value(t)) for t in total[:3]] == pytest.approx([want[0, 0], want[0, 1], want[1, 1]])


@pytest.mark.parametrize(
    ("family", "more", "why"),
    [
        ("gamma", {"link": "inverse", "exposure": "years(0..40)"}, r'regression.link": expected "log" with'),
        ("binomial", {"trials": "n(-1..5)"}, r"a column of numbers with its range from 0"),
        ("gaussian", {"frequency": "job(a|b)"}, r'regression.frequency": expected a column of numbers'),
        ("gaussian", {"weights": "age(0..3)"}, "each column once.* got age"),
        ("binomial", {"exposure": "years(0..40)"}, "nothing in this run reads it"),
        ("poisson", {"link": "inverse"}, "nothing in this run reads it"),
    ],
)
def test_a_wrong_declaration_is_refused(family: str, more: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        config_of("glm", "age(0..100)", declared(PEOPLE, TARGET[family]), family=family, **more)


@pytest.mark.parametrize(
    ("more", "change", "why"),
    [
        (FREQUENCY, {"count": 1.5}, "whole numbers from 1 to"),
        (WEIGHTS, {"size": 0.0}, "regression.weights.*numbers above 0"),
        (EXPOSURE, {"years": 0.0}, "regression.exposure.*numbers above 0"),
        (OFFSET, {"shift": 10.0}, "column .*shift.* numbers from -9 to 9"),
    ],
)
def test_a_value_that_cannot_be_is_refused(more: dict[str, str], change: dict[str, float], why: str) -> None:
    config = config_of("glm", "age(0..100)", declared(PEOPLE, "falls"), family="poisson", **more)
    with pytest.raises(DataError, match=why):
        Played(config, [PEOPLE.assign(**change)])


def test_too_few_sites_for_their_errors_are_refused_before_round_1() -> None:
    config = config_of("glm", "age(0..100), smoker(0..1)", declared(PEOPLE, "ill"), errors="site")
    with pytest.raises(ConfigError, match="more sites than the 3 columns of the design; got 3"):
        Played(config, splits(PEOPLE)["3"])
    with pytest.raises(ConfigError, match="a penalised coefficient has no error"):
        config_of("least-squares", "age(0..100)", "score(-90..90)", errors="site", penalty=1.0)


def test_weights_that_pick_a_person_are_refused() -> None:
    with pytest.raises(RefusedError, match="frequencies and weights fewer rows of client ward"):
        check_size(np.array([1e-6] * 99 + [9.0]), 5, "ward", "the columns of frequencies and weights")
    check_size(np.ones(5), 5, "ward", "the columns of frequencies and weights")


def test_products_that_do_not_fit_are_refused() -> None:
    n = 3000
    frame = pd.DataFrame({"a": np.tile([0.0, 1], n), "y": np.tile([1.0, 2.0], n), "w": 5e7})
    frame.loc[frame.index[: n // 2], "y"] += 1
    parts = [frame.iloc[:n], frame.iloc[n:], frame.iloc[: n // 2]]
    config = config_of("glm", "a(0..1)", "y(0..4)", errors="site", weights="w(0..99999999)")
    with pytest.raises(FieldError, match="products of a site's scores below 2\\^59"):
        Played(config, parts)


# ----------------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize(("owners", "nodes", "more"), [(10, 10, {}), (10, 4, {"secagg": True})])
def test_a_run_with_errors_by_site(owners: int, nodes: int, more: dict[str, Any], tmp_path: Path) -> None:
    keys = written(tmp_path, owners) | {"regression.errors": "site"} | more
    played = play(keys, nodes=nodes)
    frame = FRAME.assign(cook=(FRAME.job == "cook") * 1.0, nurse=(FRAME.job == "nurse") * 1.0)
    config = config_of(
        "glm", "age(0..100), cook(0..1), nurse(0..1)", "ill(0..1)", family="binomial", errors="site"
    )
    sites = [frame.drop(columns="job").iloc[i::owners] for i in range(owners)]
    want = Played(config, sites).arrays
    found = played.arrays(len(played.rows) - 1)
    assert {n: a.tobytes() for n, a in found.items()} == {n: a.tobytes() for n, a in want.items()}


def test_least_squares_in_a_run_has_students_t(tmp_path: Path) -> None:
    """A run's table took the normal distribution, and 8 degrees of freedom tell."""
    frame = FRAME.iloc[:10]
    header = ["age:number", "job:category(clerk|cook|nurse)", "ill:target", "client"]
    named = frame.assign(client=[f"site-{i % 2}" for i in range(10)])
    named.to_csv(tmp_path / "few.csv", index=False, header=header)
    keys = {
        "algorithm": "least-squares", "dataset": "csv", "partition": "natural", "num-clients": 0,
        "data-path": str(tmp_path / "few.csv"), "regression.columns": "age(0..100)",
        "regression.target": "ill(0..1)",
    }  # fmt: skip
    folder = in_one_process(keys, tmp_path, nodes=2)
    ols = sm.OLS(frame.ill, sm.add_constant(frame.age)).fit()
    table = pd.read_csv(folder / "table.csv")
    close(table.p.tolist(), np.asarray(ols.pvalues))
    close(table.low.tolist(), np.asarray(ols.conf_int())[:, 0], np.asarray(ols.bse))
    assert json.loads((folder / "result.json").read_text())["table"]["f"] == pytest.approx(ols.fvalue)


def test_a_site_refuses_weights_of_few_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    frame = FRAME.drop(columns="job").assign(size=rng.uniform(1, 2, len(FRAME)))[["age", "size", "ill"]]
    parts = [frame.iloc[rows].copy() for rows in np.array_split(np.arange(len(frame)), 3)]
    parts[2].iloc[0, 1] = 1e5
    keys = {
        "algorithm": "least-squares", "dataset": "csv", "num-clients": 0, "num-server-rounds": 4,
        "regression.columns": "age(0..100)", "regression.target": "ill(0..1)",
        "regression.weights": "size(0..1000000)",
    }  # fmt: skip
    with pytest.raises(BouquetError, match="columns of frequencies and weights fewer rows of client ward-2"):
        at_sites(tmp_path, parts, 5, keys=keys, header=["age:number", "size:number", "ill:target"])
