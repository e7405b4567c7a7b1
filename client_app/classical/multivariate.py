"""Sums over a client's rows for clusters and principal components.

Where the node's owner sets ``min-examples`` = m, nothing is sent

* if a column of 0 and 1 has a cell of fewer than m persons, in all rows or in those of a cluster;
* for components, if two such columns together have one, or if there are fewer than ten rows for a column;
* for clusters, if one has some rows, but fewer than m; or
* for clusters without ``secagg``: from round to round few rows change their cluster, so that the difference
  of two answers of one client may be one person's numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from client_app.classical.cells import check_counts, check_rows, indicators
from client_app.classical.questions import answers, sent
from client_app.data.node import Node
from client_app.stages.stage import Outcome
from task.catalogue.entry import Algorithm
from task.catalogue.multivariate import CENTRES, OPENING, WEIGHTS
from task.classical.clusters import Clustering, clustering_of, nearest, opening_size, step_size, step_sums
from task.classical.columns import Floats, NamedColumns, Variable
from task.classical.components import components_of
from task.classical.moments import centred, moments_sums
from task.errors import RefusedError, WireError
from task.wire import messages as wire


def sum_products(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Answer the question of principal components for each client."""
    asked, least = components_of(node.config), node.bounds.min_examples

    def of(client: str, table: NamedColumns) -> list[int]:
        z = centred(asked.variables, table)
        if least:
            check_rows(table.rows, asked.p, least, client)
            _check_columns(asked.variables, table, np.arange(table.rows), least, client, pairs=True)
        return moments_sums(z, squares=False)

    return answers(node, entry, order, asked.size, of)


def sum_clusters(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Answer one question of k-means for each client."""
    asked, least = clustering_of(node.config), node.bounds.min_examples
    if entry.up[0].name == OPENING:
        return answers(node, entry, order, opening_size(asked.p), _opening(asked, least))
    centres = sent(order, CENTRES, asked.clusters, asked.p)
    weights = sent(order, WEIGHTS, asked.p)[:, 0]
    check_centres(asked, centres, weights)
    masked = node.config.server.secagg

    def of(client: str, table: NamedColumns) -> list[int]:
        columns = [table.of(v) for v in asked.variables]
        if least:
            check_clusters(asked, table, centres, weights.tolist(), least, client, masked=masked)
        return step_sums(asked, columns, centres, weights.tolist())

    return answers(node, entry, order, step_size(asked.clusters, asked.p), of)


def _opening(asked: Clustering, least: int) -> Callable[[str, NamedColumns], list[int]]:
    def of(client: str, table: NamedColumns) -> list[int]:
        if least:
            _check_columns(asked.variables, table, np.arange(table.rows), least, client)
        return moments_sums(centred(asked.variables, table), squares=True)

    return of


def check_centres(asked: Clustering, centres: Floats, weights: Floats) -> None:
    """Refuse centres that no rows could have, which would pick some.

    Raises:
        WireError: Naming the record.
    """
    low, high = (np.array([getattr(v, end) for v in asked.variables]) for end in ("low", "high"))
    if not ((centres >= low) & (centres <= high)).all():
        raise WireError("training message: expected centres within the declared ranges; got others", CENTRES)
    if not (weights > 0).all():
        raise WireError("training message: expected weights above 0; got others", WEIGHTS)


def check_clusters(
    asked: Clustering,
    table: NamedColumns,
    centres: Floats,
    weights: Sequence[float],
    least: int,
    client: str,
    *,
    masked: bool,
) -> None:
    """Refuse sums over few rows of a cluster, or such as would tell which rows have changed theirs.

    Raises:
        RefusedError: Naming the rule.
    """
    if not masked:
        raise RefusedError(
            f"policy: min-examples = {least}; few rows change their cluster in a round, so that sums of "
            f"client {client} alone would give away single ones. Use secagg = true"
        )
    which, _ = nearest([table.of(v) for v in asked.variables], centres, weights)
    for k in range(asked.clusters):
        rows = np.flatnonzero(which == k)
        if 0 < len(rows) < least:
            raise RefusedError(
                f"policy: min-examples = {least}; cluster {k} would have fewer rows of client {client}. Use "
                "fewer clusters or another start"
            )
        _check_columns(asked.variables, table, rows, least, client)


def _check_columns(
    variables: Sequence[Variable],
    table: NamedColumns,
    rows: npt.NDArray[np.int64],
    least: int,
    client: str,
    *,
    pairs: bool = False,
) -> None:
    found = indicators((v.name, v.name, table.of(v)[rows]) for v in variables)
    check_counts(found, len(rows), least, client, pairs=pairs)


WORK = {"clusters": sum_clusters, "components": sum_products}
