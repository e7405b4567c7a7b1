"""Counts of a client's rows by bin of time; `strategies.rules.kaplan_meier` has the whole.

Where the node's owner sets ``min-examples`` = m, every count that leaves the client is 0 or at least m: of
the persons of a group in a bin with the event, and of those without. For Cox's regression of p columns a bin
needs 10 p persons, and m of them for each value of a column of 0 and 1, and of each pair of these.

The client halves its bins as long as that is so (`task.classical.bins`), and tells the server which bins are
closed. Questions for other bins than unions of its own are refused: so the difference of two answers has no
fewer persons either. So is a group or stratum that has fewer persons in all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from task.classical.survival import FATES, Cases, Survival, survival_of
from task.errors import RefusedError, WireError
from task.numerics.row_sums import UNIT_BITS
from task.wire import messages as wire

Bins = npt.NDArray[np.int64]  # [strata, bins, fates]


@dataclass(frozen=True)
class Part:
    """Some of a client's rows, and how many of them a bin must have if it has any."""

    name: str
    rows: npt.NDArray[np.bool_]
    least: int


def count_cases(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Answer one question for each client: which bins of time are too small, or the counts."""
    survival = survival_of(node.config)
    strata, _, many, _ = survival.size

    def objections(client: str, table: NamedColumns) -> list[int]:
        cases = survival.cases(table)
        parts = parts_of(node, survival, cases, table)
        check_totals(survival, cases, parts, client)
        return objections_of(survival, cases, parts)

    def counts_of(client: str, table: NamedColumns) -> list[int]:
        cases = survival.cases(table)
        check_unions(bins, own_bins(survival, cases, parts_of(node, survival, cases, table)), client)
        return [n << UNIT_BITS for n in survival.counts(moved(cases, bins)).ravel().tolist()]

    (record,) = entry.up
    if record.name == OBJECTIONS:
        return answers(node, entry, order, strata * FATES * bits(survival.last), objections)
    bins = bins_in(sent(order, "bins", strata * many, FATES), survival)
    return answers(node, entry, order, math.prod(survival.size), counts_of)


def parts_of(node: Node, survival: Survival, cases: Cases, table: NamedColumns) -> list[Part]:
    """Return the parts of a client's rows that no bin may have few of; none where the owner sets no bound."""
    least = node.bounds.min_examples
    if not least:
        return []
    if "survival.columns" not in node.config.entry.reads:
        names = survival.names(survival.groups)
        return [Part(name, cases.groups == g, least) for g, name in enumerate(names)]
    design = cox_of(node.config).design
    return column_parts(design.names[1:], design.columns(table)[1:], least)


def column_parts(names: Sequence[str], columns: Sequence[Floats], least: int) -> list[Part]:
    """Return the parts of a regression's rows: all, by column of 0 and 1, and by pair of them."""
    everybody = np.ones(len(columns[0]), bool)
    found = [Part("the whole table", everybody, max(least, ROWS_PER_COLUMN * len(names)))]
    sides = [
        (name, [x == 1, x == 0])
        for name, x in zip(names, columns, strict=True)
        if ((x == 0) | (x == 1)).all()
    ]
    found += [Part(name, rows, least) for name, both in sides for rows in both]
    for (one, a), (other, b) in combinations(sides, 2):
        found += [Part(f"{one} and {other} together", x & y, least) for x in a for y in b]
    return found


def _by_part(survival: Survival, cases: Cases, parts: Sequence[Part]) -> npt.NDArray[np.int64]:
    """Return how many persons there are, [strata, fates, parts, bins]."""
    strata, _, many, _ = survival.size
    found = np.zeros((strata, FATES, len(parts), many), np.int64)
    for k, part in enumerate(parts):
        rows = part.rows
        np.add.at(found[:, :, k], (cases.strata[rows], cases.fates[rows], cases.bins[rows]), 1)
    return found


def _closed(survival: Survival, cases: Cases, parts: Sequence[Part]) -> npt.NDArray[np.bool_]:
    """Return which bins are closed, [strata, fates, bins of all levels]."""
    least = [part.least for part in parts]
    strata, each = survival.size[0], bits(survival.last)
    if not parts:
        return np.zeros((strata, FATES, each), np.bool_)
    counts = _by_part(survival, cases, parts)
    return np.stack([[closed(counts[s, f], least) for f in range(FATES)] for s in range(strata)])


def objections_of(survival: Survival, cases: Cases, parts: Sequence[Part]) -> list[int]:
    """Return by stratum and fate which bins are closed, in units of 2^-51."""
    return [int(bit) << UNIT_BITS for bit in _closed(survival, cases, parts).ravel().tolist()]


def own_bins(survival: Survival, cases: Cases, parts: Sequence[Part]) -> Bins:
    """Return the finest bins that a client answers for."""
    found = _closed(survival, cases, parts)
    return np.stack(
        [np.stack([merged(survival.last, bit.tolist()) for bit in stratum], axis=1) for stratum in found]
    )


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


def check_totals(survival: Survival, cases: Cases, parts: Sequence[Part], client: str) -> None:
    """Refuse a part of a stratum that has few persons with the event, or without.

    Raises:
        RefusedError: Naming the rule and the part.
    """
    totals = _by_part(survival, cases, parts).sum(axis=3)
    least = np.array([part.least for part in parts])
    for s, _, k in np.argwhere((totals > 0) & (totals < least)).tolist():
        stratum = f" of {survival.names(survival.strata)[s]}" if survival.strata else ""
        raise RefusedError(
            f"policy: min-examples: {parts[k].name}{stratum} would have fewer than {parts[k].least} persons "
            f"of client {client} with the event, or without it"
        )


def check_unions(asked: Bins, own: Bins, client: str) -> None:
    """Refuse bins, or cells of them, that divide a bin of the client's own.

    Raises:
        RefusedError: Naming the rule.
    """
    strata, many, fates = asked.shape
    s, _, f = np.ogrid[:strata, :many, :fates]
    if not (asked == asked[s, own, f]).all():
        raise RefusedError(
            f"policy: min-examples; a bin of time would have fewer persons of client {client} than its owner "
            "allows: only unions of the bins that the client did not close are answered"
        )
