"""Histograms of a client's rows for boosted trees; `strategies.rules.gbdt` has the whole.

A client keeps its rows' margins to the next question, on a deployed node in a file
(`client_app.classical.margins`). Where it has lost them, it makes them again from all trees
(`task.trees.orders`), so that nothing that it keeps changes an answer.

A bound on a site's own cells would change the trees with the division of the rows. So where the node's owner
sets ``min-examples`` = m, the bound is on the sums over all sites. Nothing is sent

* without ``secagg``, as the sums of one site's few rows in a cell would tell of single ones;
* if a leaf or a bin may have fewer than m rows of all sites (``gbdt.min-child-count``);
* of exact quantiles, which are somebody's values, or of other cuts than declared ones; or
* of fewer than m rows of the client.

Where noise protects each row (`task.trees.noised`), the bound is the owner's limit of epsilon instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from client_app.classical.margins import margins_kept
from client_app.classical.questions import answer_rows, answers, sent, table_of
from client_app.data.node import Node
from client_app.data.noised import noise_of
from client_app.stages.stage import Outcome
from task.catalogue.entry import Algorithm
from task.catalogue.trees import BASE, COUNTS, HISTOGRAMS, KNOWN, LOSSES, PIVOTS
from task.classical.columns import NamedColumns
from task.errors import DataError, RefusedError, WireError
from task.trees.boosting import Boosting, boosting_of
from task.trees.cuts import QUANTILES
from task.trees.noised import ENDS, GRID, sensitivity
from task.trees.orders import TreeOrder, read_order, widths
from task.trees.rows import BoostedRows
from task.wire import messages as wire

Ints = npt.NDArray[np.int64]
_MOST = 2**26  # numbers of all clients that are kept to the next question
_kept: dict[tuple[object, ...], BoostedRows] = {}
_lock = threading.Lock()


def sum_histograms(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Answer one question about trees for each client.

    Raises:
        WireError: The question is not one about this run's columns and cuts.
    """
    boosting = boosting_of(node.config)
    (record,) = entry.up

    def rows_of(client: str, table: NamedColumns) -> BoostedRows:
        if not boosting.noised:
            check_owner(node, boosting, table.rows, client)
        return _rows(node, boosting, client, table)

    if record.name == BASE:
        size = BoostedRows.base_size(boosting)
        return answers(node, entry, order, size, lambda client, table: rows_of(client, table).base())
    if record.name == COUNTS:
        pivots = sent(order, PIVOTS, order.rows.get(PIVOTS, (0, 2))[0], 2)
        check_pivots(boosting, pivots)
        wanted = (len(pivots), 1)
        return answer_rows(
            node, entry, order, wanted, lambda client, table: rows_of(client, table).counts(pivots)
        )
    asked = order_of(boosting, order)
    if record.name == LOSSES:

        def losses(client: str, table: NamedColumns) -> list[int]:
            rows = rows_of(client, table)
            with margins_kept(node, order, client, rows):
                return rows.losses(asked)

        return answers(node, entry, order, BoostedRows.losses_size(), losses)
    assert record.name == HISTOGRAMS
    return _histograms(node, entry, order, asked, rows_of)


def _histograms(
    node: Node,
    entry: Algorithm,
    order: wire.TrainOrder,
    asked: TreeOrder,
    rows_of: Callable[[str, NamedColumns], BoostedRows],
) -> Iterator[Outcome]:
    """Answer the question for histograms of nodes, with noise where that protects each row."""
    (record,), boosting, noise = entry.up, boosting_of(node.config), noise_of(node)
    # The number of cells follows from the cuts, which a client may lack that has not begun.
    size, _ = order.rows.get(record.name, (0, 0))
    if size > (most := 1 + ENDS + len(asked.asked) * boosting.most_numbers):
        raise WireError(
            f"training message: expected a question for at most {most} numbers; got {size}", record.name
        )

    def histograms(client: str, table: NamedColumns) -> Ints:
        rows = rows_of(client, table)
        with margins_kept(node, order, client, rows):
            if not boosting.noised:
                return rows.histograms(asked, size)
            totals = rows.noised(asked, size - 1 - ENDS)
        assert noise is not None
        if totals is None:
            return np.array([1, *[0] * (size - 1)], np.int64)[:, None]
        squared = sensitivity(boosting.objective, len(asked.columns))
        return np.array([0, *noise.added(client, totals, squared, GRID)], np.int64)[:, None]

    return answer_rows(node, entry, order, (size, 1), histograms)


def check_terms(node: Node) -> None:
    """Refuse to register for trees that would be refused later, masked and so without a reason.

    Raises:
        RefusedError: As `check_owner`, of one of the node's clients.
        BouquetError: As `NamedColumns.of`: the node's rows lack a column, or have values beyond its range.
    """
    boosting, data = boosting_of(node.config), node.dataset
    for client, rows in zip(node.clients.names, node.clients.num_train(), strict=True):
        if not boosting.noised:
            check_owner(node, boosting, int(rows), client)
    table = table_of(data, np.arange(len(data.y)))
    boosting.x(table, clipped=boosting.noised)
    boosting.y(table, clipped=boosting.noised)


def order_of(boosting: Boosting, order: wire.TrainOrder) -> TreeOrder:
    """Return what came with a question.

    Raises:
        WireError: Naming what it should be.
    """
    wide = widths(boosting)
    try:
        return read_order(
            boosting, lambda name: sent(order, name, order.rows.get(name, (0, 0))[0], wide[name])
        )
    except DataError as err:
        raise WireError(f"training message: {err}", KNOWN) from None


def check_pivots(boosting: Boosting, pivots: np.ndarray) -> None:
    """Refuse counts up to other values than candidates, or just below one.

    Raises:
        WireError: Naming the record.
    """
    good = np.isin(pivots[:, 0], np.arange(len(boosting.numbers)))
    for j, candidates in enumerate(boosting.candidates):
        values = pivots[pivots[:, 0] == j, 1].astype(np.float32)
        above = np.nextafter(values, np.float32(np.inf))
        good[pivots[:, 0] == j] = candidates.has(values) | candidates.has(above)
    if not good.all():
        raise WireError(
            "training message: expected candidates for cuts of the run's columns; got others", PIVOTS
        )


def check_owner(node: Node, boosting: Boosting, rows: int, client: str) -> None:
    """Refuse what the owner's bound does not allow.

    Raises:
        RefusedError: Naming the rule.
    """
    least = node.bounds.min_examples
    if not least:
        return
    if not node.config.server.secagg:
        why = f"sums of client {client} alone would tell of single rows. Use secagg = true"
    elif boosting.least < least:
        why = (
            f"leaves and bins may have {boosting.least} rows of all sites. Set gbdt.min-child-count = {least}"
        )
    elif boosting.cuts == QUANTILES:
        why = 'exact quantiles are values of single rows. Set gbdt.cuts = "grid"'
    elif rows < least:
        why = f"client {client} has fewer rows"
    else:
        return
    raise RefusedError(f"policy: min-examples = {least}; {why}")


def _rows(node: Node, boosting: Boosting, client: str, table: NamedColumns) -> BoostedRows:
    """Return a client's rows with what is kept of them; the clients that were asked last are kept."""
    data = node.dataset
    if not data.fingerprint:  # other data could not be told from these
        return BoostedRows.of(boosting, client, table)
    key = (data.fingerprint, data.round, boosting, client, table.rows)
    with _lock:
        found = _kept.pop(key, None)
    found = found or BoostedRows.of(boosting, client, table)
    with _lock:
        _kept[key] = found
        while len(_kept) > 1 and sum(rows.size for rows in _kept.values()) > _MOST:
            del _kept[next(iter(_kept))]
    return found


WORK = {"boosting": sum_histograms}
TERMS = {"boosting": check_terms}
