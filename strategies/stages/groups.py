"""Rates and gaps of groups of people after an evaluation at the clients: ``groups``.

The clients' counts come with their evaluation. The round's row gets the rates that follow from their sums
and, except under secure aggregation, from the counts of each of up to `MOST_SITES` clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from strategies.engine.channel import Opened
from strategies.engine.fold import Folded
from strategies.engine.rule import EVALUATE, Phase
from strategies.engine.stage import ServerStage
from task.fairness.counts import CountLayout, Ints, fault_of
from task.fairness.groups import comparisons_of, named
from task.fairness.rates import brief, report_of
from task.features.groups import COUNTS, NAME
from task.wire import messages as wire
from task.wire.layouts import ROWS

if TYPE_CHECKING:
    from strategies.engine.phases import PhaseEngine

MOST_SITES = 50  # whose own rates a round's row has


class GroupsStage(ServerStage):
    """Turns the counts of an evaluation into rates."""

    name = NAME
    replayed = False

    def __init__(self, engine: PhaseEngine) -> None:
        super().__init__(engine)
        self.comparisons = named(comparisons_of(engine.config.groups))
        self.found: dict[str, Any] = {}

    def begin(self) -> None:
        """Forget the last round."""
        self.found = {}

    def before_send(self, phase: Phase) -> Phase:
        """Say how many counts an evaluation asks for."""
        if phase.name != EVALUATE:
            return phase
        cells = sum(len(comparison.names) for comparison in self.comparisons)
        size = cells, CountLayout(self.classes).width
        return replace(phase, rows={**phase.rows, COUNTS: size})

    @property
    def classes(self) -> int:
        """How many classes the model tells apart."""
        assert self.engine.measures is not None
        return self.engine.measures.classes

    def after_fold(self, opened: Opened, folded: Folded) -> None:
        """Take the rates of an evaluation."""
        if opened.phase.name != EVALUATE or folded.reduced is None:
            return
        rows, clients = folded.reduced.arrays[COUNTS][ROWS], folded.reduced.clients
        if rows.ndim == 2:  # of a sum under masks
            self.found = {"groups": {"pooled": self._report(rows)}}
            return
        good = [i for i, client in enumerate(clients) if self._fits(client, rows[i], folded)]
        report: dict[str, Any] = {"pooled": self._report(np.sum(rows[good], axis=0))}
        if len(good) <= MOST_SITES:
            report["sites"] = {clients[i]: brief(self._report(np.asarray(rows[i]))) for i in good}
        self.found = {"groups": report}

    def _fits(self, client: str, rows: Ints, folded: Folded) -> bool:
        """Return whether a client's counts can be true; if not, they are left out, which is said."""
        sizes = [len(comparison.names) for comparison in self.comparisons]
        examples = int(folded.metrics[client][wire.NUM_EXAMPLES])
        why = fault_of(np.asarray(rows), CountLayout(self.classes), sizes, examples)
        if why:
            self.engine.journal.remark(f"warning: the groups of people leave out client {client}: {why}")
        return not why

    def _report(self, rows: Ints) -> list[dict[str, Any]]:
        return report_of(self.comparisons, rows, self.classes)

    def row(self) -> Mapping[str, Any]:
        """Return the rates of the round's evaluation."""
        return self.found
