"""Counts by groups of people: rates by hand, what a site withholds, and what a server must not believe."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from statsmodels.stats.proportion import proportion_confint

from task.fairness.counts import CountLayout, Ints, bins_of, fault_of, nested, outcomes_of, rows_of
from task.fairness.groups import comparisons_of
from task.fairness.rates import report_of, wilson
from task.numerics.limbs import LIMBS, exact, number_of
from task.tasks.metrics import TENTHS, Measures

# Heart disease by sex, a logistic model at 1/2: rows are well and ill, columns what is predicted.
WOMEN, MEN = [[133, 9], [25, 25]], [[161, 88], [78, 342]]
HEART = np.array([WOMEN, MEN], np.int64)
SEX = comparisons_of("sex(Female|Male)")


def tenths_of(confusion: Ints, rng: np.random.Generator) -> Ints:
    """Return sums of made-up probabilities that go with tables of two classes."""
    found = np.zeros((len(confusion), TENTHS, 2 + LIMBS), np.int64)
    for g, table in enumerate(confusion):
        for y, predicted in product((0, 1), (0, 1)):
            p = 0.5 * predicted + rng.uniform(0, 0.4999, table[y, predicted])
            for b in range(TENTHS):
                mine = p[(p * TENTHS).astype(int) == b]
                found[g, b, :2] += len(mine), y * len(mine)
                found[g, b, 2:] += exact(mine[:, None])[0] if len(mine) else 0
    return found


def rows(confusion: Ints, least: int = 0, *, pairs: bool = False) -> Ints:
    """Return the rows of one comparison of all groups."""
    tenths = tenths_of(confusion, np.random.default_rng(3))
    return rows_of(confusion, tenths, [(len(confusion), pairs)], least, np.zeros(len(confusion), bool))


def test_the_rates_are_those_by_hand() -> None:
    (report,) = report_of(SEX, rows(HEART), 2)
    women, men = report["groups"]
    assert (women["n"], men["n"]) == (192, 669)
    by_hand = {"accuracy": (158 / 192, 503 / 669)}
    assert (women["accuracy"]["value"], men["accuracy"]["value"]) == by_hand["accuracy"]
    for rate, w, m in (
        ("selection", 34 / 192, 430 / 669),
        ("tpr", 25 / 50, 342 / 420),
        ("fpr", 9 / 142, 88 / 249),
        ("ppv", 25 / 34, 342 / 430),
    ):
        assert (women["classes"][0][rate]["value"], men["classes"][0][rate]["value"]) == (w, m)
    assert report["worst_group"] == "Male"
    assert report["worst_accuracy"] == 503 / 669
    assert report["demographic_parity_difference"] == pytest.approx(0.4656670, abs=5e-8)
    assert report["demographic_parity_ratio"] == (34 / 192) / (430 / 669)
    assert report["equal_opportunity_difference"] == pytest.approx(0.3142857, abs=5e-8)
    assert report["equalised_odds_difference"] == pytest.approx(0.3142857, abs=5e-8)  # TPR; FPR: .2900332
    assert report["predictive_parity_difference"] == 342 / 430 - 25 / 34


def test_wilsons_interval_is_that_of_statsmodels() -> None:
    for hits, n in ((0, 7), (7, 7), (25, 50), (1, 2000)):
        assert wilson(hits, n) == pytest.approx(proportion_confint(hits, n, method="wilson"), abs=1e-12)


def test_what_has_no_denominator_is_undefined_and_in_no_gap() -> None:
    """No woman is ill or predicted to be: her TPR and PPV are 0/0."""
    (report,) = report_of(SEX, rows(np.array([[[7, 0], [0, 0]], MEN])), 2)
    rates = report["groups"][0]["classes"][0]
    assert [rates[name].get("why") for name in ("tpr", "ppv", "fpr")] == ["undefined", "undefined", None]
    assert report["equal_opportunity_difference"] is None
    assert report["demographic_parity_difference"] == 430 / 669


def test_of_several_classes_each_is_told_from_the_rest() -> None:
    table = np.array([[[5, 1, 0], [2, 6, 1], [0, 3, 9]]])
    four = outcomes_of(table)[0].tolist()
    # class 1: 6 hits; 1 + 3 others are taken for it; 2 + 1 of it are missed; the rest are 5 + 0 + 0 + 9
    assert four == [[5, 2, 1, 19], [6, 4, 3, 14], [9, 1, 3, 14]]


def test_nine_false_positives_are_closed_at_ten_with_the_men_who_would_give_them_back() -> None:
    table = CountLayout(2).parts(rows(HEART, 10))
    assert table.people.tolist() == table.choice.tolist() == [1, 1]
    assert table.outcome.tolist() == [0, 0]
    assert not table.outcomes.any()
    assert not table.tenths.any()
    assert CountLayout(2).parts(rows(HEART, 9)).outcome.tolist() == [1, 1]
    (report,) = report_of(SEX, rows(HEART, 10), 2)
    assert report["groups"][1]["classes"][0]["tpr"] == {"value": None, "of": 0, "why": "withheld"}
    assert report["equalised_odds_difference"] is None


def test_a_small_group_closes_the_next_smallest_and_all_pairs() -> None:
    """5 of 144: the 139 men go, too. Of three groups the largest may stay."""
    small = [[3, 0], [0, 2]]
    assert CountLayout(2).parts(rows(np.array([small, MEN]), 10)).people.tolist() == [0, 0]
    three = np.array([small, WOMEN, MEN])
    assert CountLayout(2).parts(rows(three, 6)).people.tolist() == [0, 0, 1]
    assert CountLayout(2).parts(rows(three, 6, pairs=True)).people.tolist() == [0, 0, 0]
    assert CountLayout(2).parts(rows(three, 5)).people.tolist() == [1, 1, 1]


@pytest.mark.parametrize("least", [2, 3, 5])
def test_nothing_small_is_shown_nor_follows_from_totals(least: int) -> None:
    """Random tables: open parts are large, closed ones are several and large together, or all are closed."""
    rng = np.random.default_rng(least)
    layout, seen = CountLayout(2), set[tuple[bool, bool]]()
    for _ in range(300):
        confusion = rng.integers(0, 4 * least, (rng.integers(2, 5), 2, 2))
        table = layout.parts(rows(confusion, least))
        n, four = confusion.sum((1, 2)), outcomes_of(confusion)[:, 0]
        sides = np.stack([four[:, :2].sum(1), four[:, 2:].sum(1)], 1)
        right = np.trace(confusion, axis1=1, axis2=2)
        for flags, parts in ((table.people, n[:, None]), (table.choice, sides), (table.outcome, four)):
            shown = flags == 1
            assert (parts[shown] >= least).all()
            hidden = ~shown & (n > 0)
            if hidden.any() and shown.any():
                assert hidden.sum() > 1
                assert (parts[hidden].sum(0) >= least).all()
        for g in np.flatnonzero((table.choice == 1) & (table.outcome == 0)):
            fits = [
                tp
                for tp in range(n[g] + 1)
                if min(sides[g, 0] - tp, right[g] - tp, n[g] - sides[g, 0] - right[g] + tp) >= 0
            ]
            assert max(fits) - min(fits) >= least
        seen |= {(bool(a), bool(b)) for a, b in zip(table.choice, table.outcome, strict=True)}
    assert seen == {(True, True), (True, False), (False, False)}


@pytest.mark.parametrize("least", [0, 4, 9])
def test_bins_are_merged_until_each_has_enough_on_both_sides(least: int) -> None:
    confusion = np.array([[[60, 12], [15, 40]], [[30, 11], [9, 22]]])
    made, tenths = rows(confusion, least), tenths_of(confusion, np.random.default_rng(3))
    table = CountLayout(2).parts(made)
    assert table.outcome.all()
    for g in range(2):
        bins = bins_of(table.begins[g], table.tenths[g], 1)
        if least:
            assert all(min(right, n - right) >= least for n, right, _ in bins)
            assert table.begins[g, 0] == table.begins[g, TENTHS // 2] == 1
            assert 2 <= len(bins) < TENTHS
        else:
            assert table.begins[g].all()
        for part in (slice(0, 5), slice(5, 10)):  # nobody moves from one side of 1/2 to the other
            assert table.tenths[g, part].sum(0).tolist() == tenths[g, part].sum(0).tolist()


def test_bins_of_two_sites_are_those_that_both_have() -> None:
    """One site begins bins at tenths 0, 2 and 5, the other at 0, 3 and 5."""
    begins, tenths = np.zeros((2, TENTHS), np.int64), np.zeros((2, TENTHS, 2 + LIMBS), np.int64)
    begins[0, [0, 2, 5]] = begins[1, [0, 3, 5]] = 1
    tenths[0, [0, 2, 5], 0], tenths[1, [0, 3, 5], 0] = [4, 5, 6], [1, 2, 3]
    found = bins_of(begins.sum(0), tenths.sum(0), 2)
    assert [n for n, _, _ in found] == [4 + 5 + 1 + 2, 6 + 3]


def test_calibration_counts_are_those_of_a_loop() -> None:
    rng = np.random.default_rng(1)
    logits, y = torch.from_numpy(rng.normal(size=(500, 2)) * 2), torch.from_numpy(rng.integers(0, 2, 500))
    measures = Measures("classification", ("ece",), 2)
    p = torch.softmax(logits, 1)[:, 1].tolist()
    bins = [[(v, int(t)) for v, t in zip(p, y, strict=True) if int(10 * v) == b] for b in range(10)]
    expected = sum(abs(sum(v for v, _ in one) - sum(t for _, t in one)) for one in bins) / 500
    assert measures.values(measures.sums(logits, y, 500))["ece"] == pytest.approx(expected, abs=1e-14)


def test_an_example_at_one_half_is_on_the_side_of_its_prediction() -> None:
    """Equal logits are 1/2 and predicted class 0: in the fifth tenth, not the sixth."""
    sums = Measures("classification", ("ece",), 2).sums(torch.zeros(3, 2), torch.ones(3).long(), 3)
    assert np.flatnonzero(sums["calibration"][:, 0]).tolist() == [4]
    assert number_of(sums["calibration"][4, 2:]) == 1.5


def test_the_calibration_of_several_classes_is_that_of_the_predicted_one() -> None:
    """p = (.5, .3, .2) is right once in two: |1.0 - 1| / 2 = 0; p = (.1, .1, .8) is wrong: .8 of 3 people."""
    p = torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], dtype=torch.float64)
    measures = Measures("classification", ("ece",), 3)
    found = measures.values(measures.sums(p.log(), torch.tensor([0, 1, 0]), 3))["ece"]
    assert found == pytest.approx(0.8 / 3, abs=1e-12)


def test_groups_that_differ_by_few_people_are_closed() -> None:
    ages = np.array([60] * 20 + [66] * 3 + [70] * 20)
    member = np.array([ages <= 65, ages > 65, ages <= 66, ages > 66, ages < 100, ages >= 100])
    comparison = [0, 0, 1, 1, 2, 2]
    assert nested(member, comparison, 4).tolist() == [False, False, True, True, False, False]
    assert not nested(member, comparison, 3).any()


def test_the_server_leaves_out_counts_that_cannot_be() -> None:
    layout, honest = CountLayout(2), rows(HEART)
    n = int(HEART.sum())
    assert fault_of(honest, layout, [2], n) == ""
    assert fault_of(rows(HEART, 10), layout, [2], n) == ""
    assert "more persons" in fault_of(honest, layout, [2], n - 1)

    def spoilt(place: int, value: int) -> str:
        row = honest.copy()
        row[0, place] = value
        return fault_of(row, layout, [2], n)

    assert spoilt(0, 2) == "a flag is neither 0 nor 1"
    assert spoilt(1, -5) == "a count is below 0"
    assert spoilt(1, 10**9).startswith("a count is above")
    assert spoilt(0, 0) == "something is shown of a group that is closed"
    assert spoilt(4, 33) == "the counts of a group are not of as many persons"
    row = honest.copy()
    row[0, 7:9] += 1, -1  # TP and FP: the same number is predicted
    row[0, 9:11] -= 1, -1  # and is ill
    assert fault_of(row, layout, [2], n) == ""  # a lie that only the true labels would show
    row[0, 7] += 1
    row[0, 10] -= 1
    assert fault_of(row, layout, [2], n) == "TP and FP are not those who are predicted"
    bins = layout.width - TENTHS * (3 + LIMBS)
    assert "bins of a group" in spoilt(bins + 1, 10)
    assert spoilt(bins + 4, 2**62) == "a limb is out of range"
    assert spoilt(layout.width - 1, 1) == "a probability is no number"
    assert spoilt(layout.width - 3, 2**20) == "a sum of probabilities is beyond its examples"


def test_a_layout_has_room_for_each_class() -> None:
    assert CountLayout(2).width == 11 + TENTHS * (3 + LIMBS)
    assert CountLayout(4).width == 29 + TENTHS * (3 + LIMBS)
    assert math.prod(CountLayout(4).parts(np.zeros((3, CountLayout(4).width), np.int64)).outcomes.shape) == 48
