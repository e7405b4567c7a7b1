"""k-means over sites by exact sums.

Lloyd 1982, a step a round: the centres go down, and of each cluster the number of rows, their sums and their
squared distances come up. The next centres are the means, exactly and then rounded once. The run has ended
when a step gives the centres that were asked for.

opening   n, sums, sums of squares    before round 1; gives the weights and, unless declared, the start
step      n_k, S_k, D_k               c_k = S_k / n_k; a cluster without rows keeps c_k

=========  ========================  ========================================================  ===========
symbol     variable                  meaning                                                   where
=========  ========================  ========================================================  ===========
c          state.centres             centres that are asked for, in the columns' units         wire, state
w          state.weights             what columns are multiplied by for distances              wire, state
n_k        ``rows``                  rows of each cluster                                      result
D_k        ``within``                sums of squared distances to the centres                  result
-          ``sums-sha256``           of the integers of all questions, one after the other     state
=========  ========================  ========================================================  ===========

Every site must answer each question (`strategies.rules.exact_sums`).

Of the sums 3, 1.5, 0.5 and 1, 1, 0 of two clusters follow the centres 1.5 / 3 and 1 / 1:

>>> config = read_config({"algorithm": "k-means", "dataset": "csv", "k-means.columns": "x(0..1)"})
>>> totals = [int(t * 2**51) for t in (3, 1.5, 0.5, 1, 1, 0)]
>>> step_in(clustering_of(config), totals, np.zeros((2, 1))).centres
[[0.5], [1.0]]
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from strategies.engine.rule import TRAIN, Phases, Round, RoundContext
from strategies.engine.state import AggregatedReplies, ServerState, Updated
from strategies.rules.exact_sums import ExactSums, hashed, no_sums, totals_in
from task.catalogue.multivariate import CENTRES, OPENING, STEP, WEIGHTS
from task.classical.clusters import (
    Clustering,
    clustering_of,
    nothing,
    opening_size,
    result_of,
    start_of,
    step_in,
    step_size,
    weights_of,
)
from task.classical.moments import RowMoments, moments_in
from task.config.knobs import Config
from task.errors import DataError
from task.numerics import seeds
from task.numerics.arrays import Arrays


@dataclass(frozen=True)
class KMeansState(ServerState):
    """The result so far, and what is asked for."""

    asked: Arrays = field(default_factory=dict)  # centres and weights
    iterations: int = 0
    converged: bool = False


def server_update(state: KMeansState, reduced: AggregatedReplies, config: Config) -> Updated[KMeansState]:
    """Take one step."""
    totals, before = totals_in(reduced, STEP), state.asked[CENTRES]
    step = step_in(clustering_of(config), totals, before)
    after = np.array(step.centres)
    state = replace(
        state,
        arrays=hashed(state.arrays, totals),
        asked={**state.asked, CENTRES: after},
        iterations=state.iterations + 1,
        converged=bool((after == before).all()),
    )
    moved = int((after != before).any(axis=1).sum())
    return state, {"moved-centres": moved, "empty-clusters": step.rows.count(0)}


class KMeans(ExactSums, algorithm="k-means", update=server_update, state=KMeansState):
    """k-means by exact sums; see `strategies.rules.k_means`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.moments: RowMoments | None = None  # as found before round 1, like `sites`
        self.opened: list[int] = []

    @cached_property
    def model(self) -> Clustering:
        """What is asked for; a strategy may be made before its columns are declared."""
        return clustering_of(self.config)

    def initial_state(self, arrays: Arrays, trainable: tuple[str, ...]) -> ServerState:
        """Return the state before round 1; no model of the run's is used."""
        return KMeansState({**nothing(self.model.clusters, self.model.p), **no_sums()})

    def opening(self, context: RoundContext) -> Phases:
        """Find the sites, and where their rows are.

        Raises:
            DataError: There are fewer rows than clusters.
        """
        self.sites = tuple(context.names)
        replies = yield from self.ask("opening", context, opening_size(self.model.p))
        self.opened = totals_in(replies, OPENING)
        self.moments = moments_in(self.opened, self.model.p, squares=True)
        if self.moments.n < self.model.clusters:
            raise DataError(
                f"expected as many rows as the {self.model.clusters} clusters, or more; got {self.moments.n}"
            )
        context.remark(f"rows: {self.moments.n} of {len(self.sites)} clients")

    def round(self, state: Any, context: RoundContext) -> Round:
        """Ask for one step."""
        assert self.moments is not None
        if not state.asked:
            rng = seeds.rng_for(self.config.seeds.model, seeds.STARTS)
            centres = np.array(start_of(self.model, self.moments, rng))
            weights = np.array(weights_of(self.model, self.moments))
            first = hashed(state.arrays, self.opened)
            state = replace(state, arrays=first, asked={CENTRES: centres, WEIGHTS: weights[:, None]})
        asked, size = state.asked, step_size(self.model.clusters, self.model.p)
        replies = yield from self.ask(TRAIN, context, size, asked)
        state, metrics = type(self).update(state, replies, self.config)
        if state.converged:
            step = step_in(self.model, totals_in(replies, STEP), asked[CENTRES])
            weights = asked[WEIGHTS][:, 0].tolist()
            found = result_of(self.model, self.moments, weights, step, state.iterations)
            state = replace(state, arrays={**state.arrays, **found})
        return state, metrics

    def finished(self, state: Any) -> bool:
        """Return whether the iteration has ended."""
        return bool(state.converged)
