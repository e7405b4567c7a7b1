"""Cox's regression over sites by exact sums, with Breslow's or Efron's ties and strata.

Cox 1972: Newton's steps on the partial likelihood, one a round. The server asks all sites for sums over
their rows by cell of time (`task.classical.cox`), exact integers, and solves in rationals: so coefficients
and errors are those of the pooled rows, with the same bits for any division of the rows, under secure
aggregation or not.

opening    which bins of time are too small for a site        before round 1 (`strategies.rules.survival`)
counts     persons by stratum, bin and fate                   before round 1; the cells follow from them
null       the sums at beta = 0                               before round 1
sums       S0, S1, S2 by cell at beta^t                       beta^{t+1} = beta^t + I^-1 U, unless L fell
scores     which bins of the risk score are too small         after the last step, if c is asked for
concordance persons by cell and bin of the risk score         Harrell's c (`task.classical.concordance`)

=========  ========================  ========================================================  ===========
symbol     variable                  meaning                                                   where
=========  ========================  ========================================================  ===========
beta       state.coefficients        coefficients that are asked for                           wire, state
-2 log L   state.deviance            at `state.best`                                           state
-          ``cells``                 by stratum, bin and fate, with whom a person is counted   wire
-          ``sums-sha256``           of the integers of all questions but the first            state
=========  ========================  ========================================================  ===========

Every site must answer each question (`strategies.rules.exact_sums`). The iteration stops where that of
`task.classical.fit` does. The model's file has the result (`nothing`), which is 0 until it has ended.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from strategies.engine.rule import TRAIN, Phase, Phases, Round, RoundContext
from strategies.engine.state import AggregatedReplies, Number, ServerState, Updated
from strategies.rules.exact_sums import hashed, no_sums, totals_in
from strategies.rules.newton import IteratedState, as_rows, beta_in, halved
from strategies.rules.survival import BinnedSums, as_sent
from task.catalogue.survivals import COUNTS, OBJECTIONS, RISK_SUMS
from task.classical.bins import bits, merged
from task.classical.concordance import check_scores, concordance
from task.classical.cox import Cox, Strata, cox_of, strata_of
from task.classical.fit import ENOUGH, SMALL, rose
from task.classical.hazards import FIGURES
from task.classical.partial_likelihood import (
    CellSums,
    PartialLikelihood,
    cells_in,
    likelihood_at,
    means_in,
    proportional,
    share_before,
)
from task.classical.survival import EVENT
from task.config.knobs import Config
from task.errors import DataError
from task.numerics.arrays import Arrays
from task.numerics.row_sums import value

Ranked = Generator[Phase, AggregatedReplies, Arrays]
_NEAR = 1.0  # decrement below which Newton's steps do not lead too far out by accident


def nothing(cox: Cox) -> Arrays:
    """Return the arrays of a result that has not ended.

    >>> keys = {"survival.time": "week(0..4)", "survival.event": "ill(0..1)", "survival.columns": "x(0..1)"}
    >>> config = read_config({"algorithm": "cox", "dataset": "csv", **keys})
    >>> nothing(cox_of(config))["bins"].shape  # strata, bins, fates
    (1, 5, 2)
    """
    (strata, _, bins, fates), p = cox.survival.size, cox.p
    by_bin = {name: np.zeros((strata, bins)) for name in ("baseline", "at-risk", "events")}
    return {
        "coefficients": np.zeros(p),
        "covariance": np.zeros((p, p)),
        "means": np.zeros(p),
        "proportional": np.zeros(p + 1),
        "figures": np.zeros(len(FIGURES)),
        "bins": np.zeros((strata, bins, fates), np.int64),
        **({"concordance": np.zeros(3)} if cox.scores else {}),
        **by_bin,
        **no_sums(),
    }


@dataclass(frozen=True)
class NewtonStep:
    """One step of Newton's."""

    coefficients: list[float]
    decrement: float


def stepped(cox: Cox, found: PartialLikelihood, beta: Sequence[float]) -> NewtonStep:
    """Return the coefficients after those that a likelihood is of.

    Raises:
        DataError: The columns are collinear.
    """
    move = found.information.times(found.score)
    decrement = float(sum(u * m for u, m in zip(found.score, move, strict=True)))
    after = zip(beta, move, cox.scales, strict=True)
    return NewtonStep([float(Fraction(b) + m * Fraction(s)) for b, m, s in after], decrement)


def server_update(state: IteratedState, reduced: AggregatedReplies, config: Config) -> Updated[IteratedState]:
    """Take the sums into the digest; what follows from them needs those at 0, too (`CoxRegression`)."""
    arrays = hashed(state.arrays, totals_in(reduced, RISK_SUMS))
    return replace(state, arrays=arrays, iterations=state.iterations + 1), {}


class CoxRegression(BinnedSums, algorithm="cox", update=server_update, state=IteratedState):
    """Cox's regression by exact sums; see `strategies.rules.cox`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.strata: Strata | None = None  # as found before round 1, like `sites`
        self.null: CellSums | None = None
        self.counts: np.ndarray = np.zeros(0)
        self.opened: list[list[int]] = []

    @cached_property
    def cox(self) -> Cox:
        """The regression; a strategy may be made before its columns are declared."""
        return cox_of(self.config)

    def initial_state(self, arrays: Arrays, trainable: tuple[str, ...]) -> ServerState:
        """Return the state before round 1; no model of the run's is used."""
        return IteratedState(nothing(self.cox))

    def opening(self, context: RoundContext) -> Phases:
        """Find the sites, the bins that they allow, the cells, and the sums at 0."""
        survival = self.cox.survival
        yield from self.merge(survival, context)
        assert self.bins is not None
        size = math.prod(survival.size)
        replies = yield from self.ask("counts", context, size, {"bins": as_sent(self.bins)})
        totals = totals_in(replies, COUNTS)
        counts = np.array([int(value(t)) for t in totals], np.int64).reshape(survival.size)
        self.counts = counts.sum(axis=1)
        self.strata = strata_of(self.cox, self.bins, self.counts)
        check_scores(self.cox, self.strata)
        if not self.strata.bins:
            raise DataError(f"column {survival.event.name}: expected the event in some row; got none")
        replies = yield from self.ask("null", context, self._size(), self._sent([0.0] * self.cox.p))
        self.opened = [totals, totals_in(replies, RISK_SUMS)]
        self.null = cells_in(self.opened[1], self.cox.triangle)
        persons, events = int(counts.sum()), sum(self.strata.events)
        context.remark(f"persons: {persons} of {len(self.sites)} clients, {events} with the event")

    def round(self, state: Any, context: RoundContext) -> Round:
        """Ask for the sums at the coefficients, and take a step."""
        assert self.null is not None
        if not state.coefficients:
            state = self._begun(state)
        beta = beta_in(state.coefficients)
        replies = yield from self.ask(TRAIN, context, self._size(), self._sent(beta))
        state, _ = type(self).update(state, replies, self.config)
        sums = cells_in(totals_in(replies, RISK_SUMS), self.cox.triangle)
        if sums.far and state.decrement < _NEAR:
            raise self._separated()
        found = None if sums.far else self._likelihood(sums, beta)
        if found is None or rose(Fraction(-2.0 * found.value), Fraction(state.deviance)):
            remedy = "Drop columns, or merge levels without an event"
            return halved(state, sums.far, "raise the likelihood", remedy)
        last = state.decrement
        try:
            step = stepped(self.cox, found, beta)
        except DataError:  # there was information at 0
            raise self._separated() from None
        ended = step.decrement <= ENOUGH or (step.decrement < SMALL and step.decrement > last / 4)
        state = replace(
            state,
            coefficients=as_rows(beta if ended else step.coefficients),
            best=as_rows(beta),
            deviance=-2.0 * found.value,
            decrement=step.decrement,
            halvings=0,
            converged=ended,
        )
        if ended:
            state = replace(state, arrays=self._result(state, found, beta))
            if self.cox.scores:
                state = replace(state, arrays=(yield from self._ranked(state.arrays, beta, context)))
        metrics: dict[str, Number] = {"log_likelihood": found.value, "decrement": step.decrement}
        return state, metrics

    def finished(self, state: Any) -> bool:
        """Return whether the iteration has ended."""
        return bool(state.converged)

    def _ranked(self, arrays: Arrays, beta: Sequence[float], context: RoundContext) -> Ranked:
        """Ask for the bins of the risk score that all sites allow and the counts in them; add c's pairs."""
        assert self.strata is not None
        sent, last, many = self._sent(beta), self.cox.scores - 1, self.strata.many
        replies = yield from self.ask("scores", context, bits(last), sent)
        ends = merged(last, totals_in(replies, OBJECTIONS))
        kept = len(np.unique(ends))
        if kept <= last:
            context.remark(
                f"risk scores: {kept} of {last + 1} bins are left, as some are too small for a site"
            )
        sent["score-bins"] = ends.astype(np.float64)[:, None]
        replies = yield from self.ask("concordance", context, many * kept, sent)
        totals = totals_in(replies, COUNTS)
        counts = np.array([int(value(t)) for t in totals], np.int64).reshape(many, kept)
        pairs = concordance(self.strata, counts)
        found = np.array([pairs.concordant, pairs.tied, pairs.comparable], np.float64)
        return {**hashed(arrays, totals), "concordance": found}

    def _size(self) -> int:
        assert self.strata is not None
        return self.strata.many * self.cox.triangle + 1

    def _sent(self, beta: Sequence[float]) -> Arrays:
        assert self.strata is not None
        return {"cells": as_sent(self.strata.cells), **as_rows(beta)}

    def _likelihood(self, sums: CellSums, beta: Sequence[float]) -> PartialLikelihood:
        assert self.strata is not None
        assert self.null is not None
        return likelihood_at(self.cox, self.strata, sums, self.null, beta)

    def _begun(self, state: IteratedState) -> IteratedState:
        """Return the state with the first step, from the sums at 0."""
        assert self.null is not None
        zero = [0.0] * self.cox.p
        found = self._likelihood(self.null, zero)
        arrays = state.arrays
        for totals in self.opened:
            arrays = hashed(arrays, totals)
        after = stepped(self.cox, found, zero)
        return replace(
            state,
            arrays=arrays,
            coefficients=as_rows(after.coefficients),
            best=as_rows(zero),
            deviance=-2.0 * found.value,
            decrement=after.decrement,
        )

    def _separated(self) -> DataError:
        """Return the error of coefficients that have no finite value."""
        return DataError(
            f"column {self.cox.survival.event.name}: expected events at all values of the columns; got "
            "columns that separate who has it from who has not, so that coefficients grow without end. Drop "
            "one, or merge levels without an event"
        )

    def _result(self, state: IteratedState, found: PartialLikelihood, beta: Sequence[float]) -> Arrays:
        """Return what the table is made of."""
        assert self.strata is not None
        assert self.null is not None
        assert self.bins is not None
        cox, strata = self.cox, self.strata
        zero = self._likelihood(self.null, [0.0] * cox.p)
        means = means_in(cox, self.null)
        shift = math.exp(sum((m - c) * b for m, c, b in zip(means, cox.centres, beta, strict=True)))
        test = proportional(found, share_before(self.counts, strata))
        figures = {
            "rows": float(self.counts.sum()),
            "events": float(self.counts[:, :, EVENT].sum()),
            "log-likelihood": found.value,
            "null-log-likelihood": zero.value,
            "score-test": stepped(cox, zero, [0.0] * cox.p).decrement,
            "iterations": float(state.iterations),
            "decrement": state.decrement,
        }
        scales = [Fraction(s) for s in cox.scales]
        inverse = found.information.matrix()
        arrays = {name: a.copy() for name, a in state.arrays.items()}
        arrays["coefficients"] = np.array(beta)
        arrays["covariance"] = np.array(
            [
                [float(a * s * t) for a, t in zip(row, scales, strict=True)]
                for row, s in zip(inverse, scales, strict=True)
            ]
        )
        arrays["means"] = np.array(means)
        arrays["proportional"] = np.array([*test.each, test.together])
        arrays["figures"] = np.array([figures[name] for name in FIGURES])
        arrays["bins"] = self.bins
        for at, jump in enumerate(found.hazards):
            s, j = strata.stratum[at], strata.bins[at]
            arrays["baseline"][s, j] = jump * shift
            arrays["at-risk"][s, j], arrays["events"][s, j] = strata.at_risk[at], strata.events[at]
        return arrays
