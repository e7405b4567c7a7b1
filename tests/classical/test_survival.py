"""Survival curves are those of the pooled rows; bins of time are merged until no site shows few persons."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from statsmodels.duration.survfunc import survdiff

from client_app.classical.survival import Subgroup, SurvivalRows, bins_in, column_parts, cuts_of, moved
from task.classical.bins import are_bins, bits, closed, levels, merged
from task.classical.columns import NamedColumns
from task.classical.curves import curves_of, merged_in
from task.classical.kaplan_meier import CurvePoint, curve, log_rank, median
from task.classical.survival import Cases, Survival, survival_of
from task.errors import ConfigError, DataError, RefusedError, WireError
from task.resolve.read import read_config
from tests.classical.support import patients

# Loprinzi et al. 1994, as in R's package survival and in lifelines: days, 1 = died, 1 = man.
LUNG = patients("lung")[["time", "status", "sex"]]
KEYS = {"algorithm": "kaplan-meier", "dataset": "csv"}


def survival_with(time: str = "time(0..1022)", event: str = "status(0..1)", **more: Any) -> Survival:
    keys = {f"survival.{key}": value for key, value in more.items()}
    return survival_of(read_config(KEYS | {"survival.time": time, "survival.event": event} | keys))


def table_of(frame: pd.DataFrame) -> NamedColumns:
    return NamedColumns({n: frame[n].to_numpy(np.float64) for n in frame.columns}, {})


def counts_in(survival: Survival, frame: pd.DataFrame) -> np.ndarray:
    return survival.counts(survival.cases(table_of(frame)))


def at(points: list[CurvePoint], time: float) -> CurvePoint:
    return [p for p in points if p.time <= time][-1]


# ------------------------------------------------------------------------------------------- curves


def test_a_curve_by_hand() -> None:
    """Of four persons one dies at 1, one leaves at 2, one dies at 3 and one leaves then."""
    counts = np.array([[0, 0], [1, 0], [0, 1], [1, 1]])
    one, two, three = curve(counts, [0.0, 1.0, 2.0, 3.0])
    assert [(p.time, p.at_risk, p.events, p.censored) for p in (one, two, three)] == [
        (1, 4, 1, 0), (2, 3, 0, 1), (3, 2, 1, 1),
    ]  # fmt: skip
    assert [p.survival for p in (one, two, three)] == [3 / 4, 3 / 4, 3 / 8]
    assert [p.hazard for p in (one, two, three)] == [1 / 4, 1 / 4, 3 / 4]
    spread = math.sqrt(1 / (4 * 3) + 1 / (2 * 1))
    assert three.se == pytest.approx(3 / 8 * spread, rel=1e-15)
    around = math.exp(1.959963984540054 * spread / math.log(3 / 8))
    assert three.upper == pytest.approx((3 / 8) ** around, rel=1e-14)
    assert three.lower == pytest.approx((3 / 8) ** (1 / around), rel=1e-14)
    assert median([one, two, three]) == 3
    assert median([one, two]) is None


def test_where_nobody_is_left_a_curve_has_no_limits() -> None:
    (last,) = curve(np.array([[0, 0], [2, 0]]), [0.0, 1.0])
    assert (last.survival, last.se, last.lower, last.upper, last.hazard) == (0.0, None, None, None, 1.0)


def test_lung_has_the_published_curve() -> None:
    points = curves_of(
        survival := survival_with(),
        {
            "counts": counts_in(survival, LUNG),
            "bins": np.stack([np.arange(1023)] * 2, 1)[None],
            "sums-sha256": np.zeros(32, np.uint8),
        },
    ).groups[0].points  # fmt: skip
    # Written down from lifelines 0.30.
    wanted = {
        183: (0.7035154168, 0.0304130640),
        310: (0.4950242932, 0.0352327462),
        426: (0.3699658758, 0.0358026011),
        687: (0.1512909748, 0.0309049351),
        883: (0.0503455681, 0.0228480489),
    }
    for time, (s, se) in wanted.items():
        assert (at(points, time).survival, at(points, time).se) == pytest.approx((s, se), abs=1e-10)
    assert (points[0].at_risk, sum(p.events for p in points), median(points)) == (228, 165, 310)


def test_a_curve_is_that_of_statsmodels_on_the_heart_transplants() -> None:
    data = sm.datasets.heart.load_pandas()
    frame = pd.DataFrame({"time": data.endog, "status": data.censors})
    survival = survival_with("time(0..2000)")
    points = curve(counts_in(survival, frame)[0, 0], [survival.at(k) for k in range(2001)])
    other = sm.SurvfuncRight(frame.time, frame.status)
    ours = [p for p in points if p.events]
    assert [p.time for p in ours] == list(other.surv_times)
    assert [p.at_risk for p in ours] == list(other.n_risk)
    assert [p.survival for p in ours] == pytest.approx(list(other.surv_prob), rel=1e-12)
    known = [p.se for p in ours if p.se is not None]
    assert known == pytest.approx(list(other.surv_prob_se[: len(known)]), rel=1e-12)


# ----------------------------------------------------------------------------------------- log-rank


def test_the_log_rank_test_by_hand() -> None:
    """Group a has events at 1 and 2, group b one event at 2 and one person who leaves at 3.

    At 1: n = 4, of a 2, E = 1/2, V = 1/4. At 2: n = 3, of a 1, d = 2, E = 2/3, V = 2 (1/2) (1/3) (2/3) = 2/9.
    """
    counts = np.zeros((1, 2, 4, 2), np.int64)
    counts[0, 0, 1, 0] = counts[0, 0, 2, 0] = counts[0, 1, 2, 0] = counts[0, 1, 3, 1] = 1
    found = log_rank(counts)
    assert (found.observed, found.df) == ([2, 1], 1)
    assert found.expected == pytest.approx([7 / 6, 11 / 6], rel=1e-15)
    assert found.chi2 == pytest.approx((2 - 7 / 6) ** 2 / (1 / 4 + 2 / 9), rel=1e-14)


def test_lung_by_sex() -> None:
    found = log_rank(counts_in(survival_with(groups="sex(1..2)"), LUNG))
    assert found.observed == [112, 53]
    assert found.expected[0] == pytest.approx(91.5817390296, abs=1e-10)
    assert found.chi2 == pytest.approx(10.3267419549, abs=1e-10)
    assert found.p == pytest.approx(0.00131116452, rel=1e-9)


@pytest.mark.parametrize("strata", ["", "sex(1..2)"])
def test_three_groups_and_strata_are_those_of_statsmodels(strata: str) -> None:
    frame = LUNG.assign(third=np.arange(228) % 3)
    survival = survival_with(groups="third(0..2)", strata=strata)
    found = log_rank(counts_in(survival, frame))
    stratum = frame.sex if strata else None
    chi2, p = survdiff(frame.time, frame.status, frame.third, strata=stratum)
    assert (found.chi2, found.p) == pytest.approx((chi2, p), rel=1e-9)
    assert (found.df, survival.size[:2]) == (2, (2 if strata else 1, 3))


def test_an_empty_group_is_left_out_of_the_test() -> None:
    two = log_rank(counts_in(survival_with(groups="sex(1..2)"), LUNG))
    three = log_rank(counts_in(survival_with(groups="sex(0..2)"), LUNG))
    assert (three.chi2, three.df) == (two.chi2, 1)
    alone = log_rank(counts_in(survival_with(groups="sex(1..2)"), LUNG[LUNG.sex == 1]))
    assert (alone.chi2, alone.p, alone.df) == (None, None, 0)


# ----------------------------------------------------------------------------------- bins and policy


def test_times_are_rounded_up_to_the_grid_and_cut_at_the_end() -> None:
    survival = survival_with("t(0..1)", "e(0..1)", step=0.1, until=0.75)
    frame = pd.DataFrame({"t": [0.0, 0.05, 0.1, 0.30000000000000004, 0.75, 0.9], "e": [1, 1, 0, 1, 1, 1]})
    cases = survival.cases(table_of(frame))
    assert cases.bins.tolist() == [0, 1, 1, 3, 8, 8]
    assert cases.fates.tolist() == [0, 0, 1, 0, 0, 1]
    assert [survival.at(k) for k in (0, 1, 8)] == [0.0, 0.1, 0.75]


def test_levels_halve_and_single_out_the_first_bin_at_last() -> None:
    for last in (1, 2, 3, 64, 365):
        found = levels(last)
        assert found[0].tolist() == [last]
        assert found[-1].tolist() == list(range(last + 1))
        assert bits(last) == sum(map(len, found[1:]))
        assert merged(last, [0] * bits(last)).tolist() == list(range(last + 1))
        assert merged(last, [1] * bits(last)).tolist() == [last] * (last + 1)
        assert all(set(a.tolist()) <= set(b.tolist()) for a, b in pairwise(found))


def parted(frame: pd.DataFrame, many: int) -> list[pd.DataFrame]:
    return [frame.iloc[i::many] for i in range(many)]


def site_of(survival: Survival, frame: pd.DataFrame, least: int) -> SurvivalRows:
    """Return a site whose owner sets a bound of persons of each group."""
    cases, names = survival.cases(table_of(frame)), survival.names(survival.groups)
    return SurvivalRows(
        survival, "ward", cases, [Subgroup(name, cases.groups == g, least) for g, name in enumerate(names)]
    )


@pytest.mark.parametrize(("least", "many"), [(3, 1), (3, 3), (5, 3), (10, 1)])
def test_no_site_has_few_persons_in_a_merged_bin(least: int, many: int) -> None:
    survival = survival_with(groups="sex(1..2)", until=600.0)
    sites = [site_of(survival, part, least) for part in parted(LUNG, many)]
    said = np.sum([site.closed() for site in sites], axis=0)
    ends = [merged(survival.last, said[0, fate].tolist()) for fate in (0, 1)]
    assert all(are_bins(e.astype(np.float64)) for e in ends)
    bins = np.stack(ends, axis=1)[None]
    for site in sites:
        site.check_unions(bins)
        counts = survival.counts(moved(site.cases, bins))
        assert ((counts == 0) | (counts >= least)).all()


def test_a_site_shows_nothing_below_what_is_closed() -> None:
    """Two sites that differ only in a part with too few persons send the same bits."""
    one, other = np.zeros((1, 65), np.int64), np.zeros((1, 65), np.int64)
    one[0, :33], other[0, :33] = 9, 9
    one[0, [40, 41]], other[0, [50, 64]] = 1, 1
    assert (closed(one, [5]) == closed(other, [5])).all()
    assert not (closed(one, [5]) == closed(one * 9, [5])).all()


def test_bins_that_divide_those_of_a_site_are_refused() -> None:
    """So is a partition of which each bin has enough persons: the difference to another one might not."""
    survival = survival_with(groups="sex(1..2)")
    site = site_of(survival, LUNG, 10)
    own = site.bins()
    assert np.unique(own[0, :, 0]).tolist() == [256, 511, 1022]
    site.check_unions(own)
    site.check_unions(np.full((1, 1023, 2), 1022))
    for cut in (255, 257):
        shifted = np.where(np.arange(1023) <= cut, cut, 1022)
        asked = np.stack([shifted, own[0, :, 1]], axis=1)[None]
        assert (survival.counts(moved(site.cases, asked))[..., 0].max(axis=2) >= 10).all()
        with pytest.raises(
            RefusedError, match="min-examples; a bin of time would have fewer persons of client"
        ):
            site.check_unions(asked)


def test_a_group_with_few_events_is_refused_by_its_name() -> None:
    survival = survival_with(groups="sex(1..2)", strata="third(0..2)")
    frame = LUNG.assign(third=2).drop(LUNG.index[(LUNG.sex == 2) & (LUNG.status == 1)][4:])
    with pytest.raises(RefusedError, match="sex=2 of third=2 would have fewer than 5 persons of client ward"):
        site_of(survival, frame, 5).check()
    site_of(survival, frame[frame.sex == 1], 5).check()  # nobody is no small group


def test_no_bin_ends_near_a_cut_of_an_earlier_question() -> None:
    """Events at 1, 2, ..., 60: between a cut at 20.5 and the ends 16 to 24 but 20 are fewer than five."""
    frame = pd.DataFrame({"time": np.arange(1.0, 61), "status": 1})
    survival = survival_with("time(0..60)")
    site = site_of(survival, frame, 5)
    near = site.near(np.array([20.5]), frame.time.to_numpy(), np.ones(60, bool))
    assert np.flatnonzero(near[0]).tolist() == [16, 17, 18, 19, 21, 22, 23, 24]
    barred = np.zeros((1, 2, 61), bool)
    barred[:, 0] = near
    assert np.unique(replace(site, barred=barred).bins()[0, :, 0]).tolist() == [8, 15, 30, 38, 45, 53, 60]
    assert np.unique(site.bins()[0, :, 0]).tolist() == [8, 15, 23, 30, 38, 45, 53, 60]
    near = site.near(np.array([58.0]), frame.time.to_numpy(), np.ones(60, bool))
    barred[:, 0] = near
    with pytest.raises(RefusedError, match=r"between 60, the end of follow-up, and .* an earlier question"):
        replace(site, barred=barred).check()


def test_cuts_are_the_times_at_which_bins_end_and_cells_change() -> None:
    survival = survival_with("time(0..8)", step=2.0)
    bins = np.stack([[1, 1, 4, 4, 4], [1, 1, 2, 4, 4]], axis=1)[None]
    assert cuts_of(survival, bins) == {"time with status": [2.0, 8.0], "time without status": [2.0, 4.0]}


def test_the_parts_of_a_regression_are_its_rows_its_columns_of_0_and_1_and_pairs_of_these() -> None:
    a, b, age = np.array([0.0, 1, 1]), np.array([1.0, 1, 0]), np.array([30.0, 40, 50])
    parts = column_parts(("a", "b", "age"), [a, b, age], 5)
    assert [(part.name, part.rows.tolist(), part.least) for part in parts] == [
        ("the whole table", [True] * 3, 30),
        ("a", [False, True, True], 5),
        ("a", [True, False, False], 5),
        ("b", [True, True, False], 5),
        ("b", [False, False, True], 5),
        ("a and b together", [False, True, False], 5),
        ("a and b together", [False, False, True], 5),
        ("a and b together", [True, False, False], 5),
        ("a and b together", [False, False, False], 5),
    ]


@pytest.mark.parametrize(
    "ends", [[1, 0, 2], [0, 1, 3], [0, 2, 1], [0.5, 1, 2], [1, 2, 2], [math.nan, 1, 2], [-1, 1, 2]], ids=str
)
def test_hostile_bins_are_refused(ends: list[float]) -> None:
    with pytest.raises(WireError, match="expected bins of time"):
        bins_in(np.array([[e, j] for j, e in enumerate(ends)]), survival_with("time(0..2)"))


def test_merged_bins_are_named_by_their_times() -> None:
    survival = survival_with("time(0..4)", step=2.0)
    bins = np.array([[[1, 2], [1, 2], [2, 2]]])
    assert merged_in(survival, bins) == [
        {"stratum": "all", "of": "events", "above": None, "up_to": 2.0},
        {"stratum": "all", "of": "censored", "above": None, "up_to": 4.0},
    ]


# ----------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"time": ""}, "survival.time"),
        ({"time": "week(a|b)"}, "survival.time.*a range"),
        ({"event": "age(0..9)"}, "a column of 0 and 1"),
        ({"event": "s(a|b|c)"}, "a column of 0 and 1"),
        ({"groups": "age(0.5..3)"}, "a few whole numbers"),
        ({"groups": "age(0..900)"}, "a few whole numbers"),
        ({"groups": "sex(1..2)", "strata": "sex(1..2)"}, "each column once; got sex"),
        ({"strata": "a(0..9), b(0..9)"}, "at most 64 cells; got 100"),
        ({"step": 0.001}, "survival.step"),
        ({"until": 2000.0}, "survival.until"),
    ],
    ids=str,
)
def test_a_wrong_declaration_is_refused(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        survival_with(**keys)


def test_values_that_are_no_event_or_no_group_are_refused() -> None:
    with pytest.raises(DataError, match="1 for the event and 0 without"):
        counts_in(survival_with(), LUNG.assign(status=0.5))
    with pytest.raises(DataError, match="whole numbers, as it makes groups"):
        counts_in(survival_with(groups="sex(1..2)"), LUNG.assign(sex=1.5))


def test_the_level_that_is_named_last_is_the_event() -> None:
    table = NamedColumns({"time": np.array([1.0, 2.0])}, {"state": (np.array([0, 1]), ("dead", "living"))})
    one, other = (survival_with(event=f"state({a}|{b})") for a, b in (("dead", "living"), ("living", "dead")))
    assert one.cases(table).fates.tolist() == [1, 0]
    assert other.cases(table).fates.tolist() == [0, 1]
    assert isinstance(one.cases(table), Cases)
