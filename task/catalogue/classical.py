"""The catalogue's part of classical models: what goes up are exact sums over rows, and no model is trained.

What the numbers of each question are stands in `task.classical.sums`, and what follows from them in
`strategies.rules.regression`.
"""

from typing import Any

from task.catalogue.entry import Algorithm
from task.catalogue.papers import Paper, paper
from task.catalogue.record import Layout, Record

OPENING, STEP, ERRORS = "opening-sums", "step-sums", "error-sums"  # names of the records
_INTEGERS = Layout("rows", "int64")
_NELDER = paper("10.2307/2344614", "Section 2, with the score as in iteratively reweighted least squares")
_HOERL = paper("10.1080/00401706.1970.10488634", "Section 2, with an intercept that is not penalised")
_COEFFICIENTS = Record("coefficients", Layout("rows", "float64"), "beta, one number for each column")


def _sums(name: str, meaning: str) -> tuple[Record, ...]:
    return (Record(name, _INTEGERS, meaning, "sum", of="all"),)


_OPENING = _sums(OPENING, "n, trials, sum of y, and the log-likelihood's part without parameters")
_STEP = _sums(STEP, "information X'WX, score X'(y - mu), deviance, and how many |eta| are too large")
_ERRORS = _sums(ERRORS, "sum of u^2 x x', u the row's score, and Pearson's chi square")


def _regression(name: str, title: str, source: Paper, **fields: Any) -> Algorithm:
    """Return an entry of a regression with its three questions."""

    def question(about: str, down: tuple[Record, ...], up: tuple[Record, ...]) -> Algorithm:
        return Algorithm(
            name, f"{title}, {about}", source, down=down, up=up, work="regression", weight="uniform",
            statistics=True,
        )  # fmt: skip

    phases = {
        "opening": question("counts", (), _OPENING),
        "errors": question("robust errors", (_COEFFICIENTS,), _ERRORS),
    }
    return Algorithm(
        name, title, source,
        work="regression",
        down=(_COEFFICIENTS,),
        up=_STEP,
        phases=phases,
        weight="uniform",
        batched=False,
        fixed_model=True,
        statistics=True,
        group="classical",
        no_neutral="it trains no model, so that it is never FedAvg",
        **fields,
    )  # fmt: skip


CLASSICAL = (
    _regression(
        "glm", "Generalised linear models", _NELDER,
        about="Coefficients, errors and deviance of the pooled rows by exact sums: gaussian, binomial, "
        "Poisson, Gamma.",
        differs="The score goes up in place of the working response, which ends nearer to the maximum.",
        reads=("regression.", "regression.family", "regression.trials"),
    ),
    _regression(
        "least-squares", "Least squares and ridge regression", _HOERL,
        about="Coefficients and errors of the pooled rows by the normal equations and exact sums; with a "
        "penalty, ridge.",
        differs="One more question, with residuals, takes away what rounding of the first left.",
        reads=("regression.", "regression.penalty"),
    ),
)  # fmt: skip
