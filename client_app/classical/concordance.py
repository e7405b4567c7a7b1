"""Counts of a client's rows by cell of time and bin of the risk score; see `task.classical.concordance`.

Where the owner sets ``min-examples`` = m, bins of the score are merged as those of time are: the client
halves them as long as each half has nobody or at least m persons of every cell. Under ``secagg`` the server
sees only the sum over at least three nodes, and the rule is one of all cells with the event together, and of
all without it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from client_app.classical.cox import asked_in
from client_app.classical.questions import answers, sent
from client_app.classical.survival import SurvivalRows, cuts_of
from client_app.data.node import Node
from client_app.stages.stage import Outcome
from task.catalogue.entry import Algorithm
from task.catalogue.survivals import OBJECTIONS
from task.classical.bins import are_bins, bits, closed, merged
from task.classical.columns import NamedColumns
from task.classical.concordance import in_merged, ranked
from task.classical.cox import cox_of
from task.errors import RefusedError, WireError
from task.numerics.row_sums import UNIT_BITS
from task.wire import messages as wire

Counts = npt.NDArray[np.int64]  # [cells, bins]


def rank_cases(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Answer for each client: which bins of the score are too small, or the counts in merged bins."""
    cox, least, masked = cox_of(node.config), node.bounds.min_examples, node.config.server.secagg
    if not cox.scores:
        raise WireError("training message: expected no question for concordance, as survival.concordance = 0")
    beta, cells = asked_in(cox, order)
    groups, last = int(cells.max()) + 1, cox.scores - 1

    def finest(client: str, table: NamedColumns) -> Counts:
        site = SurvivalRows.of(node, cox.survival, client, table)
        if least:
            site.check()
            site.check_unions(cells)
        cell = cells[site.cases.strata, site.cases.bins, site.cases.fates]
        return ranked(cox, cox.centred(table), beta, cell, groups)

    def objections(client: str, table: NamedColumns) -> list[int]:
        found = closed_scores(finest(client, table), least, masked=masked)
        return [int(bit) << UNIT_BITS for bit in found.tolist()]

    def counts_of(client: str, table: NamedColumns) -> list[int]:
        found = finest(client, table)
        own = merged(last, closed_scores(found, least, masked=masked).tolist())
        if not (ends == ends[own]).all():
            raise RefusedError(
                f"policy: min-examples; a bin of risk scores would have fewer persons of client {client} "
                "than its owner allows: only unions of the bins that the client did not close are answered"
            )
        return [n << UNIT_BITS for n in in_merged(found, ends).ravel().tolist()]

    cuts = cuts_of(cox.survival, cells)
    (record,) = entry.up
    if record.name == OBJECTIONS:
        return answers(node, entry, order, bits(last), objections, cuts=cuts)
    numbers = sent(order, "score-bins", cox.scores)[:, 0]
    if not are_bins(numbers):
        raise WireError(
            "training message: expected bins of risk scores, each with the number of its last; got others",
            "score-bins",
        )
    ends = numbers.astype(np.int64)
    return answers(node, entry, order, groups * len(np.unique(ends)), counts_of, cuts=cuts)


def closed_scores(counts: Counts, least: int, *, masked: bool) -> npt.NDArray[np.bool_]:
    """Return which bins of the score are closed at a site whose owner asks for `least` persons; 0 = none."""
    last = counts.shape[1] - 1
    if not least:
        return np.zeros(bits(last), np.bool_)
    parts = np.stack([counts[1::2].sum(axis=0), counts[::2].sum(axis=0)]) if masked else counts
    return closed(parts, [least] * len(parts))


WORK = {"ranks": rank_cases}
