"""Survival curves over sites by exact counts: Kaplan-Meier, Nelson-Aalen and the log-rank test.

Kaplan and Meier 1958, over the persons of all sites.

opening    which bins of time are too small for a site     before round 1 (`strategies.rules.survival`)
counts     persons by stratum, group, bin and fate         the one round; the curves follow from them

=====  ==============  ===================================================================  =======
symbol variable        meaning                                                              where
=====  ==============  ===================================================================  =======
d, c   ``counts``      persons with the event, and without it, whose time is in the bin     state
-      ``bins``        the bins in which persons of each bin count                          wire
=====  ==============  ===================================================================  =======

Every site must answer each question (`strategies.rules.exact_sums`). The curves are made where they are
written (`task.classical.kaplan_meier`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from strategies.engine.rule import TRAIN, Phases, Round, RoundContext
from strategies.engine.state import AggregatedReplies, Number, ServerState, Updated
from strategies.rules.exact_sums import hashed, no_sums, totals_in
from strategies.rules.survival import BinnedSums, as_sent
from task.catalogue.survivals import COUNTS
from task.classical.survival import Survival, survival_of
from task.config.knobs import Config
from task.numerics.arrays import Arrays
from task.numerics.row_sums import value


@dataclass(frozen=True)
class CurvesState(ServerState):
    """The counts, once they have come."""

    converged: bool = False


def nothing(size: Sequence[int]) -> Arrays:
    """Return the arrays of a result for which nobody was asked.

    >>> {name: a.shape for name, a in nothing((1, 2, 3, 2)).items()}  # strata, groups, bins, fates
    {'counts': (1, 2, 3, 2), 'bins': (1, 3, 2), 'sums-sha256': (32,)}
    """
    strata, _, bins, fates = size
    return {
        "counts": np.zeros(size, np.int64),
        "bins": np.zeros((strata, bins, fates), np.int64),
        **no_sums(),
    }


def server_update(state: CurvesState, reduced: AggregatedReplies, config: Config) -> Updated[CurvesState]:
    """Take the counts."""
    totals = totals_in(reduced, COUNTS)
    counts = np.array([int(value(t)) for t in totals], np.int64).reshape(state.arrays["counts"].shape)
    arrays = {**hashed(state.arrays, totals), "counts": counts}
    metrics: dict[str, Number] = {"persons": int(counts.sum()), "events": int(counts[..., 0].sum())}
    return replace(state, arrays=arrays, converged=True), metrics


class KaplanMeier(BinnedSums, algorithm="kaplan-meier", update=server_update, state=CurvesState):
    """Survival curves by exact counts; see `strategies.rules.kaplan_meier`."""

    @cached_property
    def survival(self) -> Survival:
        """The analysis; a strategy may be made before its columns are declared."""
        return survival_of(self.config)

    def initial_state(self, arrays: Arrays, trainable: tuple[str, ...]) -> ServerState:
        """Return the state before round 1; no model of the run's is used."""
        return CurvesState(nothing(self.survival.size))

    def opening(self, context: RoundContext) -> Phases:
        """Find the sites, and the bins that they allow."""
        yield from self.merge(self.survival, context)

    def round(self, state: Any, context: RoundContext) -> Round:
        """Ask for the counts."""
        assert self.bins is not None
        size, sent = math.prod(self.survival.size), {"bins": as_sent(self.bins)}
        replies = yield from self.ask(TRAIN, context, size, sent)
        return type(self).update(
            replace(state, arrays={**state.arrays, "bins": self.bins}), replies, self.config
        )

    def finished(self, state: Any) -> bool:
        """Return whether the counts are there."""
        return bool(state.converged)
