"""What trees are grown to lower: losses, and their derivatives as whole numbers of a declared grid.

=============  =================  =====================  ====================================
objective      g                  h                      margins before the first tree
=============  =================  =====================  ====================================
squared-error  F - y              1                      mean of y
logistic       p - y              max(p (1 - p), 1e-16)  ln(p / (1 - p)) of the mean p of y
softmax        p_k - [y = k]      2 p_k (1 - p_k)        ln of class shares, less their mean
=============  =================  =====================  ====================================

These are XGBoost's. A row's g and h are rounded to whole numbers of 2^-s, half to even, before any sum: s =
30, less ceil(log2 R) of a squared error whose g reaches R, twice the width of the declared range of y. So
sums over rows are integers, the same for any division of the rows. exp is the own one of
`task.numerics.elementary`, whose bits are the same on every processor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from task.errors import DataError, local
from task.numerics.elementary import exp, log
from task.numerics.row_sums import value

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
SQUARED, LOGISTIC, SOFTMAX = "squared-error", "logistic", "softmax"
OBJECTIVES = (SQUARED, LOGISTIC, SOFTMAX)
UNIT_BITS = 30
_LEAST_HESSIAN = 1e-16


@dataclass(frozen=True)
class Objective:
    """A loss of K margins of a row; `width` is that of the declared range of a squared error's target."""

    name: str
    classes: int = 1  # K
    width: float = 0.0

    @property
    def shift(self) -> int:
        """The least n for which 2^n is no less than any |g|."""
        return max(math.ceil(math.log2(2.0 * self.width)), 0) if self.name == SQUARED else 0

    @property
    def unit_bits(self) -> int:
        """Derivatives are whole numbers of 2^-this."""
        return UNIT_BITS - self.shift

    @property
    def unit(self) -> float:
        """What one of the integers stands for."""
        return 2.0**-self.unit_bits

    def derivatives(self, margins: Floats, y: Floats) -> tuple[Ints, Ints]:
        """Return g and h of rows and margins, int64 [rows, K] in units of 2^-s.

        Raises:
            DataError: A row is further from its margin than the declared range of the target allows.
        """
        if self.name == SQUARED:
            away = margins - y[:, None]
            if (np.abs(away) > 2.0 * self.width).any():
                raise DataError(
                    "the trees' output is further from the target than twice the width of its declared "
                    "range. Lower gbdt.learning-rate, or declare a wider range in gbdt.target"
                )
            return self._whole(away), np.full(away.shape, 1 << self.unit_bits, np.int64)
        if self.name == LOGISTIC:
            p = 1.0 / (1.0 + exp(-margins))
            return self._whole(p - y[:, None]), self._whole(np.maximum(p * (1.0 - p), _LEAST_HESSIAN))
        p = self.probabilities(margins)
        hot = y[:, None] == np.arange(self.classes)
        hessian = np.maximum(2.0 * (p * (1.0 - p)), _LEAST_HESSIAN)
        return self._whole(p - hot), self._whole(hessian)

    def _whole(self, terms: Floats) -> Ints:
        return np.rint(np.ldexp(terms, self.unit_bits)).astype(np.int64)

    def probabilities(self, margins: Floats) -> Floats:
        """Return what margins [rows, K] say: classes' probabilities [rows, K], one's [rows, 1], or means."""
        if self.name == SQUARED:
            return margins
        if self.name == LOGISTIC:
            one: Floats = 1.0 / (1.0 + exp(-margins))
            return one
        raised = exp(margins - margins.max(axis=1, keepdims=True))
        total = raised[:, :1].copy()
        for k in range(1, self.classes):
            total += raised[:, k : k + 1]
        shares: Floats = raised / total
        return shares

    def losses(self, margins: Floats, y: Floats) -> tuple[Floats, Floats]:
        """Return each row's loss, and whether its class is wrong (0 of a squared error), float64 [rows].

        Squared errors are in units of 4^`shift`, so that they are at most 1.
        """
        if self.name == SQUARED:
            away = np.ldexp(margins[:, 0] - y, -self.shift)
            return away * away, np.zeros(len(y))
        if self.name == LOGISTIC:
            f = margins[:, 0]
            # ln(1 + e^f) - y f, without overflow
            loss = np.maximum(f, 0.0) + log(1.0 + exp(-np.abs(f))) - y * f
            return loss, ((f > 0.0) != (y > 0.5)).astype(np.float64)
        p = self.probabilities(margins)
        own = p[np.arange(len(y)), y.astype(np.int64)]
        wrong = margins.argmax(axis=1) != y
        return -log(np.maximum(own, _LEAST_HESSIAN)), wrong.astype(np.float64)

    def mean_loss(self, total: Fraction, rows: int) -> float:
        """Return the log loss, or the root of the mean squared error, of the sum of `losses`."""
        mean = float(total / rows)
        return math.sqrt(mean) * 2.0**self.shift if self.name == SQUARED else mean

    def base_terms(self, y: Floats, scale: float) -> Floats:
        """Return what rows add to the sums that the base margins follow from, float64 [rows, K]."""
        if self.name == SOFTMAX:
            return np.asarray(y[:, None] == np.arange(self.classes), np.float64)
        return np.asarray((y * scale)[:, None], np.float64)

    def base(self, totals: Sequence[int], rows: int, scale: float, names: Sequence[str] = ()) -> Floats:
        """Return the margins before the first tree, float64 [K], each rounded to float32.

        Raises:
            DataError: There are no rows, or none of a class; `names` are those of the classes.
        """
        if not rows:
            raise DataError("expected rows to grow trees from; got none")
        shares = [value(t) / Fraction(scale) / rows for t in totals]
        if self.name == SQUARED:
            return _as_float32(np.array([float(shares[0])]))
        if self.name == LOGISTIC:
            (mean,) = shares
            if not 0 < mean < 1:
                raise DataError("the target is the same in all rows: expected rows of both classes")
            p = _as_float32(np.array([float(mean)]))
            return log(p / (1.0 - p))
        if lacking := [k for k, share in enumerate(shares) if not share]:
            which = ", ".join(names[k] if names else str(k) for k in lacking)
            raise DataError(f"the target: expected rows of each declared level; none has {local(which)}")
        logs = log(np.array([float(share) for share in shares]))
        mean_log = logs[0]
        for one in logs[1:]:
            mean_log = mean_log + one
        return _as_float32(logs - mean_log / self.classes)


def _as_float32(x: Floats) -> Floats:
    return x.astype(np.float32).astype(np.float64)
