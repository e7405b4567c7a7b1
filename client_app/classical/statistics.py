"""Counts and sums over a client's rows for descriptive statistics; `strategies.rules.statistics` has the whole.

Where the node's owner sets ``min-examples``, the client says first which cells it must not show
(`task.classical.disclosure`), and shows the others only if the server knows of those.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from client_app.classical.questions import answers, sent
from client_app.data.node import Node
from client_app.stages.stage import Outcome
from task.catalogue.entry import Algorithm
from task.catalogue.statistics import ASKED, CLOSED, CLOSED_CELLS
from task.classical.columns import NamedColumns
from task.classical.disclosure import closed_cells, closed_parts, few
from task.classical.survey import Part, SiteColumns, parts_in, survey_of
from task.errors import RefusedError, WireError
from task.wire import messages as wire


def count_rows(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Answer one question of descriptive statistics for each client.

    Raises:
        WireError: The server asks for parts of no column's range.
    """
    survey, least = survey_of(node.config), node.bounds.min_examples
    (record,) = entry.up
    try:
        parts = parts_in(survey, sent(order, ASKED, order.rows.get(ASKED, (0, 3))[0], 3))
    except ValueError as err:
        raise WireError(
            f"training message: expected parts of columns' ranges; got {err.args[0]}", ASKED
        ) from None
    cells, size = (len(parts), len(parts)) if parts else (survey.cells, survey.size)
    closing = record.name == CLOSED_CELLS
    shut = np.zeros(0) if closing else sent(order, CLOSED, cells)[:, 0]

    def of(client: str, table: NamedColumns) -> list[int]:
        site = SiteColumns.of(survey, table)
        own = closed_cells(site, least, missing=node.bounds.missing_counts)
        if parts:
            own = closed_parts(site, parts, own, least) | between_cuts(node, client, site, parts, least)
        if closing:
            return [int(flag) for flag in own]
        if (own & (shut <= 0)).any():
            raise RefusedError(
                f"policy: min-examples = {least}; the server asks for a cell of fewer persons of client {client}"
            )
        if parts:
            return [
                0 if closed else site.halves(part)[0] for part, closed in zip(parts, shut > 0, strict=True)
            ]
        of_sums = survey.cell_of_sum().tolist()
        return [
            0 if cell >= 0 and shut[cell] > 0 else total
            for cell, total in zip(of_sums, site.sums(), strict=True)
        ]

    names = [v.name for v in survey.variables]
    cuts: dict[str, list[float]] = {}
    for part, closed in zip(parts, shut, strict=False):  # those that are counted
        if closed <= 0:
            v = survey.variables[part.variable]
            cuts.setdefault(v.name, []).append(part.edges(v)[1])
    return answers(node, entry, order, cells if closing else size, of, names, cuts)


def between_cuts(
    node: Node, client: str, site: SiteColumns, parts: Sequence[Part], least: int
) -> npt.NDArray[np.bool_]:
    """Return which parts have few persons between their middle and a cut of an earlier question.

    Runs that declare other ranges cut a column elsewhere.
    """
    found = np.zeros(len(parts), bool)
    ledger = node.bounds.queries
    if ledger is None or least <= 1:
        return found
    earlier = {i: ledger.cuts(client, site.survey.variables[i].name) for i in {p.variable for p in parts}}
    for j, part in enumerate(parts):
        middle = part.edges(site.survey.variables[part.variable])[1]
        at = bisect_left(earlier[part.variable], middle)
        near = earlier[part.variable][max(at - 1, 0) : at + 1]
        counted = site.below(part.variable, middle)
        found[j] = any(few(abs(site.below(part.variable, cut) - counted), least) for cut in near)
    return found
