"""The table of a regression, from the arrays of its result, as csv, LaTeX and an object of JSON.

se = sqrt(phi diag H^-1); phi is 1 of the binomial and the Poisson family, RSS / (n - p) of the Gaussian, and
Pearson's chi square / (n - p) of the Gamma family. p values are of the normal distribution; least squares has
Student's t with n - p degrees of freedom. HC0 is the robust error by the expected information (statsmodels
takes the observed one of the Gamma family with its log link), HC1 times sqrt(n / (n - p)). AIC = -2 l + 2p,
as statsmodels counts: without the dispersion. Under a penalty there are coefficients alone.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from task.classical.fit import Model
from task.numerics.arrays import NamedArrays

FIGURES = (
    "rows", "trials", "deviance", "null-deviance", "pearson", "likelihood", "iterations", "decrement",
)  # fmt: skip
HEAD = ("name", "coefficient", "se", "z", "p", "hc0", "hc1")


@dataclass(frozen=True)
class Coefficient:
    """One coefficient; None = a penalised one has no error."""

    name: str
    coefficient: float
    se: float | None = None
    z: float | None = None  # coefficient / se; t of least squares
    p: float | None = None
    hc0: float | None = None
    hc1: float | None = None

    def cells(self) -> tuple[float | None, ...]:
        """Return the numbers in the order of `HEAD`."""
        return self.coefficient, self.se, self.z, self.p, self.hc0, self.hc1


@dataclass(frozen=True)
class Fitted:
    """A table and the figures below it."""

    lines: tuple[Coefficient, ...]
    figures: Mapping[str, float]
    digest: str  # SHA-256 of all integers

    def as_dict(self) -> dict[str, Any]:
        """Return an object of JSON."""
        lines = [dict(zip(HEAD, (line.name, *line.cells()), strict=True)) for line in self.lines]
        return {"coefficients": lines, **self.figures, "sums_sha256": self.digest}

    def csv(self) -> str:
        """Return the lines with all digits; an empty cell is a number that there is not."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(HEAD)
        for line in self.lines:
            writer.writerow([line.name, *("" if c is None else repr(c) for c in line.cells())])
        return text.getvalue()

    def latex(self) -> str:
        """Return a LaTeX tabular with six significant digits."""
        heads = " & ".join(("", "Coefficient", "SE", "$z$", "$p$", "HC0", "HC1"))
        rows = [
            " & ".join([escaped(line.name), *("" if c is None else f"{c:.6g}" for c in line.cells())])
            for line in self.lines
        ]
        below = ", ".join(f"{escaped(name)} {value:.8g}" for name, value in self.figures.items())
        body = " \\\\\n".join([heads + " \\\\\n\\hline", *rows]).replace("\\hline \\\\", "\\hline")
        return f"% {below}\n\\begin{{tabular}}{{lrrrrrr}}\n{body} \\\\\n\\end{{tabular}}\n"


def ended(arrays: NamedArrays) -> bool:
    """Return whether the arrays are of an iteration that has ended."""
    return bool(arrays["figures"].any())


def fitted(model: Model, arrays: NamedArrays, *, squares: bool) -> Fitted:
    """Return the table; `squares` says that it is of least squares, with Student's t."""
    found = dict(zip(FIGURES, arrays["figures"].tolist(), strict=True))
    n, p = found["rows"], model.p
    free = n - p
    phi = {"gaussian": found["deviance"] / free, "gamma": found["pearson"] / free}.get(model.family, 1.0)
    likelihood = _likelihood(model.family, found, phi)
    figures = {
        "rows": int(n),
        "df_residual": int(free),
        "deviance": found["deviance"],
        "null_deviance": found["null-deviance"],
        "pearson_chi2": found["pearson"],
        "dispersion": phi,
        "log_likelihood": likelihood,
        "aic": 2.0 * p - 2.0 * likelihood,
        "iterations": int(found["iterations"]),
    }
    if model.family == "gaussian":
        figures["r_squared"] = 1.0 - found["deviance"] / found["null-deviance"]
    beta = arrays["coefficients"].tolist()
    digest = arrays["sums-sha256"].tobytes().hex()
    if model.penalty:
        for gone in ("dispersion", "log_likelihood", "aic", "df_residual"):
            del figures[gone]
        lines = [Coefficient(name, b) for name, b in zip(model.design.names, beta, strict=True)]
        return Fitted(tuple(lines), {**figures, "penalty": model.penalty}, digest)
    variances = np.diag(arrays["inverse-information"]).tolist()
    robust = np.diag(arrays["robust-covariance"]).tolist()
    lines = []
    for name, b, variance, hc in zip(model.design.names, beta, variances, robust, strict=True):
        se, hc0 = math.sqrt(phi * variance), math.sqrt(hc)
        z = b / se if se else math.inf
        lines.append(
            Coefficient(name, b, se, z, _p_value(z, free if squares else 0.0), hc0, hc0 * math.sqrt(n / free))
        )
    return Fitted(tuple(lines), figures, digest)


def _likelihood(family: str, found: Mapping[str, float], phi: float) -> float:
    n, deviance = found["rows"], found["deviance"]
    if family == "gaussian":  # the dispersion's maximum is RSS / n
        return -n / 2 * (math.log(2 * math.pi * deviance / n) + 1) if deviance else math.inf
    if family == "gamma":  # sum of ln y is the part without parameters
        shape = 1.0 / phi
        exponent = shape * (n * math.log(shape) - deviance / 2 - n)
        return exponent - n * math.lgamma(shape) - found["likelihood"]
    return found["likelihood"] - deviance / 2


def _p_value(z: float, free: float) -> float:
    """Return the two-sided p value: of Student's t where there are degrees of freedom, else the normal."""
    if not free:
        return math.erfc(abs(z) / math.sqrt(2))
    from scipy.special import stdtr  # seconds to import

    return float(2.0 * stdtr(free, -abs(z)))


def escaped(name: str) -> str:
    """Return a name as LaTeX writes it."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {c: f"\\{c}" for c in "&%$#_{}"}
    return "".join(special.get(c, c) for c in name)
