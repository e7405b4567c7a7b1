"""Counts and sums over a client's rows for statistics; `strategies.rules.statistics` has the whole.

Where the node's owner sets ``min-examples``, the client says first which cells it must not show
(`task.classical.disclosure`), and shows the others only if the server knows of those. With noise
(`task.classical.noised`) it answers in one question, whatever the cells hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from client_app.classical.questions import answers, sent
from client_app.data.node import Node
from client_app.data.noised import noise_of
from client_app.stages.stage import Outcome
from task.catalogue.entry import Algorithm
from task.catalogue.statistics import ASKED, CLOSED, CLOSED_CELLS
from task.classical.columns import NamedColumns
from task.classical.disclosure import closed_cells, closed_cuts, vetoes_of
from task.classical.noised import (
    ENDS,
    GRID,
    cut_totals,
    cuts_sensitivity,
    table_sensitivity,
    table_size,
    table_totals,
)
from task.classical.pooled import words_of
from task.classical.survey import Cut, SiteColumns, cut_of, cuts_in, survey_of
from task.errors import RefusedError, WireError
from task.privacy.row_noise import RowNoise
from task.wire import messages as wire


def count_rows(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Answer one question of descriptive statistics for each client.

    Raises:
        WireError: The server asks for cuts of no column's range.
    """
    survey = survey_of(node.config)
    try:
        cuts = cuts_in(survey, sent(order, ASKED, order.rows.get(ASKED, (0, 4))[0], 4))
    except ValueError as err:
        raise WireError(
            f"training message: expected cuts of columns' ranges; got {err.args[0]}", ASKED
        ) from None
    if noise := noise_of(node):
        return _noised(node, entry, order, cuts, noise)
    return _counted(node, entry, order, cuts)


def _noised(
    node: Node, entry: Algorithm, order: wire.TrainOrder, cuts: Sequence[Cut], noise: RowNoise
) -> Iterator[Outcome]:
    """Answer with counts and sums that have noise."""
    survey = survey_of(node.config)
    squared = cuts_sensitivity(cuts) if cuts else table_sensitivity(survey)

    def noised(client: str, table: NamedColumns) -> list[int]:
        site = SiteColumns.of(survey, table, clipped=True)
        totals = cut_totals(site, cuts) if cuts else table_totals(site)
        *found, variance = noise.added(client, totals, squared, GRID)
        return [*found, site.rows, variance]

    return answers(node, entry, order, (len(cuts) or table_size(survey)) + ENDS, noised)


def _counted(node: Node, entry: Algorithm, order: wire.TrainOrder, cuts: Sequence[Cut]) -> Iterator[Outcome]:
    """Answer with exact counts and sums, but of no cell with fewer rows than the owner allows."""
    survey, owner = survey_of(node.config), node.bounds
    least, ledger = owner.min_examples, owner.queries
    (record,) = entry.up
    allowed = owner.pooled_counts and survey.pooled_least >= least
    cells, size = (len(cuts), len(cuts)) if cuts else (survey.cells, survey.size)
    closing = record.name == CLOSED_CELLS
    shut = np.zeros(0) if closing else sent(order, CLOSED, cells)[:, 0]
    earlier = {client: ledger.cuts(client) if ledger and cuts else {} for client in order.clients}

    def of(client: str, table: NamedColumns) -> list[int]:
        site = SiteColumns.of(survey, table)
        own = closed_cells(site, least, missing=owner.missing_counts)
        if cuts:
            before = {i: earlier[client].get(survey.variables[i].name, ()) for i in survey.numbers}
            own = closed_cuts(site, cuts, own, least, before)
        if survey.pooled_least and not cuts:
            vetoes = vetoes_of(site, least, missing=owner.missing_counts)
            if closing:
                return words_of(site, own, vetoes, least, survey.pooled_least, allowed=allowed)
            if allowed:  # that enough persons of all sites are in the others, this node has to believe
                own = np.isin(np.arange(cells), list(vetoes.hard))
        if closing:
            return [int(flag) for flag in own]
        if (own & (shut <= 0)).any():
            raise RefusedError(
                f"policy: min-examples = {least}; the server asks for a cell of fewer persons of client "
                f"{client}"
            )
        if cuts:
            return [0 if closed else site.split(cut)[0] for cut, closed in zip(cuts, shut > 0, strict=True)]
        of_sums = survey.cell_of_sum().tolist()
        return [
            0 if cell >= 0 and shut[cell] > 0 else total
            for cell, total in zip(of_sums, site.sums(), strict=True)
        ]

    counted: dict[str, list[float]] = {}
    for cut, closed in zip(cuts, shut, strict=False):
        if closed <= 0:
            v = survey.variables[cut.part.variable]
            counted.setdefault(v.name, []).append(cut_of(v, cut.at))
    names = [v.name for v in survey.variables]
    return answers(node, entry, order, cells if closing else size, of, names, counted)


WORK = {"description": count_rows}
