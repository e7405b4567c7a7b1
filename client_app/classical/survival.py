"""Counts of a client's rows by bin of time; `strategies.rules.kaplan_meier` has the whole.

Where the node's owner sets ``min-examples`` = m, every count that leaves the client is 0 or at least m: of
the persons of a group in a bin with the event, and of those without. For Cox's regression of p columns a bin
needs 10 p persons, and m of them for each value of a column of 0 and 1, and of each pair of these.

The client halves its bins as long as that is so (`task.classical.bins`), and tells the server which bins are
closed. Questions for other bins than unions of its own are refused: so the difference of two answers has no
fewer persons either. So is a group or stratum that has fewer persons in all. Where the node has a ledger
(`task.privacy.query_ledger`), no bin ends close to an end of an earlier question, with few persons between.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from client_app.classical.cells import ROWS_PER_COLUMN
from client_app.classical.questions import answers, sent
from client_app.data.node import Node
from client_app.stages.stage import Outcome
from task.catalogue.entry import Algorithm
from task.catalogue.survivals import OBJECTIONS
from task.classical.bins import are_bins, bits, closed, merged
from task.classical.columns import Floats, NamedColumns
from task.classical.cox import cox_of
from task.classical.survival import EVENT, FATES, LEFT, ON_GRID, Cases, Survival, survival_of
from task.errors import RefusedError, WireError
from task.numerics.row_sums import UNIT_BITS
from task.wire import messages as wire

Bins = npt.NDArray[np.int64]  # [strata, bins, fates]


@dataclass(frozen=True)
class Subgroup:
    """Some of a client's rows, and how many of them a bin must have if it has any."""

    name: str
    rows: npt.NDArray[np.bool_]
    least: int


@dataclass(frozen=True)
class SurvivalRows:
    """A client's rows, what its owner's bound says of their parts, and where earlier questions had cuts."""

    survival: Survival
    client: str
    cases: Cases
    parts: Sequence[Subgroup]  # none where the owner sets no bound
    barred: npt.NDArray[np.bool_] | None = None  # where no bin may end, [strata, fates, bins]

    @classmethod
    def of(cls, node: Node, survival: Survival, client: str, table: NamedColumns) -> SurvivalRows:
        """Return a client's rows."""
        cases = survival.cases(table)
        found = cls(survival, client, cases, parts_of(node, survival, cases, table))
        ledger = node.bounds.queries
        if not found.parts or ledger is None:
            return found
        earlier = ledger.cuts(client)
        times, happened = table.of(survival.time), table.of(survival.event) == survival.happened
        barred = np.zeros((survival.size[0], FATES, survival.last + 1), np.bool_)
        for fate in range(FATES):
            cuts = np.array(earlier.get(survival.ledger_name(fate), []))
            barred[:, fate] = found.near(cuts, times, happened == (fate == EVENT)) if len(cuts) else False
        return replace(found, barred=barred)

    def near(self, cuts: Floats, times: Floats, fate: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which ends of bins have few persons of a `fate` between them and a cut, [strata, bins]."""
        survival = self.survival
        ends = np.array([survival.at(k) for k in range(survival.last + 1)])
        found, slack = np.zeros((survival.size[0], len(ends)), np.bool_), ON_GRID * survival.step
        for s in range(survival.size[0]):
            for part in self.parts:
                ordered = np.sort(times[fate & part.rows & (self.cases.strata == s)]) - slack
                here = np.searchsorted(ordered, ends, "right")
                there = np.unique(np.searchsorted(ordered, cuts, "right"))
                over = np.append(there, len(ordered) + part.least)[np.searchsorted(there, here, "right")]
                under = np.insert(there, 0, -part.least)[np.searchsorted(there, here, "left")]
                found[s] |= (over - here < part.least) | (here - under < part.least)
        return found

    def counts(self) -> npt.NDArray[np.int64]:
        """Return how many persons there are, [strata, fates, parts, bins]."""
        strata, _, many, _ = self.survival.size
        found = np.zeros((strata, FATES, len(self.parts), many), np.int64)
        of = self.cases
        for k, part in enumerate(self.parts):
            rows = part.rows
            np.add.at(found[:, :, k], (of.strata[rows], of.fates[rows], of.bins[rows]), 1)
        return found

    def closed(self) -> npt.NDArray[np.bool_]:
        """Return which bins are closed, [strata, fates, bins of all levels]."""
        strata, each = self.survival.size[0], bits(self.survival.last)
        if not self.parts:
            return np.zeros((strata, FATES, each), np.bool_)
        counts, least, barred = self.counts(), [part.least for part in self.parts], self.barred
        return np.stack(
            [
                [closed(counts[s, f], least, None if barred is None else barred[s, f]) for f in range(FATES)]
                for s in range(strata)
            ]
        )

    def bins(self) -> Bins:
        """Return the finest bins that the client answers for."""
        last = self.survival.last
        return np.stack(
            [np.stack([merged(last, bit.tolist()) for bit in stratum], axis=1) for stratum in self.closed()]
        )

    def check(self) -> None:
        """Refuse a part of a stratum that has few persons with the event, or without.

        Raises:
            RefusedError: Naming the rule and the part.
        """
        totals = self.counts().sum(axis=3)
        least = np.array([part.least for part in self.parts])
        for s, _, k in np.argwhere((totals > 0) & (totals < least)).tolist():
            part, survival = self.parts[k], self.survival
            stratum = f" of {survival.names(survival.strata)[s]}" if survival.strata else ""
            raise RefusedError(
                f"policy: min-examples: {part.name}{stratum} would have fewer than {part.least} persons of "
                f"client {self.client} with the event, or without it"
            )
        if self.barred is not None and self.barred[:, EVENT, -1].any():
            raise RefusedError(
                f"policy: min-examples; too few persons of client {self.client} have the event between "
                f"{self.survival.until:g}, the end of follow-up, and a time up to which an earlier question "
                "counted. Ask with the same survival.until as then"
            )

    def check_unions(self, asked: Bins) -> None:
        """Refuse bins, or cells of them, that divide a bin of the client's own.

        Raises:
            RefusedError: Naming the rule.
        """
        if not self.parts:
            return
        strata, many, fates = asked.shape
        s, _, f = np.ogrid[:strata, :many, :fates]
        if not (asked == asked[s, self.bins(), f]).all():
            raise RefusedError(
                f"policy: min-examples; a bin of time would have fewer persons of client {self.client} than "
                "its owner allows: only unions of the bins that the client did not close are answered"
            )


def count_cases(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Answer one question for each client: which bins of time are too small, or the counts."""
    survival = survival_of(node.config)
    strata, _, many, _ = survival.size

    def objections(client: str, table: NamedColumns) -> list[int]:
        site = SurvivalRows.of(node, survival, client, table)
        site.check()
        return [int(bit) << UNIT_BITS for bit in site.closed().ravel().tolist()]

    def counts_of(client: str, table: NamedColumns) -> list[int]:
        site = SurvivalRows.of(node, survival, client, table)
        site.check()
        site.check_unions(bins)
        return [n << UNIT_BITS for n in survival.counts(moved(site.cases, bins)).ravel().tolist()]

    (record,) = entry.up
    if record.name == OBJECTIONS:
        return answers(node, entry, order, strata * FATES * bits(survival.last), objections)
    bins = bins_in(sent(order, "bins", strata * many, FATES), survival)
    cuts = cuts_of(survival, bins)
    return answers(node, entry, order, math.prod(survival.size), counts_of, cuts=cuts)


def cuts_of(survival: Survival, bins: Bins) -> dict[str, list[float]]:
    """Return the times at which bins, or cells of them, end, for the node's ledger."""
    ends = np.concatenate([bins[:, 1:] != bins[:, :-1], np.ones_like(bins[:, :1], np.bool_)], axis=1)
    ends[:, -1, LEFT] = False  # those who were observed up to then, whatever happened later
    found = {f: np.flatnonzero(ends[:, :, f].any(axis=0)).tolist() for f in (EVENT, LEFT)}
    return {survival.ledger_name(f): [survival.at(k) for k in places] for f, places in found.items()}


def parts_of(node: Node, survival: Survival, cases: Cases, table: NamedColumns) -> list[Subgroup]:
    """Return the parts of a client's rows that no bin may have few of; none where the owner sets no bound."""
    least = node.bounds.min_examples
    if not least:
        return []
    if "survival.columns" not in node.config.entry.reads:
        names = survival.names(survival.groups)
        return [Subgroup(name, cases.groups == g, least) for g, name in enumerate(names)]
    design = cox_of(node.config).design
    return column_parts(design.names[1:], design.columns(table)[1:], least)


def column_parts(names: Sequence[str], columns: Sequence[Floats], least: int) -> list[Subgroup]:
    """Return the parts of a regression's rows: all, by column of 0 and 1, and by pair of them."""
    everybody = np.ones(len(columns[0]), bool)
    found = [Subgroup("the whole table", everybody, max(least, ROWS_PER_COLUMN * len(names)))]
    sides = [
        (name, [x == 1, x == 0])
        for name, x in zip(names, columns, strict=True)
        if ((x == 0) | (x == 1)).all()
    ]
    found += [Subgroup(name, rows, least) for name, both in sides for rows in both]
    for (one, a), (other, b) in combinations(sides, 2):
        found += [Subgroup(f"{one} and {other} together", x & y, least) for x in a for y in b]
    return found


def bins_in(numbers: npt.NDArray[np.float64], survival: Survival) -> Bins:
    """Return the bins of a question.

    Raises:
        WireError: They are none.
    """
    strata, _, many, _ = survival.size
    found = numbers.reshape(strata, many, FATES)
    if not all(are_bins(found[s, :, f]) for s in range(strata) for f in range(FATES)):
        raise WireError(
            "training message: expected bins of time, each with the number of its last one; got others",
            "bins",
        )
    return found.astype(np.int64)


def moved(cases: Cases, bins: Bins) -> Cases:
    """Return rows whose times are the ends of the bins in which they count."""
    return Cases(bins[cases.strata, cases.bins, cases.fates], cases.fates, cases.strata, cases.groups)


WORK = {"survival": count_cases}
