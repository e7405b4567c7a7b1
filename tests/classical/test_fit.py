"""Tables are statsmodels' and scikit-learn's on the pooled rows, for any division of these."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import Ridge

from task.classical.columns import scale_of
from task.classical.design import design_of
from task.classical.solve import inverse
from task.errors import ConfigError, DataError
from task.resolve.read import read_config
from tests.classical.support import Played, config_of, declared, splits

POISSON = sm.families.Poisson()


def close(got: list[float], want: np.ndarray, se: np.ndarray | None = None) -> None:
    """Within 1e-9 of the value, or of its standard error where that is larger."""
    size = np.abs(want) if se is None else np.maximum(np.abs(want), se)
    assert np.max(np.abs(np.array(got) - want) / size) < 1e-9


def against(played: Played, result: sm.GLM, model: sm.GLM) -> None:
    """Compare with a fit of statsmodels, whose errors come from weights of the final coefficients."""
    again = model.fit(start_params=result.params, tol=1e-14, maxiter=1)
    if isinstance(model.family, sm.families.Gamma):  # statsmodels takes the observed information there
        mu, bread = np.asarray(result.fittedvalues), np.asarray(again.normalized_cov_params)
        score = ((model.endog - mu) / mu)[:, None] * model.exog
        robust = np.sqrt(np.diag(bread @ (score.T @ score) @ bread))
    else:
        robust = np.asarray(model.fit(start_params=result.params, tol=1e-14, maxiter=1, cov_type="HC0").bse)
    close(played.column("coefficient"), np.asarray(result.params), np.asarray(again.bse))
    close(played.column("se"), np.asarray(again.bse))
    close(played.column("hc0"), robust)
    figures = played.table.figures
    found = [figures[k] for k in ("deviance", "null_deviance", "pearson_chi2", "log_likelihood", "aic")]
    wanted = [result.deviance, result.null_deviance, result.pearson_chi2, result.llf, result.aic]
    close(found, np.array(wanted, float))
    assert figures["dispersion"] == pytest.approx(result.scale, rel=1e-9)
    assert played.column("p") == pytest.approx(list(again.pvalues), rel=1e-7, abs=1e-12)


@pytest.fixture(scope="module")
def randhie() -> pd.DataFrame:
    data = sm.datasets.randhie.load_pandas()
    return data.exog.assign(mdvis=data.endog)


def test_poisson_of_any_division_is_the_pooled_table(randhie: pd.DataFrame) -> None:
    names = [c for c in randhie.columns if c != "mdvis"]
    config = config_of("glm", declared(randhie, *names), declared(randhie, "mdvis"), family="poisson")
    played = {name: Played(config, parts) for name, parts in splits(randhie).items()}
    one = played["1"]
    for other in played.values():
        assert {n: a.tobytes() for n, a in other.arrays.items()} == {
            n: a.tobytes() for n, a in one.arrays.items()
        }
    model = sm.GLM(randhie.mdvis, sm.add_constant(randhie[names]), family=POISSON)
    against(one, model.fit(tol=1e-14, maxiter=100), model)
    # Written down from statsmodels 0.15.
    assert one.column("coefficient")[:3] == pytest.approx([0.7003528786, -0.05253511535, -0.2470867941])
    assert one.column("hc0")[1] == pytest.approx(0.007204999144)
    assert one.questions == ["opening-sums", *["step-sums"] * 7, "error-sums"]


def test_binomial_of_trials() -> None:
    data = sm.datasets.star98.load_pandas()
    frame = data.exog.assign(right=data.endog.NABOVE, all=data.endog.sum(axis=1))
    names = list(data.exog.columns)
    config = config_of(
        "glm",
        declared(frame, *names),
        declared(frame, "right"),
        family="binomial",
        trials=declared(frame, "all"),
    )
    one, ten = (Played(config, splits(frame)[name]) for name in ("1", "every tenth"))
    assert one.arrays["sums-sha256"].tobytes() == ten.arrays["sums-sha256"].tobytes()
    model = sm.GLM(data.endog, sm.add_constant(data.exog), family=sm.families.Binomial())
    against(one, model.fit(tol=1e-14), model)
    assert one.column("coefficient")[names.index("LOWINC") + 1] == pytest.approx(-0.01681503662)


def test_gamma_with_a_log_link() -> None:
    data = sm.datasets.scotland.load_pandas()
    frame, names = data.exog.assign(yes=data.endog), list(data.exog.columns)
    config = config_of("glm", declared(frame, *names), declared(frame, "yes"), family="gamma")
    one, three = (Played(config, splits(frame)[name]) for name in ("1", "3"))
    assert one.arrays["sums-sha256"].tobytes() == three.arrays["sums-sha256"].tobytes()
    family = sm.families.Gamma(sm.families.links.Log())
    model = sm.GLM(data.endog, sm.add_constant(data.exog), family=family)
    against(one, model.fit(tol=1e-14), model)
    assert one.table.figures["deviance"] == pytest.approx(0.0879878183611)


def test_logistic_regression() -> None:
    data = load_breast_cancer(as_frame=True)
    names = ["mean radius", "mean texture", "mean smoothness", "mean symmetry", "mean fractal dimension"]
    frame = data.data[names].assign(target=data.target)
    config = config_of("glm", declared(frame, *names), "target(0..1)", family="binomial")
    one, ten = (Played(config, splits(frame)[name]) for name in ("1", "10"))
    assert one.arrays["sums-sha256"].tobytes() == ten.arrays["sums-sha256"].tobytes()
    model = sm.GLM(data.target, sm.add_constant(data.data[names]), family=sm.families.Binomial())
    against(one, model.fit(tol=1e-14), model)
    assert one.table.figures["deviance"] == pytest.approx(177.79806507)


@pytest.fixture(scope="module")
def diabetes() -> pd.DataFrame:
    data = load_diabetes(scaled=False, as_frame=True)
    return data.data.assign(y=data.target)


@pytest.mark.parametrize("algorithm", ["least-squares", "glm"])
def test_least_squares(algorithm: str, diabetes: pd.DataFrame) -> None:
    names = [c for c in diabetes.columns if c != "y"]
    config = config_of(algorithm, declared(diabetes, *names), declared(diabetes, "y"))
    one, three = (Played(config, splits(diabetes)[name]) for name in ("1", "3"))
    assert one.arrays["sums-sha256"].tobytes() == three.arrays["sums-sha256"].tobytes()
    ols = sm.OLS(diabetes.y, sm.add_constant(diabetes[names])).fit()
    close(one.column("coefficient"), np.asarray(ols.params), np.asarray(ols.bse))
    close(one.column("se"), np.asarray(ols.bse))
    hc0, hc1 = (np.asarray(ols.get_robustcov_results(kind).bse) for kind in ("HC0", "HC1"))
    close(one.column("hc0"), hc0)
    close(one.column("hc1"), hc1)
    figures = one.table.figures
    assert figures["r_squared"] == pytest.approx(0.51774842222, rel=1e-10)
    assert figures["dispersion"] == pytest.approx(2932.6816372, rel=1e-10)
    assert [figures["log_likelihood"], figures["aic"]] == pytest.approx([ols.llf, ols.aic], rel=1e-12)
    if algorithm == "least-squares":
        assert one.column("p") == pytest.approx(list(ols.pvalues), rel=1e-8)


def test_ridge_penalises_slopes_in_the_columns_own_units(diabetes: pd.DataFrame) -> None:
    names = [c for c in diabetes.columns if c != "y"]
    config = config_of("least-squares", declared(diabetes, *names), declared(diabetes, "y"), penalty=1.0)
    one, ten = (Played(config, splits(diabetes)[name]) for name in ("1", "10"))
    assert one.arrays["sums-sha256"].tobytes() == ten.arrays["sums-sha256"].tobytes()
    ridge = Ridge(alpha=1.0, solver="svd").fit(diabetes[names], diabetes.y)
    close(one.column("coefficient"), np.array([ridge.intercept_, *ridge.coef_]))
    assert one.column("se") == one.column("hc1_p") == [None] * 11
    assert one.column("coefficient")[0] == pytest.approx(-316.0771186)


# ----------------------------------------------------------------------------------------- refusals


def two(x: list[float], y: list[float]) -> pd.DataFrame:
    return pd.DataFrame({"a": x, "b": [2 * v + 1 for v in x], "y": y})


def test_a_column_that_follows_from_others_is_named_with_them() -> None:
    frame = two([1, 2, 3, 4, 5], [1, 0, 2, 1, 4])
    with pytest.raises(DataError, match=r"column b: .* combination of const, a in these rows"):
        Played(config_of("least-squares", "a(0..8), b(0..16)", "y(0..4)"), [frame])


def test_an_empty_column_is_named() -> None:
    frame = two([0, 0, 0, 0], [1, 0, 2, 1])
    with pytest.raises(DataError, match="column a: expected values other than 0"):
        Played(config_of("least-squares", "a(0..8)", "y(0..4)"), [frame])


def test_separated_classes_give_no_table() -> None:
    frame = two([1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 1, 1])
    with pytest.raises(DataError, match=r"column y: expected outcomes that overlap; .* separated"):
        Played(config_of("glm", "a(0..8)", "y(0..1)", family="binomial"), [frame])


def test_one_class_and_too_few_rows_are_refused() -> None:
    config = config_of("glm", "a(0..8)", "y(0..1)", family="binomial")
    with pytest.raises(DataError, match="both outcomes"):
        Played(config, [two([1, 2, 3, 4], [1, 1, 1, 1])])
    with pytest.raises(DataError, match="more rows than the 2 columns"):
        Played(config, [two([1, 2], [1, 0])])


@pytest.mark.parametrize(
    ("family", "y", "why"),
    [
        ("binomial", [0, 1, 0.5, 1], "0 or 1, or successes"),
        ("poisson", [0, 1, 0.5, 1], "whole numbers"),
        ("gamma", [0, 1, 2, 1], "numbers above 0"),
    ],
)
def test_a_target_of_another_family_is_refused(family: str, y: list[float], why: str) -> None:
    with pytest.raises(DataError, match=why):
        Played(config_of("glm", "a(0..8)", "y(0..4)", family=family), [two([1, 2, 3, 4], y)])


def test_a_value_beyond_its_declared_range_is_refused_without_saying_how_many() -> None:
    with pytest.raises(DataError, match=r"column .*a.*: expected numbers from 0 to 3.* got others") as err:
        Played(config_of("least-squares", "a(0..3)", "y(0..4)"), [two([1, 2, 3, 4], [1, 0, 2, 1])])
    assert not re.search(r"\b1\b", str(err.value).split("got")[1])


@pytest.mark.parametrize(
    ("columns", "target", "why"),
    [
        ("", "y(0..1)", "regression.columns"),
        ("age", "y(0..1)", "names with ranges"),
        ("age(5..5)", "y(0..1)", "a range of numbers"),
        ("age(0..inf)", "y(0..1)", "a range of numbers"),
        ("sex(m)", "y(0..1)", "two levels and more"),
        ("age(0..9), age(0..9)", "y(0..1)", "each column once"),
        ("y(0..9)", "y(0..1)", "each column once"),
        ("age(0..9)", "", "regression.target"),
        ("age(0..9)", "y(a|b|c)", "a number, or two levels"),
        ("const(0..9)", "y(0..1)", "the intercept"),
        ("c(" + "|".join(map(str, range(200))) + ")", "y(0..1)", "at most 128"),
    ],
)
def test_a_wrong_declaration_is_refused(columns: str, target: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        config_of("glm", columns, target)


def test_another_data_set_than_csv_is_refused() -> None:
    keys = {"algorithm": "glm", "regression.columns": "a(0..1)", "regression.target": "y(0..1)"}
    with pytest.raises(ConfigError, match='"dataset": glm reads columns by their names; expected "csv"'):
        read_config(keys)


# ----------------------------------------------------------------------------------------- by hand


def test_a_line_through_three_points() -> None:
    """y = 1 + 2 x + e, e = (1, -2, 1) / 3: the residuals are orthogonal to both columns."""
    frame = pd.DataFrame({"a": [0.0, 1, 2], "y": [1 + 1 / 3, 3 - 2 / 3, 5 + 1 / 3]})
    played = Played(config_of("least-squares", "a(0..2)", "y(0..8)"), [frame.iloc[:1], frame.iloc[1:]])
    assert played.column("coefficient") == pytest.approx([1, 2], rel=1e-14)
    # RSS = 6/9, one degree of freedom; (X'X)^-1 = [[5/6, -1/2], [-1/2, 1/2]]
    assert played.column("se") == pytest.approx([(2 / 3 * 5 / 6) ** 0.5, (2 / 3 / 2) ** 0.5], rel=1e-12)


def test_levels_are_sorted_by_their_bytes_and_the_first_is_the_baseline() -> None:
    design = design_of("job(z|Ä|a|B), age(-3..2)", "y(0..1)")
    assert design.names == ("const", "job=a", "job=z", "job=Ä", "age")
    assert design.scales == (1.0, 1.0, 1.0, 1.0, 0.25)
    assert [scale_of(v) for v in (0, 1, 1.5, 2, 2.1, 69966)] == [1, 1, 0.5, 0.5, 0.25, 2.0**-17]


def test_an_inverse_is_exact() -> None:
    matrix = [[Fraction(4), Fraction(1, 2)], [Fraction(1, 2), Fraction(3, 4)]]
    found = inverse(matrix, ("a", "b"))
    assert found.matrix() == [[Fraction(3, 11), Fraction(-2, 11)], [Fraction(-2, 11), Fraction(16, 11)]]
    assert found.times([Fraction(1), Fraction(1)]) == [Fraction(1, 11), Fraction(14, 11)]
    middle = [[Fraction(1), Fraction(0)], [Fraction(0), Fraction(0)]]
    assert found.around(middle)[1][1] == Fraction(4, 121)


def test_a_table_is_written_with_all_digits() -> None:
    frame = pd.DataFrame({"a_1": [0.0, 1, 2, 3], "y": [1.0, 3, 4, 8]})
    table = Played(config_of("least-squares", "a_1(0..3)", "y(0..8)"), [frame]).table
    head, _, line = table.csv().splitlines()
    assert head == "name,coefficient,se,z,p,low,high,hc0,hc1,hc1_z,hc1_p,hc1_low,hc1_high"
    assert float(line.split(",")[1]) == table.rows[1][1]
    assert r"a\_1 & 2.2 & " in table.latex()
    assert table.as_dict()["sums_sha256"] == table.digest
