"""Cox's regression is that of the pooled rows, by statsmodels and by hand, for any division of these."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

from client_app.classical.cox import cells_in_order, check_weights
from client_app.classical.survival import moved
from strategies import strategy_of
from strategies.engine.rule import Phase, RoundContext
from task.catalogue.survivals import COUNTS, OBJECTIONS
from task.classical.bins import bits
from task.classical.columns import NamedColumns
from task.classical.concordance import ranked
from task.classical.cox import cell_sums, cox_of
from task.classical.hazards import baseline_table, hazards_table
from task.classical.printed import Printed
from task.classical.survival import FATES
from task.config.knobs import Config
from task.errors import ConfigError, DataError, RefusedError, WireError
from task.numerics.arrays import Arrays
from task.numerics.row_sums import UNIT_BITS
from task.resolve.read import read_config
from tests.classical.support import ROWS, answered, patients, splits

# Rossi, Berk and Lenihan 1980, as in R's package carData and in lifelines: weeks after release, 1 = arrested.
ROSSI = patients("rossi")
X = ["fin", "age", "race", "wexp", "mar", "paro", "prio"]
COLUMNS = "fin(0..1), age(0..64), race(0..1), wexp(0..1), mar(0..1), paro(0..1), prio(0..32)"
KEYS = {
    "algorithm": "cox", "dataset": "csv", "num-server-rounds": 25, "survival.time": "week(0..52)",
    "survival.event": "arrest(0..1)",
}  # fmt: skip


def config_with(columns: str = COLUMNS, **more: Any) -> Config:
    keys = {f"survival.{key}": value for key, value in more.items()}
    return read_config(KEYS | {"survival.columns": columns} | keys)


class PlayedCox:
    """The result of the real rule over parts of a table, without messages."""

    def __init__(self, config: Config, parts: Sequence[pd.DataFrame]) -> None:
        self.cox, self.questions = cox_of(config), list[str]()
        self.tables = [NamedColumns({n: f[n].to_numpy(np.float64) for n in f.columns}, {}) for f in parts]
        rule = strategy_of(config.entry.rule)(config).rule
        names = tuple(f"site-{i}" for i in range(len(parts)))
        context = RoundContext(
            rule, config.entry, 0, 1.0, (), names, (), lambda names: {}, remark=lambda line: None
        )
        self._run(rule.opening(context))
        state: Any = rule.initial_state({}, ())
        self.rows: list[dict[str, Any]] = []
        while not rule.finished(state) and len(self.rows) < config.server.num_server_rounds:
            state, metrics = self._run(rule.round(state, context))
            self.rows.append(metrics)
        self.arrays: Arrays = state.arrays

    @property
    def table(self) -> Printed:
        """The table."""
        return hazards_table(self.cox, self.arrays)

    def column(self, name: str) -> list[float]:
        """Return a column of the table."""
        table = self.table
        return [row[table.head.index(name)] for row in table.rows]  # type: ignore[misc]

    @property
    def baseline(self) -> list[dict[str, Any]]:
        """The baseline hazard."""
        found: list[dict[str, Any]] = baseline_table(self.cox, self.arrays).as_dict()["baseline"]
        return found

    def _run(self, phases: Any) -> Any:
        return answered(phases, self._sums)

    def _sums(self, name: str, phase: Phase) -> list[list[int]]:
        self.questions.append(name)
        return [self._answer(table, name, phase) for table in self.tables]

    def _answer(self, table: NamedColumns, record: str, phase: Phase) -> list[int]:
        survival = self.cox.survival
        cases = survival.cases(table)
        shape = (len(survival.names(survival.strata)), survival.last + 1, FATES)
        if phase.name == "scores":
            return [0] * bits(self.cox.scores - 1)
        if record == OBJECTIONS:
            return [0] * (2 * shape[0] * bits(survival.last))
        if record == COUNTS and "bins" in phase.records:
            bins = phase.records["bins"][ROWS].astype(np.int64).reshape(shape)
            return [n << UNIT_BITS for n in survival.counts(moved(cases, bins)).ravel().tolist()]
        cells = cells_in_order(self.cox, phase.records["cells"][ROWS])
        beta = phase.records["coefficients"][ROWS][:, 0].tolist()
        cell = cells[cases.strata, cases.bins, cases.fates]
        centred, many = self.cox.centred(table), int(cells.max()) + 1
        if phase.name == "concordance":
            return [n << UNIT_BITS for n in ranked(self.cox, centred, beta, cell, many).ravel().tolist()]
        return cell_sums(self.cox, centred, beta, cell, many)


# Written down from lifelines 0.30 and statsmodels 0.15 on the pooled rows.
# fmt: off
EFRON = (
    [-0.3794221669, -0.05743774301, 0.3138997859, -0.1497956972, -0.4337038767, -0.08487108299,
     0.09149707935],
    [0.1913794807, 0.02199947063, 0.3079927764, 0.2122242962, 0.3818680575, 0.1957566719, 0.02864855007],
    -658.747659446,
)
BRESLOW = (
    [-0.3790218878, -0.05724592536, 0.3141297651, -0.1511145996, -0.4327825725, -0.08498283575, 0.0911115405],
    [0.1913644259, 0.02198318575, 0.3080172796, 0.2121231608, 0.3817949351, 0.1957482073, 0.02863125307],
    -659.120605677,
)
# fmt: on


def phreg(frame: pd.DataFrame, names: list[str], ties: str, strata: Any = None) -> Any:
    model = sm.PHReg(frame.week, frame[names], frame.arrest, ties=ties, strata=strata)
    return model.fit(method="newton", tol=1e-14)


def close(got: list[float], want: Sequence[float], size: Sequence[float] | None = None) -> None:
    """Within 1e-9 of the value, or of its standard error where that is larger."""
    wanted = np.array(want)
    scale = np.abs(wanted) if size is None else np.maximum(np.abs(wanted), size)
    assert np.max(np.abs(np.array(got) - wanted) / scale) < 1e-9


@pytest.mark.parametrize(("ties", "written"), [("efron", EFRON), ("breslow", BRESLOW)])
def test_rossi(ties: str, written: tuple[list[float], list[float], float]) -> None:
    played = PlayedCox(config_with(ties=ties), [ROSSI])
    coefficients, errors, likelihood = written
    assert played.column("coefficient") == pytest.approx(coefficients, rel=2e-9)
    assert played.column("se") == pytest.approx(errors, rel=1e-9)
    figures = played.table.figures
    assert figures["log_likelihood"] == pytest.approx(likelihood, abs=1e-9)
    other = phreg(ROSSI, X, ties)
    close(played.column("coefficient"), other.params, other.bse)
    close(played.column("se"), other.bse)
    close(played.column("p"), other.pvalues)
    assert (figures["rows"], figures["events"]) == (432, 114)
    assert played.questions == ["objections", "counts", *["risk-sums"] * (1 + len(played.rows))]
    assert len(played.rows) <= 6


def test_any_division_gives_the_same_bits() -> None:
    config = config_with("fin(0..1), age(0..64), prio(0..32)")
    played = [PlayedCox(config, parts) for parts in splits(ROSSI).values()]
    first = {n: a.tobytes() for n, a in played[0].arrays.items()}
    assert all({n: a.tobytes() for n, a in p.arrays.items()} == first for p in played[1:])


def test_strata_have_hazards_of_their_own() -> None:
    columns = "fin(0..1), age(0..64), prio(0..32)"
    played = PlayedCox(config_with(columns, strata="race(0..1)"), [ROSSI.iloc[::2], ROSSI.iloc[1::2]])
    # Written down from lifelines 0.30.
    wanted = [-0.3641719241, -0.06745823451, 0.100748175], [0.1906664337, 0.02093462295, 0.02714369535]
    assert played.column("coefficient") == pytest.approx(wanted[0], rel=2e-9)
    assert played.column("se") == pytest.approx(wanted[1], rel=1e-9)
    assert played.table.figures["log_likelihood"] == pytest.approx(-621.895194551, abs=1e-9)
    assert {point["stratum"] for point in played.baseline} == {"race=0", "race=1"}


def test_the_baseline_is_that_of_lifelines_at_the_means() -> None:
    last = PlayedCox(config_with(), [ROSSI]).baseline[-1]
    assert (last["time"], last["at_risk"], last["events"]) == (52.0, 322, 4)
    assert last["hazard"] == pytest.approx(0.2743728368, abs=1e-10)
    assert last["survival"] == math.exp(-last["hazard"])


def test_a_wider_step_gives_the_regression_of_the_rounded_times() -> None:
    played = PlayedCox(config_with(step=7.0), [ROSSI.iloc[::2], ROSSI.iloc[1::2]])
    weeks = np.minimum(np.ceil(ROSSI.week / 7) * 7, 52)
    other = phreg(ROSSI.assign(week=weeks), X, "efron")
    close(played.column("coefficient"), other.params, other.bse)


def test_one_column_by_hand() -> None:
    """Three persons, x = 0, 1, 0; events at 1 (x = 0) and 2 (x = 1): L = 1 / (2 + r) * r / (1 + r).

    dL = 0 where 1 = r / (2 + r) + r / (1 + r), r^2 = 2. The information is r (2 / (2 + r)^2 + 1 / (1 + r)^2).
    """
    frame = pd.DataFrame({"week": [1.0, 2, 3], "arrest": [1.0, 1, 0], "x": [0.0, 1, 0]})
    played = PlayedCox(config_with("x(0..1)"), [frame.iloc[:1], frame.iloc[1:]])
    r = math.sqrt(2)
    assert played.column("coefficient") == pytest.approx([math.log(r)], rel=1e-13)
    information = r * (2 / (2 + r) ** 2 + 1 / (1 + r) ** 2)
    assert played.column("se") == pytest.approx([information**-0.5], rel=1e-13)
    assert played.table.figures["log_likelihood"] == pytest.approx(math.log(r / (2 + r) / (1 + r)), rel=1e-14)
    one, two = played.baseline
    at_mean = math.exp(math.log(r) / 3)
    assert one["hazard"] == pytest.approx(at_mean / (2 + r), rel=1e-13)
    assert two["hazard"] == pytest.approx(at_mean / (2 + r) + at_mean / (1 + r), rel=1e-13)


# ------------------------------------------------------------------------- proportional hazards


def slow_proportional(frame: pd.DataFrame, beta: np.ndarray, names: list[str]) -> tuple[np.ndarray, float]:
    """Return the score tests of z_j g(t), g = 1 - S(t-), person by person, with Efron's ties."""
    x, t, event = frame[names].to_numpy(float), frame.week.to_numpy(), frame.arrest.to_numpy() == 1
    p, survival = len(names), 1.0
    score, information = np.zeros(2 * p), np.zeros((2 * p, 2 * p))
    for time in np.unique(t[event]):
        g = 1 - survival
        risk, dead = t >= time, event & (t == time)
        d = int(dead.sum())
        wide = np.hstack([x, g * x])
        r = np.exp(x @ beta)
        for at in range(d):
            w = r * (risk - dead * (at / d))
            mean = w @ wide / w.sum()
            score += wide[dead].mean(0) - mean
            information += (wide.T * w) @ wide / w.sum() - np.outer(mean, mean)
        survival *= 1 - d / risk.sum()
    u, i = score[p:], information
    left = i[p:, p:] - i[p:, :p] @ np.linalg.solve(i[:p, :p], i[:p, p:])
    return u**2 / np.diag(left), float(u @ np.linalg.solve(left, u))


def test_the_test_of_proportional_hazards_is_the_score_test() -> None:
    played = PlayedCox(config_with(), [ROSSI])
    each, together = slow_proportional(ROSSI, np.array(played.column("coefficient")), X)
    assert played.column("proportional_chi2") == pytest.approx(list(each), rel=1e-8)
    assert played.table.figures["proportional_chi2"] == pytest.approx(together, rel=1e-8)


# ------------------------------------------------------------------------------------ refusals


def test_columns_without_information_are_named() -> None:
    frame = ROSSI.assign(same=1.0, twice=2 * ROSSI.age)
    with pytest.raises(DataError, match="column same: expected values that differ"):
        PlayedCox(config_with("fin(0..1), same(0..2)"), [frame])
    with pytest.raises(DataError, match=r"column twice: .* combination of age"):
        PlayedCox(config_with("age(0..64), twice(0..128)"), [frame])


@pytest.mark.parametrize("column", [ROSSI.arrest, ((ROSSI.arrest == 0) & (ROSSI.age > 30)).astype(int)])
def test_columns_that_separate_give_no_table(column: pd.Series) -> None:
    with pytest.raises(DataError, match="column arrest: expected events at all values of the columns"):
        PlayedCox(config_with("twin(0..1)"), [ROSSI.assign(twin=column)])


def test_no_event_is_refused() -> None:
    with pytest.raises(DataError, match="column arrest: expected the event in some row"):
        PlayedCox(config_with(), [ROSSI.assign(arrest=0)])


@pytest.mark.parametrize(
    ("columns", "more", "why"),
    [
        ("", {}, "survival.columns"),
        ("age", {}, "names with ranges"),
        ("week(0..52)", {}, "each column once; got week"),
        ("race(0..1)", {"strata": "race(0..1)"}, "each column once; got race"),
        ("c(" + "|".join(map(str, range(99))) + ")", {}, "at most 64 columns"),
        (COLUMNS, {"ties": "exact"}, "survival.ties"),
    ],
)
def test_a_wrong_declaration_is_refused(columns: str, more: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        config_with(columns, **more)


def test_coefficients_that_pick_a_few_persons_are_refused() -> None:
    x, cell = [np.linspace(-50, 50, 101)], np.zeros(101, np.int64)
    check_weights(x, [0.0], cell, 50, "ward")
    with pytest.raises(RefusedError, match="fewer persons of client ward would have most of the weight"):
        check_weights(x, [0.3], cell, 50, "ward")


@pytest.mark.parametrize("number", [-1.0, 0.5, 1e9, math.nan], ids=str)
def test_hostile_cells_are_refused(number: float) -> None:
    with pytest.raises(WireError, match="expected numbers of cells"):
        cells_in_order(cox_of(config_with()), np.full((53, 2), number))


def test_a_table_is_written_with_all_digits() -> None:
    played = PlayedCox(config_with("prio(0..32)"), [ROSSI])
    table = played.table
    head, line = table.csv().splitlines()
    assert head.startswith("name,coefficient,se,z,p,hazard_ratio,lower,upper")
    assert float(line.split(",")[1]) == played.column("coefficient")[0]
    assert r"\begin{tabular}{lrrrrrrrrr}" in table.latex()
    assert table.as_dict()["sums_sha256"] == table.digest
