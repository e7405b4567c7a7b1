"""The table of a regression, from the arrays of its result.

se = sqrt(phi diag H^-1); phi is 1 of the binomial and the Poisson family, RSS / (n - p) of the Gaussian, and
Pearson's chi square / (n - p) of the Gamma family. p values and 95 % intervals, from low to high, are of the
normal distribution; least squares has Student's t with n - p degrees of freedom. HC0 is the robust error by
the expected information (statsmodels takes the observed one of the Gamma family with its log link), HC1 times
sqrt(n / (n - p)). Errors clustered by site are CL0 = sqrt(diag H^-1 (sum U_k U_k') H^-1), and CL1 times
sqrt(K / (K - 1) * (n - 1) / (n - p)) of K sites. HC1 and CL1 have z, p and limits of their own, of the normal
distribution in every model, as statsmodels has them with cov_type="HC1" and "cluster". AIC = -2 l + 2p, as
statsmodels counts: without the dispersion. Under a penalty there are coefficients alone.

All slopes together are tested against the intercept alone: by the F statistic of least squares, ((D0 - D) /
(p - 1)) / phi; of other models by the likelihood ratio (D0 - D) / phi, and where phi is 1 also by Rao's score
U'H^-1 U at the intercept, both chi square with p - 1 degrees of freedom. A binomial model with an offset has
none of them, as its best intercept is not asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from task.classical.fit import Model
from task.classical.printed import Printed
from task.numerics.arrays import NamedArrays

FIGURES = (
    "rows", "trials", "deviance", "null-deviance", "pearson", "likelihood", "iterations", "decrement",
    "score", "sites",
)  # fmt: skip
INFERENCE = ("z", "p", "low", "high")
HEAD = ("name", "coefficient", "se", *INFERENCE)
LATEX = {"name": "", "coefficient": "Coefficient", "se": "SE", "z": "$z$", "p": "$p$"}
LATEX |= {"low": "2.5\\,\\%", "high": "97.5\\,\\%"}
LATEX |= {name: name.upper() for name in ("hc0", "hc1", "cl0", "cl1")}
LATEX |= {f"{kind}_{of}": f"{LATEX[of]} ({kind.upper()})" for kind in ("hc1", "cl1") for of in INFERENCE}
_NORMAL = 1.959963984540054  # its quantile at 0.975


def ended(arrays: NamedArrays) -> bool:
    """Return whether the arrays are of an iteration that has ended."""
    return bool(arrays["figures"].any())


def fitted(model: Model, arrays: NamedArrays) -> Printed:
    """Return the table."""
    found = _figures(arrays)
    n, p = found["rows"], model.p
    free = n - p
    phi = _dispersion(model, found)
    likelihood = _likelihood(model, found, phi)
    figures: dict[str, float | None] = {
        "rows": int(n),
        "df_residual": int(free),
        "deviance": found["deviance"],
        "null_deviance": found["null-deviance"] if model.null_known else None,
        "pearson_chi2": found["pearson"],
        "dispersion": phi,
        "log_likelihood": likelihood,
        "aic": None if likelihood is None else 2.0 * p - 2.0 * likelihood,
        "iterations": int(found["iterations"]),
    }
    if model.family == "gaussian" and not model.shifted:
        figures["r_squared"] = 1.0 - found["deviance"] / found["null-deviance"]
    beta = arrays["coefficients"].tolist()
    digest = arrays["sums-sha256"].tobytes().hex()
    kinds = ("cl0", "cl1") if model.by_site else ("hc0", "hc1")
    head = (*HEAD, *kinds, *(f"{kinds[1]}_{of}" for of in INFERENCE))
    if model.penalty:
        for gone in ("dispersion", "log_likelihood", "aic", "df_residual"):
            del figures[gone]
        gaps = [None] * len(head[2:])
        rows = [(name, b, *gaps) for name, b in zip(model.design.names, beta, strict=True)]
        figures["penalty"] = model.penalty
        return Printed("coefficients", head, tuple(rows), figures, digest)
    if model.by_site:
        figures["sites"] = int(found["sites"])
    variances = np.diag(covariance(model, arrays)).tolist()
    robust = np.diag(arrays["robust-covariance"]).tolist()
    times = quantile(model, arrays)
    larger, lines = _larger(found, free, by_site=model.by_site), []
    for name, b, variance, square in zip(model.design.names, beta, variances, robust, strict=True):
        se, first = math.sqrt(variance), math.sqrt(square)
        by_model = _inference(b, se, times, free if model.squares else 0.0)
        second = first * larger
        lines.append((name, b, se, *by_model, first, second, *_inference(b, second, _NORMAL, 0.0)))
    tests = _tests(model, found, phi, free) if p > 1 and model.null_known else {}
    return Printed("coefficients", head, tuple(lines), {**figures, **tests}, digest)


def _inference(b: float, se: float, times: float, free: float) -> tuple[float, float, float, float]:
    """Return z, its two-sided p value, and the limits `times` errors from a coefficient; see `_p_value`."""
    z = b / se if se else math.inf
    return z, _p_value(z, free), b - times * se, b + times * se


def _figures(arrays: NamedArrays) -> dict[str, float]:
    return dict(zip(FIGURES, arrays["figures"].tolist(), strict=True))


def _dispersion(model: Model, found: Mapping[str, float]) -> float:
    """Return phi."""
    free = found["rows"] - model.p
    return {"gaussian": found["deviance"] / free, "gamma": found["pearson"] / free}.get(model.family, 1.0)


def covariance(model: Model, arrays: NamedArrays) -> npt.NDArray[np.float64]:
    """Return the covariance matrix of the coefficients by the model."""
    return arrays["inverse-information"] * _dispersion(model, _figures(arrays))


def quantile(model: Model, arrays: NamedArrays) -> float:
    """Return the quantile at 0.975: of Student's t of least squares, else of the normal distribution."""
    if not model.squares:
        return _NORMAL
    from scipy.special import stdtrit  # seconds to import

    return float(stdtrit(_figures(arrays)["rows"] - model.p, 0.975))


def _larger(found: Mapping[str, float], free: float, *, by_site: bool) -> float:
    """Return what the second robust error is, as a multiple of the first."""
    n, sites = found["rows"], found["sites"]
    return math.sqrt(sites / (sites - 1) * (n - 1) / free) if by_site else math.sqrt(n / free)


def _tests(model: Model, found: Mapping[str, float], phi: float, free: float) -> dict[str, float]:
    """Return the tests of all slopes."""
    from scipy.special import chdtrc, fdtrc  # seconds to import

    slopes, ratio = model.p - 1, max(found["null-deviance"] - found["deviance"], 0.0) / phi
    if model.squares:
        f = ratio / slopes
        return {"f": f, "f_df": slopes, "f_p": float(fdtrc(slopes, free, f))}
    tests = {"lr_chi2": ratio, "lr_df": slopes, "lr_p": float(chdtrc(slopes, ratio))}
    if model.family in ("binomial", "poisson"):
        tests |= {"score_chi2": found["score"], "score_p": float(chdtrc(slopes, found["score"]))}
    return tests


def _likelihood(model: Model, found: Mapping[str, float], phi: float) -> float | None:
    """Return the log-likelihood; None of the Gamma family with weights, which would be one more question."""
    n, deviance, family = found["rows"], found["deviance"], model.family
    if family == "gaussian":  # the dispersion's maximum is RSS / n
        if not deviance:
            return math.inf
        return -n / 2 * (math.log(2 * math.pi * deviance / n) + 1) + found["likelihood"]
    if family == "gamma":  # sum of ln y is the part without parameters
        if "weights" in model.design.others:
            return None
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
