"""Descriptive statistics over sites by exact sums: who has what.

The first round asks for the tables, the others halve the ranges of numbers, all parts of a depth at once. A
round has two questions, so that what few persons are in never goes into a sum:

closing   by cell, or part of a range, whether a site must not show it      any such site closes it for all
train     the counts and sums of what is open

=========  ===================  ==============================================================  ===========
symbol     variable             meaning                                                         where
=========  ===================  ==============================================================  ===========
-          ``cells``            by cell, how many sites closed it                               result
-          ``sums``             what `task.classical.survey` lists, 0 where it is closed        result
-          ``parts``            column, depth, place, count, whether it stays whole             result
-          ``site-cells``,      the same of each site, where they are asked for by themselves   result
           ``site-sums``
=========  ===================  ==============================================================  ===========

With ``statistics.by-site`` each site is asked by itself in the first round, else all of them together; the
sums are the same integers. A part is halved while it is wider than a bar of the histogram, or has a rank that
a quantile needs, until it is one step wide.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from strategies.engine.rule import TRAIN, Phase, Phases, Round, RoundContext
from strategies.engine.state import AggregatedReplies, ServerState, Updated
from strategies.rules.exact_sums import ExactSums, hashed, no_sums, totals_in
from task.catalogue.statistics import ASKED, CELL_SUMS, CLOSED, CLOSED_CELLS
from task.classical.parts import Leaf, next_parts, parts_of, rows_of
from task.classical.survey import Part, Survey, survey_of
from task.config.knobs import Config
from task.errors import NodesError
from task.numerics.arrays import Arrays
from task.numerics.row_sums import DIGITS, to_wire

Ask = Generator[Phase, AggregatedReplies, tuple[list[int], list[int]]]


@dataclass(frozen=True)
class StatisticsState(ServerState):
    """The result so far."""

    begun: bool = False
    ended: bool = False


def nothing(survey: Survey) -> Arrays:
    """Return the arrays of a result that has not begun."""
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
    """Add the counts of lower halves to the result; the round gives the parts that were halved, in order."""
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

    def opening(self, context: RoundContext) -> Phases:
        """Find the sites."""
        self.sites = tuple(context.names)
        yield from ()

    def round(self, state: Any, context: RoundContext) -> Round:
        """Ask for the tables, or halve parts.

        Raises:
            NodesError: The sites are not those of the first round.
        """
        names = np.frombuffer("\n".join(self.sites).encode(), np.uint8)
        if not state.begun:
            state = yield from self._tables(replace(state, arrays={**state.arrays, "sites": names}), context)
        else:
            if state.arrays["sites"].tobytes() != names.tobytes():
                began = state.arrays["sites"].tobytes().decode().replace("\n", ", ")
                raise NodesError(
                    f"round {context.round}: expected the sites of round 1, {began}; got "
                    f"{', '.join(self.sites)}. Start the others' nodes and resume the run, or begin another"
                )
            state = yield from self._halve(state, context)
        parts = next_parts(self.survey, parts_of(state.arrays["parts"]))
        return replace(state, begun=True, ended=not parts), {"parts": len(parts)}

    def finished(self, state: Any) -> bool:
        """Return whether there is nothing to halve any more."""
        return bool(state.ended)

    def _tables(
        self, state: StatisticsState, context: RoundContext
    ) -> Generator[Phase, AggregatedReplies, StatisticsState]:
        survey, found = self.survey, dict(state.arrays)
        of_sums = survey.cell_of_sum()
        if not survey.by_site:
            cells, sums = yield from self._open(context, [], survey.cells, survey.size, self.sites)
        else:
            each = []
            for site in self.sites:
                each.append((yield from self._open(context, [], survey.cells, survey.size, (site,))))
            found["site-cells"] = np.array([cells for cells, _ in each], np.int64)
            found["site-sums"] = np.stack([to_wire(sums) for _, sums in each])
            cells = [sum(column) for column in zip(*(cells for cells, _ in each), strict=True)]
            sums = [sum(column) for column in zip(*(sums for _, sums in each), strict=True)]
        shut = [of >= 0 and cells[of] > 0 for of in of_sums.tolist()]
        sums = [0 if closed else total for closed, total in zip(shut, sums, strict=True)]
        found = {**hashed(hashed(found, cells), sums), "cells": np.array(cells, np.int64)}
        found["sums"] = to_wire(sums)
        context.remark(f"rows: {sums[0]} of {len(self.sites)} clients")
        whole = [
            Leaf(Part(i, 0, 0), sums[1 + survey.starts[i]], bool(cells[survey.starts[i]]))
            for i in survey.numbers
        ]
        return replace(state, arrays={**found, "parts": rows_of(whole)})

    def _halve(
        self, state: StatisticsState, context: RoundContext
    ) -> Generator[Phase, AggregatedReplies, StatisticsState]:
        leaves = parts_of(state.arrays["parts"])
        asked = next_parts(self.survey, leaves)
        shut, lower = yield from self._open(context, asked, len(asked), len(asked), self.sites)
        halved = dict(zip(asked, zip(shut, lower, strict=True), strict=True))
        found: list[Leaf] = []
        for leaf in leaves:
            closed, below = halved.get(leaf.part, (-1, 0))
            if closed == 0:
                first, second = leaf.part.halves()
                found += [Leaf(first, below, False), Leaf(second, leaf.count - below, False)]
            else:
                found.append(replace(leaf, whole=leaf.whole or closed > 0))
        arrays = hashed(hashed(state.arrays, shut), lower)
        return replace(state, arrays={**arrays, "parts": rows_of(found)})

    def _open(
        self, context: RoundContext, asked: Sequence[Part], cells: int, size: int, to: Sequence[str]
    ) -> Ask:
        """Ask what is closed, and then for the rest; return both."""
        parts = np.array([(p.variable, p.depth, p.place) for p in asked], np.float64).reshape(-1, 3)
        replies = yield from self.ask("closing", context, cells, {ASKED: parts}, to)
        shut = totals_in(replies, CLOSED_CELLS)
        closed = np.array(shut, np.float64)[:, None]
        replies = yield from self.ask(TRAIN, context, size, {ASKED: parts, CLOSED: closed}, to)
        return shut, totals_in(replies, CELL_SUMS)
