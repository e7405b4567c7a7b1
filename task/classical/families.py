"""What one row sends into the sums of a generalised linear model.

McCullagh and Nelder 1989, with the score in place of the working response: U = sum x a d (y - mu) / V and the
information H = sum w x x', w = a d^2 / V, so that the step H^-1 U ends where U = 0, however H was rounded.

==========  ===========  ============  ==============  =====================================================
family      V(mu)        link          w               unit deviance
==========  ===========  ============  ==============  =====================================================
gaussian    1            identity      1               (y - mu)^2
binomial    mu (1 - mu)  logit         a mu (1 - mu)   2 a [y ln(y/mu) + (1 - y) ln((1 - y) / (1 - mu))]
poisson     mu           log           mu              2 [y ln(y/mu) - (y - mu)]
gamma       mu^2         log           1               2 [-ln(y/mu) + (y - mu) / mu]
gamma       mu^2         inverse       mu^2            the same
==========  ===========  ============  ==============  =====================================================

y of the binomial is the share k / a of a trials; 0 ln 0 = 0. A row with frequency f stands for f rows; one
with weight v has the variance phi V / v: w, u and the deviance are f v times those of the table. eta of all
links but the inverse has the row's offset and the logarithm of its exposure in it.

Everything is computed element by element in one order, without a library's matrix product, and with
`task.numerics.elementary`: so a row's terms have the same bits in any table and on any processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from task.errors import DataError, local
from task.numerics.elementary import exp, log, log_factorial

Floats = npt.NDArray[np.float64]
FAMILIES = ("gaussian", "binomial", "poisson", "gamma")
FARTHEST = {"gaussian": np.inf, "binomial": 30.0, "poisson": 20.0, "gamma": 20.0}  # of |eta|
_LEAST_SHARE = 2.0**-52
_LEAST_INVERSE = 2.0**-10  # of 1 / mu, as a share of 1 / the largest value in the declared range
MOST_COUNT = 2.0**20  # of trials or a Poisson count: ln n! is summed up


@dataclass(frozen=True)
class Rows:
    """The rows of a client, as a design has them."""

    columns: Sequence[Floats]  # of X, unscaled
    scales: Sequence[float]
    k: Floats  # y; of the binomial the successes
    a: Floats  # trials; of other families ones
    unit: float  # scale of y, of the Gaussian family and of an inverse link; else 1
    offset: Floats  # of eta, with the logarithm of the exposure
    f: Floats  # frequencies
    v: Floats  # weights
    inverse: bool = False  # whether the link is the inverse

    def part(self, rows: slice) -> Rows:
        """Return some of the rows."""
        arrays = (self.k, self.a, self.offset, self.f, self.v)
        k, a, offset, f, v = (x[rows] for x in arrays)
        columns = [c[rows] for c in self.columns]
        return Rows(columns, self.scales, k, a, self.unit, offset, f, v, self.inverse)

    def checked(self, family: str, target: str) -> Rows:
        """Return the rows.

        Raises:
            DataError: The target is none of this family.
        """
        whole = bool((self.k == np.rint(self.k)).all() and (self.a == np.rint(self.a)).all())
        counts = whole and bool((self.k >= 0).all() and max(self.k.max(), self.a.max()) <= MOST_COUNT)
        good, expected = {
            "binomial": (
                counts and bool((self.k <= self.a).all() and (self.a >= 1).all()),
                f"0 or 1, or successes of at least one and at most {MOST_COUNT:g} trials",
            ),
            "poisson": (counts, f"whole numbers from 0 to {MOST_COUNT:g}"),
            "gamma": (bool((self.k > 0).all()), "numbers above 0"),
        }.get(family, (True, ""))
        if not good:
            raise DataError(
                f"column {local(target)}: expected {expected}, as family {family!r} takes; got others. "
                "Correct the data, or choose another regression.family"
            )
        if not ((self.f >= 1) & (self.f == np.rint(self.f)) & (self.f <= MOST_COUNT)).all():
            raise DataError(
                f'run-config key "regression.frequency": expected whole numbers from 1 to {MOST_COUNT:g} in '
                "its column; got others"
            )
        if not (self.v > 0).all():
            raise DataError(
                'run-config key "regression.weights": expected numbers above 0 in its column; got others'
            )
        if not np.isfinite(self.offset).all():
            raise DataError(
                'run-config key "regression.exposure": expected numbers above 0 in its column; got others'
            )
        return self

    def linear(self, beta: Sequence[float]) -> Floats:
        """Return eta, added up column by column."""
        eta: Floats = self.offset
        for x, b in zip(self.columns, beta, strict=True):
            eta = eta + x * b
        return eta

    def outer(self, weight: Floats) -> list[Floats]:
        """Return weight * x_i * x_j of scaled columns, i <= j, row by row of the triangle."""
        x = [c * s for c, s in zip(self.columns, self.scales, strict=True)]
        return [x[i] * x[j] * weight for i in range(len(x)) for j in range(i, len(x))]

    def scaled(self, weight: Floats) -> list[Floats]:
        """Return weight * x_j of scaled columns."""
        return [c * s * weight for c, s in zip(self.columns, self.scales, strict=True)]


@dataclass(frozen=True)
class Local:
    """What follows from eta: weights, scores and deviances of the rows."""

    w: Floats
    u: Floats
    deviance: Floats
    far: npt.NDArray[np.bool_]  # where eta is farther out than the family can use


def local_terms(family: str, rows: Rows, eta: Floats) -> Local:
    """Return w, u = a d (y - mu) / V and the deviance of each row, times its frequency and weight."""
    found, times = _unweighted(family, rows, eta), rows.f * rows.v
    return Local(found.w * times, found.u * times, found.deviance * times, found.far)


def _unweighted(family: str, rows: Rows, eta: Floats) -> Local:
    k, a, most = rows.k, rows.a, FARTHEST[family]
    far = np.abs(eta) > most
    if family == "gaussian":
        u = (k - eta) * rows.unit
        return Local(a, u, u * u, far)
    if rows.inverse:
        far = eta < rows.unit * _LEAST_INVERSE  # mu far beyond the declared range, or below 0
        eta = np.where(far, rows.unit, eta)
        mu = rows.unit / eta
        return Local(mu * mu, mu - k * rows.unit, 2.0 * ((k * eta - 1.0) - log(k * eta)), far)
    eta = np.minimum(np.maximum(eta, -most), most)
    if family == "binomial":
        small = exp(-np.abs(eta))
        mu = np.where(eta >= 0, 1.0, small) / (1.0 + small)
        mu = np.minimum(np.maximum(mu, _LEAST_SHARE), 1.0 - _LEAST_SHARE)
        other = 1.0 - mu
        deviance = _times_log(k, a * mu) + _times_log(a - k, a * other)
        return Local(a * mu * other, k - a * mu, 2.0 * deviance, far)
    mu = exp(eta)
    ratio = log(np.where(k > 0, k, 1.0)) - eta  # ln(y / mu)
    if family == "poisson":
        return Local(mu, k - mu, 2.0 * (np.where(k > 0, k * ratio, 0.0) - (k - mu)), far)
    u = (k - mu) / mu
    return Local(a, u, 2.0 * (u - ratio), far)


def opening_terms(family: str, rows: Rows) -> list[Floats]:
    """Return 1, a, y and the part of the log-likelihood that is without parameters, of each row.

    That of the binomial and the Poisson family is the saturated model's, of which half the deviance is taken;
    that of the Gamma family is ln y, of the Gaussian one half of the weight's logarithm. With an offset o,
    y - o of the Gaussian family and y / e^o of the Gamma stand for y, and e^o of the Poisson for a: so
    sum y / sum a is the mean, or rate, of the model with an intercept alone.
    """
    k, a, times = rows.k, rows.a, rows.f * rows.v
    y, part = k * rows.unit, 0.5 * log(rows.v)
    if family == "binomial":
        n, c = a.astype(np.int64), k.astype(np.int64)
        part = log_factorial(n) - log_factorial(c) - log_factorial(n - c)
        part = (part + _times_log(k, a) + _times_log(a - k, a)) * rows.v
    elif family == "poisson":
        part = (_times_log(k, np.ones(len(k))) - k - log_factorial(k.astype(np.int64))) * rows.v
        a = exp(rows.offset)
    elif family == "gamma":
        part, y = log(k), y * exp(-rows.offset)
    else:
        y = (k - rows.offset) * rows.unit
    return [rows.f, a * times, y * times, part * rows.f]


def _times_log(count: Floats, by: Floats) -> Floats:
    """Return count * ln(count / by), 0 where the count is 0."""
    return np.where(count > 0, count * log(np.where(count > 0, count, 1.0) / by), 0.0)
