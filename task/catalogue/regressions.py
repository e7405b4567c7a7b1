"""The catalogue's part of regressions: what goes up are exact sums over rows, and no model is trained.

What the numbers of each question are stands in `task.classical.sums`, and what follows from them in
`strategies.rules.regression`.
"""

from typing import Any

from task.catalogue.entry import Algorithm
from task.catalogue.exact_sums import analysis, numbers, question, sums
from task.catalogue.papers import Paper, paper
from task.catalogue.record import Record

OPENING, STEP, ERRORS = "opening-sums", "step-sums", "error-sums"  # names of the records
_NELDER = paper("10.2307/2344614", "Section 2, with the score as in iteratively reweighted least squares")
_HOERL = paper("10.1080/00401706.1970.10488634", "Section 2, with an intercept that is not penalised")
_COEFFICIENTS = numbers("coefficients", "beta, one number for each column")
_OPENING = sums(OPENING, "n, trials, sum of y, and the log-likelihood's part without parameters")
_STEP = sums(STEP, "information X'WX, score X'(y - mu), deviance, and how many |eta| are too large")
_ERRORS = sums(ERRORS, "sum of u^2 x x', u the row's score, or of the site's U U'; Pearson's chi square")

_EXAMPLE = 'regression.columns="age(0..120), sex(Female|Male)" regression.target="ill(0..1)"'


def _regression(name: str, title: str, source: Paper, **fields: Any) -> Algorithm:
    """Return an entry of a regression with its three questions."""

    def asked(about: str, down: tuple[Record, ...], up: tuple[Record, ...]) -> Algorithm:
        return question(name, f"{title}, {about}", source, "regression", down, up)

    phases = {
        "opening": asked("counts", (), _OPENING),
        "errors": asked("robust errors", (_COEFFICIENTS,), _ERRORS),
    }
    fields["example"] = _EXAMPLE
    return analysis(name, title, source, "regression", (_COEFFICIENTS,), _STEP, phases, **fields)


ENTRIES = (
    _regression(
        "glm", "Generalised linear models", _NELDER,
        about="Coefficients, errors and deviance of the pooled rows by exact sums: gaussian, binomial, "
        "Poisson, Gamma.",
        differs="The score goes up in place of the working response, which ends nearer to the maximum.",
        reads=(
            "regression.", "regression.family", "regression.trials", "regression.link", "regression.offset",
            "regression.exposure",
        ),
    ),
    _regression(
        "least-squares", "Least squares and ridge regression", _HOERL,
        about="Coefficients and errors of the pooled rows by the normal equations and exact sums; with a "
        "penalty, ridge.",
        differs="One more question, with residuals, takes away what rounding of the first left.",
        reads=("regression.", "regression.penalty"),
    ),
)  # fmt: skip
