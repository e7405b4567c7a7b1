"""Sums over a client's rows for Cox's regression; `strategies.rules.cox` has the whole.

The rules of `client_app.classical.survival` hold for its cells. Where the owner sets ``min-examples`` = m,
the client also refuses coefficients that give most of the weight of a cell to fewer than m persons.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from client_app.classical.questions import answers, sent
from client_app.classical.survival import SurvivalRows, cuts_of
from client_app.data.node import Node
from client_app.stages.stage import Outcome
from task.catalogue.entry import Algorithm
from task.classical.columns import Floats, NamedColumns
from task.classical.cox import MOST_SUMS, Cells, Cox, cell_sums, cox_of, hazards_of
from task.classical.survival import FATES
from task.errors import RefusedError, WireError
from task.wire import messages as wire


def sum_cells(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Answer for each client with the sums of the cells at the coefficients that came."""
    cox, least = cox_of(node.config), node.bounds.min_examples
    beta, cells = asked_in(cox, order)
    groups = int(cells.max()) + 1

    def of(client: str, table: NamedColumns) -> list[int]:
        site, centred = SurvivalRows.of(node, cox.survival, client, table), cox.centred(table)
        cell = cells[site.cases.strata, site.cases.bins, site.cases.fates]
        if least:
            site.check()
            site.check_unions(cells)
            check_weights(centred, beta, cell, least, client)
        return cell_sums(cox, centred, beta, cell, groups)

    cuts = cuts_of(cox.survival, cells)
    return answers(node, entry, order, groups * cox.triangle + 1, of, cuts=cuts)


def asked_in(cox: Cox, order: wire.TrainOrder) -> tuple[list[float], Cells]:
    """Return the coefficients and the cells of a question; raises as `sent` and `cells_in_order` do."""
    strata, _, many, _ = cox.survival.size
    beta = [float(b) for b in sent(order, "coefficients", cox.p)[:, 0]]
    return beta, cells_in_order(cox, sent(order, "cells", strata * many, FATES))


def cells_in_order(cox: Cox, numbers: npt.NDArray[np.float64]) -> Cells:
    """Return the cells of a question.

    Raises:
        WireError: They are none, or there are too many.
    """
    strata, _, many, _ = cox.survival.size
    most = MOST_SUMS // cox.triangle
    if not ((numbers == np.rint(numbers)) & (numbers >= 0) & (numbers < most)).all():
        raise WireError(f"training message: expected numbers of cells below {most}; got others", "cells")
    return numbers.astype(np.int64).reshape(strata, many, FATES)


def check_weights(
    centred: Sequence[Floats], beta: Sequence[float], cell: npt.NDArray[np.int64], least: int, client: str
) -> None:
    """Refuse coefficients under which few persons have most of the weight of a cell.

    Raises:
        RefusedError: Naming the rule.
    """
    r, _ = hazards_of(centred, beta)
    total, square = np.bincount(cell, r), np.bincount(cell, r * r)
    if (total * total < least * square).any():
        raise RefusedError(
            f"policy: min-examples = {least}; with these coefficients fewer persons of client {client} would "
            "have most of the weight in a bin of time"
        )


WORK = {"hazards": sum_cells}
