"""Descriptive statistics over sites by exact sums: who has what.

The first round asks for the tables, the others cut the ranges of numbers, each part that needs it once. A
round has two questions, so that what few persons are in never goes into a sum:

closing   by cell, or cut of a range, whether a site must not show it     any such site closes it for all
train     the counts and sums of what is open

=========  ===================  ==============================================================  ===========
symbol     variable             meaning                                                         where
=========  ===================  ==============================================================  ===========
-          ``cells``            by cell, how many sites closed it                               result
-          ``sums``             what `task.classical.survey` lists, 0 where it is closed        result
-          ``parts``            column, path of cuts, count, how many cuts are closed          result
-          ``site-cells``,      the same of each site, where they are asked for by themselves   result
           ``site-sums``
-          ``site-parts``       ``parts`` of each site, with its place, where they are asked for    result
=========  ===================  ==============================================================  ===========

Where noise protects each row (``dp.noise``, ``dp.unit = "example"``), nobody is asked what is closed. The
numbers have noise on a grid of their own (`task.classical.noised`), ``sums`` is what follows from them, and

``noise``  standard deviation of the noise on a count of the tables, of the lower pieces, of a site's own

With ``statistics.by-site`` each site is asked by itself in the first round, else all of them together; the
sums are the same integers. A part is cut while it is wider than a bar of the histogram, or has a rank that a
quantile needs, until it is one step wide or sites close all of its cuts; with noise, until it holds no more
persons than that could make up.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from strategies.engine.rule import TRAIN, Phase, Round, RoundContext
from strategies.engine.state import AggregatedReplies, ServerState, Updated
from strategies.rules.exact_sums import ExactSums, hashed, no_sums, totals_in
from task.catalogue.statistics import ASKED, CELL_SUMS, CLOSED, CLOSED_CELLS
from task.classical.noised import (
    ENDS,
    cuts_left,
    is_cut,
    noise_of,
    persons,
    table_sensitivity,
    table_size,
    tables_in,
)
from task.classical.parts import (
    Leaf,
    after,
    next_cuts,
    parts_of,
    parts_of_sites,
    rows_of,
    rows_of_sites,
    whole_range,
)
from task.classical.pooled import closed_by
from task.classical.survey import Cut, Survey, check_counts, rows_of_cuts, survey_of
from task.config.knobs import Config
from task.numerics.arrays import Arrays
from task.numerics.row_sums import DIGITS, to_wire

Ask = Generator[Phase, AggregatedReplies, tuple[list[int], list[int]]]


@dataclass(frozen=True)
class StatisticsState(ServerState):
    """The result so far."""

    begun: bool = False
    ended: bool = False


def nothing(survey: Survey) -> Arrays:
    """Return the arrays of a result that has not begun.

    >>> survey = Survey((Variable("sex", "statistics.columns", levels=("f", "m")),))
    >>> nothing(survey)["cells"].shape  # of f, m and missing values
    (3,)
    """
    return {
        "cells": np.zeros(survey.cells, np.int64),
        "sums": np.zeros((survey.size, DIGITS), np.int64),
        "site-cells": np.zeros((0, survey.cells), np.int64),
        "site-sums": np.zeros((0, survey.size, DIGITS), np.int64),
        "sites": np.zeros(0, np.uint8),
        "parts": np.zeros((0, 5), np.int64),
        **no_sums(),
    }


def server_update(
    state: StatisticsState, reduced: AggregatedReplies, config: Config
) -> Updated[StatisticsState]:
    """Return the state as it is: the round itself adds its two questions' answers."""
    return state, {}


class Statistics(ExactSums, update=server_update, state=StatisticsState, algorithm="statistics"):
    """Descriptive statistics by exact sums; see `strategies.rules.statistics`."""

    @cached_property
    def survey(self) -> Survey:
        """What is asked for; a strategy may be made before its columns are declared."""
        return survey_of(self.config)

    def initial_state(self, arrays: Arrays, trainable: tuple[str, ...]) -> ServerState:
        """Return the state before round 1; no model of the run's is used."""
        return StatisticsState(nothing(self.survey))

    def round(self, state: Any, context: RoundContext) -> Round:
        """Ask for the tables, or cut parts.

        Raises:
            NodesError: The sites are not those of the first round.
        """
        if not state.begun:
            begun = {**state.arrays, "sites": self.names}
            state = yield from self._tables(replace(state, arrays=begun), context)
        else:
            self.check_sites(state.arrays["sites"], context)
            state = yield from self._cut(state, context)
        cuts = len(cuts_left(self.survey, state.arrays))
        return replace(state, begun=True, ended=is_cut(self.survey, state.arrays)), {"cuts": cuts}

    def finished(self, state: Any) -> bool:
        """Return whether there is nothing to cut any more."""
        return bool(state.ended)

    def _tables(
        self, state: StatisticsState, context: RoundContext
    ) -> Generator[Phase, AggregatedReplies, StatisticsState]:
        survey, found = self.survey, dict(state.arrays)
        if self.config.dp.local:
            return (yield from self._noised_tables(state, context))
        of_sums = survey.cell_of_sum()
        if not survey.by_site:
            cells, sums = yield from self._open(context, [], survey.cells, survey.size, self.sites)
        else:
            each = []
            for site in self.sites:
                each.append((yield from self._open(context, [], survey.cells, survey.size, (site,))))
                check_counts(survey, *each[-1], 1, f"client {site}")
            found["site-cells"] = np.array([cells for cells, _ in each], np.int64)
            found["site-sums"] = np.stack([to_wire(sums) for _, sums in each])
            cells = [sum(column) for column in zip(*(cells for cells, _ in each), strict=True)]
            sums = [sum(column) for column in zip(*(sums for _, sums in each), strict=True)]
        shut = [of >= 0 and cells[of] > 0 for of in of_sums.tolist()]
        sums = [0 if closed else total for closed, total in zip(shut, sums, strict=True)]
        check_counts(survey, cells, sums, len(self.sites), "the sites together")
        found = {**hashed(hashed(found, cells), sums), "cells": np.array(cells, np.int64)}
        found["sums"] = to_wire(sums)
        context.remark(f"rows: {sums[0]} of {len(self.sites)} clients")
        if survey.site_quantiles:
            found["site-parts"] = rows_of_sites([self._ranges(*own) for own in each])
        return replace(state, arrays={**found, "parts": rows_of(self._ranges(cells, sums))})

    def _ranges(self, cells: Sequence[int], sums: Sequence[int]) -> list[Leaf]:
        """Return all numbers' ranges, not cut yet."""
        starts = [(i, self.survey.starts[i]) for i in self.survey.numbers]
        return [whole_range(i, sums[1 + cell], closed=cells[cell] > 0) for i, cell in starts]

    def _cut(
        self, state: StatisticsState, context: RoundContext
    ) -> Generator[Phase, AggregatedReplies, StatisticsState]:
        leaves, cuts = parts_of(state.arrays["parts"]), cuts_left(self.survey, state.arrays)
        if self.config.dp.local:
            return (yield from self._noised_cut(state, context, leaves, cuts))
        arrays = dict(state.arrays)
        if cuts:
            shut, lower = yield from self._open(context, cuts, len(cuts), len(cuts), self.sites)
            arrays = hashed(hashed(arrays, shut), lower)
            arrays["parts"] = rows_of(after(self.survey, leaves, cuts, shut, lower))
        if self.survey.site_quantiles:
            sites = parts_of_sites(arrays)
            for place, site in enumerate(self.sites):
                if own := next_cuts(self.survey, sites[place]):
                    shut, lower = yield from self._open(context, own, len(own), len(own), (site,))
                    sites[place] = after(self.survey, sites[place], own, shut, lower)
            arrays["site-parts"] = rows_of_sites(sites)
        return replace(state, arrays=arrays)

    def _open(
        self, context: RoundContext, cuts: Sequence[Cut], cells: int, size: int, to: Sequence[str]
    ) -> Ask:
        """Ask what is closed, and then for the rest; return both."""
        asked = rows_of_cuts(cuts)
        replies = yield from self.ask("closing", context, cells, {ASKED: asked}, to)
        shut = totals_in(replies, CLOSED_CELLS)
        if self.survey.pooled_least and not cuts:
            shut = closed_by(self.survey, shut)
        closed = np.array(shut, np.float64)[:, None]
        replies = yield from self.ask(TRAIN, context, size, {ASKED: asked, CLOSED: closed}, to)
        return shut, totals_in(replies, CELL_SUMS)

    def _noised_tables(
        self, state: StatisticsState, context: RoundContext
    ) -> Generator[Phase, AggregatedReplies, StatisticsState]:
        survey, found, squared = self.survey, dict(state.arrays), table_sensitivity(self.survey)
        z, size = self.config.dp.noise, table_size(survey)
        if not survey.by_site:
            totals = yield from self._noised(context, [], size, self.sites)
        else:
            each = []
            for site in self.sites:
                each.append((yield from self._noised(context, [], size, (site,))))
            found["site-cells"] = np.zeros((len(each), survey.cells), np.int64)
            found["site-sums"] = np.stack([to_wire(tables_in(survey, own)[0]) for own in each])
            totals = [sum(column) for column in zip(*each, strict=True)]
        sums, leaves = tables_in(survey, totals)
        of_all = (noise_of(z, of, totals[-1]) for of in (squared, len(survey.numbers)))
        deviations = (*of_all, z * squared**0.5)
        found |= {"noise": np.array(deviations), "sums": to_wire(sums), "parts": rows_of(leaves)}
        context.remark(
            f"rows: {sums[0]} of {len(self.sites)} clients; each count has noise of standard deviation "
            f"{deviations[0]:.4g}"
        )
        return replace(state, arrays=hashed(found, totals))

    def _noised_cut(
        self, state: StatisticsState, context: RoundContext, leaves: Sequence[Leaf], cuts: Sequence[Cut]
    ) -> Generator[Phase, AggregatedReplies, StatisticsState]:
        totals = yield from self._noised(context, cuts, len(cuts), self.sites)
        held = {leaf.cut: leaf.count for leaf in leaves if leaf.cut}
        lower = [persons(total, held[cut]) for cut, total in zip(cuts, totals, strict=False)]
        parts = rows_of(after(self.survey, leaves, cuts, [0] * len(cuts), lower))
        return replace(state, arrays=hashed({**state.arrays, "parts": parts}, totals))

    def _noised(
        self, context: RoundContext, cuts: Sequence[Cut], size: int, to: Sequence[str]
    ) -> Generator[Phase, AggregatedReplies, list[int]]:
        """Ask for numbers with noise."""
        sent = {ASKED: rows_of_cuts(cuts), CLOSED: np.zeros((0, 1))}
        replies = yield from self.ask(TRAIN, context, size + ENDS, sent, to)
        return totals_in(replies, CELL_SUMS)
