"""The sums of a regression's three questions: what they are, in which order, and how rows make them.

===========  =========================================================  ==========================
question     numbers                                                    how many, for p columns
===========  =========================================================  ==========================
opening      n; trials; y; log-likelihood without parameters            4
step         H (upper triangle, row by row); U; deviance; rows whose    p (p + 1) / 2 + p + 2
             eta is too far out
errors       sum u^2 x x' / f (upper triangle), or the site's U U';     p (p + 1) / 2 + 1
             Pearson's chi square
===========  =========================================================  ==========================

All are of scaled columns (`task.classical.design`) and exact (`task.numerics.row_sums`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from task.catalogue.regressions import ERRORS, OPENING, STEP
from task.classical.families import Rows, local_terms, opening_terms
from task.classical.solve import Matrix, symmetric
from task.errors import FieldError
from task.numerics.row_sums import UNIT_BITS, blocks, row_sums, value

_MOST_PRODUCT = 1 << 110  # of one site, in units of 2^-51: 2^16 sites fit on the wire


def size_of(question: str, p: int) -> int:
    """Return how many numbers a question has."""
    triangle = p * (p + 1) // 2
    return {OPENING: 4, STEP: triangle + p + 2, ERRORS: triangle + 1}[question]


def sums_of(
    question: str, family: str, rows: Rows, beta: Sequence[float] = (), *, by_site: bool = False
) -> list[int]:
    """Return a client's sums in units of 2^-51; `by_site`, its U U' for errors, rounded once.

    Raises:
        FieldError: A term does not fit.
    """
    if by_site and question == ERRORS:
        return _squared_score(family, rows, beta)
    totals = [0] * size_of(question, len(rows.columns))
    for block in _blocks(rows):
        if question == OPENING:
            terms = opening_terms(family, block)
        else:
            at = local_terms(family, block, block.linear(beta))
            if question == STEP:
                terms = [*block.outer(at.w), *block.scaled(at.u), at.deviance, at.far.astype(np.float64)]
            else:
                terms = [*block.outer(at.u * at.u / block.f), at.u * at.u / at.w]
        found = row_sums(np.stack(terms, axis=1), question)
        totals = [a + b for a, b in zip(totals, found, strict=True)]
    return totals


def _squared_score(family: str, rows: Rows, beta: Sequence[float]) -> list[int]:
    """Return U U' of the exact score U of all rows, each product rounded once, and Pearson's chi square.

    Raises:
        FieldError: A product does not fit.
    """
    p = len(rows.columns)
    totals = [0] * (p + 1)
    for block in _blocks(rows):
        at = local_terms(family, block, block.linear(beta))
        found = row_sums(np.stack([*block.scaled(at.u), at.u * at.u / at.w], axis=1), ERRORS)
        totals = [a + b for a, b in zip(totals, found, strict=True)]
    *score, pearson = totals
    half = 1 << (UNIT_BITS - 1)
    products = [(score[i] * score[j] + half) >> UNIT_BITS for i in range(p) for j in range(i, p)]
    if max(map(abs, products)) >= _MOST_PRODUCT:
        raise FieldError(ERRORS, "products of a site's scores below 2^59", "larger ones: scale the target")
    return [*products, pearson]


def _blocks(rows: Rows) -> Iterator[Rows]:
    for part in blocks(len(rows.k), size_of(STEP, len(rows.columns))):
        yield rows.part(part)


@dataclass(frozen=True)
class OpeningSums:
    """The sums of the first question."""

    n: Fraction
    trials: Fraction
    y: Fraction  # scaled
    likelihood: Fraction


@dataclass(frozen=True)
class StepSums:
    """The sums that follow from coefficients."""

    information: Matrix
    score: list[Fraction]
    deviance: Fraction
    far: int


@dataclass(frozen=True)
class ErrorSums:
    """The sums for robust errors and the dispersion."""

    middle: Matrix
    pearson: Fraction


def opening_in(totals: Sequence[int]) -> OpeningSums:
    """Read the sums of the first question."""
    return OpeningSums(*map(value, totals))


def step_in(totals: Sequence[int], p: int) -> StepSums:
    """Read the sums of a step."""
    found, triangle = [value(t) for t in totals], p * (p + 1) // 2
    score = found[triangle : triangle + p]
    return StepSums(symmetric(found[:triangle], p), score, found[-2], int(found[-1]))


def errors_in(totals: Sequence[int], p: int) -> ErrorSums:
    """Read the sums for the errors."""
    found = [value(t) for t in totals]
    return ErrorSums(symmetric(found[:-1], p), found[-1])
