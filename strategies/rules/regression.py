"""Regression over sites by exact sums: least squares, ridge and generalised linear models.

Nelder and Wedderburn 1972: iteratively reweighted least squares, a step a round. The server asks all sites
for sums over their rows, exact integers, and solves in rationals: so coefficients, errors and deviance are
those of the pooled rows, with the same bits for any division of the rows, under secure aggregation or not.

opening   n, trials, sum of y                     before round 1; beta^1 = (h^-1(mean), 0, ..., 0)
step      H = X'WX, U = X'(y - mu), deviance D    beta^{t+1} = beta^t + H^-1 U, unless D rose
errors    sum u^2 x x', or of each site's U U';   in the round in which U'H^-1 U says that it ended
          Pearson's chi square

=========  ========================  ========================================================  ===========
symbol     variable                  meaning                                                   where
=========  ========================  ========================================================  ===========
beta       state.coefficients        coefficients that are asked for                           wire, state
D          state.deviance            deviance at `state.best`, of a scaled y                   state
-          ``sums-sha256``           of the integers of all questions, one after the other     state
h          `task.classical`          inverse link (``families``)                               sites
=========  ========================  ========================================================  ===========

Every site must answer each question (`strategies.rules.exact_sums`).
The model's file has the result (`nothing`), which is 0 until it has ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from strategies.engine.rule import TRAIN, Phases, Round, RoundContext
from strategies.engine.state import AggregatedReplies, Number, ServerState, Updated
from strategies.rules.exact_sums import ExactSums, hashed, no_sums, totals_in
from strategies.rules.newton import IteratedState, as_rows, beta_in, halved
from task.catalogue.regressions import ERRORS, OPENING, STEP
from task.classical.fit import (
    Model,
    check_apart,
    covariances_of,
    model_of,
    rose,
    start_of,
    stepped,
)
from task.classical.sums import OpeningSums, StepSums, errors_in, opening_in, size_of, step_in
from task.classical.table import FIGURES
from task.config.knobs import Config
from task.errors import ConfigError
from task.numerics.arrays import Arrays


@dataclass(frozen=True)
class RegressionState(IteratedState):
    """The result so far, and where the iteration stands."""

    null_deviance: float = -1.0  # of the intercept alone
    score: float = -1.0  # U'H^-1 U there: the score test of all slopes


def nothing(p: int) -> Arrays:
    """Return the arrays of a result of p coefficients that has not ended.

    >>> {name: a.shape for name, a in nothing(3).items() if name != "figures"}
    {'coefficients': (3,), 'inverse-information': (3, 3), 'robust-covariance': (3, 3), 'sums-sha256': (32,)}
    """
    return {
        "coefficients": np.zeros(p),
        "figures": np.zeros(len(FIGURES)),
        "inverse-information": np.zeros((p, p)),
        "robust-covariance": np.zeros((p, p)),
        **no_sums(),
    }


def server_update(
    state: RegressionState, reduced: AggregatedReplies, config: Config
) -> Updated[RegressionState]:
    """Take one step."""
    model = model_of(config)
    totals = totals_in(reduced, STEP)
    state = replace(state, arrays=hashed(state.arrays, totals), iterations=state.iterations + 1)
    step = step_in(totals, model.p)
    beta = beta_in(state.coefficients)
    if (model.family != "binomial" and step.far) or _has_risen(state, step):
        remedy = f"Is regression.family = {model.family!r} that of the target?"
        return halved(state, step.far, "lower the deviance", remedy)
    found = stepped(model, step, beta, state.decrement)
    if state.null_deviance < 0:
        state = replace(state, null_deviance=float(step.deviance), score=found.decrement)
    state = replace(
        state,
        coefficients=as_rows(found.coefficients),
        best=as_rows(beta),
        deviance=float(step.deviance),
        decrement=found.decrement,
        halvings=0,
        converged=found.converged,
    )
    metrics: dict[str, Number] = {"deviance": _unscaled(model, step.deviance), "decrement": found.decrement}
    return state, metrics


def _has_risen(state: RegressionState, step: StepSums) -> bool:
    return state.deviance >= 0 and rose(step.deviance, Fraction(state.deviance))


def _unscaled(model: Model, deviance: Fraction) -> float:
    return float(deviance / model.square)


class Regression(ExactSums, update=server_update, state=RegressionState):
    """A regression by exact sums; see `strategies.rules.regression`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.start: OpeningSums | None = None  # as found before round 1, like `sites`
        self.opened: list[int] = []

    @cached_property
    def model(self) -> Model:
        """The regression; a strategy may be made before its columns are declared."""
        return model_of(self.config)

    def initial_state(self, arrays: Arrays, trainable: tuple[str, ...]) -> ServerState:
        """Return the state before round 1; no model of the run's is used."""
        return RegressionState(nothing(self.model.p))

    def opening(self, context: RoundContext) -> Phases:
        """Find the sites and their counts.

        Raises:
            ConfigError: Errors are to be clustered by site, and there are too few.
        """
        self.sites = tuple(context.names)
        if self.model.by_site and len(self.sites) <= self.model.p:
            raise ConfigError(
                f'run-config key "regression.errors": "site" needs more sites than the {self.model.p} '
                f'columns of the design; got {len(self.sites)}. Use "robust", or fewer columns'
            )
        replies = yield from self.ask("opening", context, size_of(OPENING, self.model.p))
        self.opened = totals_in(replies, OPENING)
        self.start = opening_in(self.opened)
        context.remark(f"rows: {int(self.start.n)} of {len(self.sites)} clients")

    def round(self, state: Any, context: RoundContext) -> Round:
        """Ask for one step, and for the errors where it is the last."""
        assert self.start is not None
        if not state.coefficients:
            first = hashed(state.arrays, self.opened)
            state = replace(state, arrays=first, coefficients=as_rows(start_of(self.model, self.start)))
        replies = yield from self.ask(TRAIN, context, size_of(STEP, self.model.p), state.coefficients)
        step = step_in(totals_in(replies, STEP), self.model.p)
        check_apart(self.model, step, int(self.start.n))
        state, metrics = type(self).update(state, replies, self.config)
        if state.converged:
            replies = yield from self.ask(
                "errors", context, size_of(ERRORS, self.model.p), state.coefficients
            )
            state = replace(state, arrays=self._result(state, step, totals_in(replies, ERRORS)))
        return state, metrics

    def finished(self, state: Any) -> bool:
        """Return whether the iteration has ended."""
        return bool(state.converged)

    def _result(self, state: RegressionState, step: StepSums, totals: Sequence[int]) -> Arrays:
        """Return what the table is made of."""
        assert self.start is not None
        model, errors = self.model, errors_in(totals, self.model.p)
        found, square = covariances_of(model, step, errors), model.square
        figures = {
            "rows": float(self.start.n),
            "trials": float(self.start.trials),
            "deviance": float(step.deviance / square),
            "null-deviance": float(Fraction(state.null_deviance) / square),
            "pearson": float(errors.pearson / square),
            "likelihood": float(self.start.likelihood),
            "iterations": float(state.iterations),
            "decrement": state.decrement,
            "score": state.score,
            "sites": float(len(self.sites)) if model.by_site else 0.0,
        }
        return {
            **hashed(state.arrays, totals),
            "coefficients": np.array(beta_in(state.coefficients)),
            "figures": np.array([figures[name] for name in FIGURES]),
            "inverse-information": np.array(found.inverse),
            "robust-covariance": np.array(found.robust),
        }


class GLM(Regression, algorithm="glm"):
    """A generalised linear model; see `strategies.rules.regression`."""


class LeastSquares(Regression, algorithm="least-squares"):
    """Least squares, with a penalty ridge regression; see `strategies.rules.regression`."""
