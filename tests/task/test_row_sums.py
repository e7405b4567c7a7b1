"""Sums of rows' terms do not depend on how the rows are divided, nor the functions before them on NumPy's."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest

from task.errors import FieldError
from task.numerics.elementary import LN2_HIGH, exp, log, log_factorial
from task.numerics.moments import from_digits
from task.numerics.reduce import CARRY, Sum
from task.numerics.row_sums import from_wire, row_sums, to_wire, value

RNG = np.random.default_rng(7)
# Tiny, halves of a unit, ordinary and large terms, of both signs.
TERMS = RNG.normal(size=(5000, 3)) * 10.0 ** RNG.integers(-16, 9, (5000, 3))
TERMS[:3] = [[2.0**-52, -(2.0**-52), 3 * 2.0**-52], [1, -1, 0.5], [2.0**31 - 1, -5, 2.0**-60]]


@pytest.mark.parametrize("pieces", [1, 2, 3, 7, 10, 100, 1001])
def test_any_division_of_the_rows_gives_the_same_integers(pieces: int) -> None:
    parts = np.split(TERMS, sorted(RNG.integers(0, len(TERMS) + 1, pieces - 1)))
    sent = sum((to_wire(row_sums(part, "terms")) for part in parts), start=np.zeros((3, 4), np.int64))
    assert from_wire(sent) == row_sums(TERMS, "terms")


def test_interleaved_rows_give_the_same_integers() -> None:
    found = [row_sums(TERMS[i::10], "terms") for i in range(10)]
    assert [sum(column) for column in zip(*found, strict=True)] == row_sums(TERMS, "terms")


def test_the_integers_are_those_of_a_sum_to_which_each_row_is_added() -> None:
    rows = TERMS[:300]
    total = Sum({"t": rows[0]})
    for i, row in enumerate(rows):
        total.add({"t": row}, 1, str(i))
    parts = total.partial()
    high, low = parts["high"]["t"].tolist(), parts["low"]["t"].tolist()
    assert [(h << CARRY) + f for h, f in zip(high, low, strict=True)] == row_sums(rows, "terms")


def test_one_term_is_rounded_to_the_nearest_unit_and_ties_to_even() -> None:
    half = 2.0**-52
    assert row_sums(np.array([[half, 3 * half, -half, 1.0]]), "t") == [0, 2, 0, 2**51]
    assert value(3 * 2**50) == 1.5


@pytest.mark.parametrize("bad", [math.nan, math.inf, 2.0**31])
def test_a_term_out_of_range_is_refused(bad: float) -> None:
    with pytest.raises(FieldError, match="narrower ranges"):
        row_sums(np.array([[bad]]), "information")


def test_what_a_hostile_client_sends_is_an_integer_still() -> None:
    assert from_digits(np.array([-(2**63), 2**63 - 1, 0, 0])) == -(2**63) + (2**63 - 1) * 2**32


def test_exp_and_log_are_within_two_units_in_the_last_place() -> None:
    x = np.concatenate([RNG.uniform(-30, 30, 300), [0.0, -0.0, 1e-20, math.log(2) / 2]])
    with localcontext() as c:
        c.prec = 40
        for one, e, back in zip(x.tolist(), exp(x).tolist(), log(np.abs(x) + 1e-3).tolist(), strict=True):
            true = Decimal(one).exp()
            assert abs(Decimal(e) / true - 1) < Decimal(2) * Decimal(2) ** -52
            ln = Decimal(abs(one) + 1e-3).ln()
            assert abs(Decimal(back) - ln) <= Decimal(2) * Decimal(2) ** -52 * max(abs(ln), 1)
        assert abs(Decimal(2).ln() - Decimal(LN2_HIGH)) < Decimal(2) ** -32


@pytest.mark.parametrize("cut", [1, 2, 3, 17, 1000, 2499, 4999])
def test_exp_and_log_do_not_depend_on_how_an_array_is_cut(cut: int) -> None:
    x = TERMS[:, 0] / 1e8
    for f, given_ in ((exp, x), (log, np.abs(x))):
        whole = f(given_)
        assert np.concatenate([f(given_[:cut]), f(given_[cut:])]).tobytes() == whole.tobytes()


# Hex digits from the definition, by Python's own correctly ordered operations: any machine has these bits.
def test_exp_and_log_have_the_bits_of_scalar_arithmetic() -> None:
    from task.numerics import elementary as own

    for x in (-12.7, -0.3, 0.0, 0.1, 1.0, 5.5, 29.9):
        k = float(round(x * own.INVERSE_LN2))
        r = (x - k * own.LN2_HIGH) - k * own.LN2_LOW
        found = 1.0 / math.factorial(13)
        for n in range(12, -1, -1):
            found = found * r + 1.0 / math.factorial(n)
        assert exp(np.array([x]))[0] == math.ldexp(found, int(k))


def test_extremes() -> None:
    assert exp(np.array([-1e9, 1e9])).tolist() == exp(np.array([-700.0, 700.0])).tolist()
    found = log(np.array([0.0, -1.0, 1.0, 5e-324]))
    assert np.isnan(found[:2]).all()
    assert found[2] == 0.0
    assert found[3] == pytest.approx(math.log(5e-324), rel=1e-15)
    found = log_factorial(np.array([0, 1, 5, 20]))
    assert found == pytest.approx([0, 0, math.log(120), math.lgamma(21)], 1e-14)
