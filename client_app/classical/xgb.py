"""Trees that XGBoost grows from a client's rows, and their test; `strategies.rules.xgb` has the whole.

Where the node's owner sets ``min-examples`` = m, nothing is sent

* if fewer than m rows have a class; or
* if a leaf of the new trees has fewer than m rows, which its value and its sum of derivatives speak of.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from client_app.classical.cells import check_counts
from client_app.classical.questions import answers, sent, table_of
from client_app.data.node import Node
from client_app.stages.stage import Outcome, each
from task.catalogue.entry import MOST_EXAMPLES, Algorithm
from task.catalogue.xgb import BASE, BASE_SUMS, NEW, TREES
from task.classical.columns import NamedColumns
from task.errors import DataError, FieldError, RefusedError, WireError
from task.numerics.row_sums import row_sums
from task.resolve.analyses import declared_of
from task.trees.declared import Declared
from task.trees.ensemble import LEAF, TreeEnsemble, Values
from task.trees.objectives import SQUARED
from task.trees.packed import packed, unpacked
from task.trees.xgb import XGBoosting, grown, library, xgb_of
from task.wire import messages as wire
from task.wire.checks import NO_TESTS
from task.wire.layouts import ROWS


def grow_trees(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Answer the question for sums over the target, or grow each client's trees of a round.

    Raises:
        ConfigError: The package xgboost is missing; before round 1.
        WireError: What came down are not trees over the declared columns.
    """
    library()
    asked, least = xgb_of(node.config), node.bounds.min_examples
    if entry.up[0].name == BASE_SUMS:
        return answers(
            node, entry, order, 1 + asked.objective.classes, lambda c, t: _base(asked, t, least, c)
        )
    trees, (nodes, width) = _received(asked, order), order.rows.get(NEW, (0, 0))
    if width != asked.width or nodes > asked.most_nodes(MOST_EXAMPLES):
        raise WireError(
            f"training message: expected at most {asked.most_nodes(MOST_EXAMPLES)} nodes of {asked.width} "
            f"numbers; got {nodes} of {width}",
            NEW,
        )

    def of(client: str) -> wire.ClientUpdate:
        chosen = node.clients.train(node.clients.index(client))
        table = table_of(node.dataset, chosen)
        x, y = asked.x(table), asked.y(table)
        new = grown(asked, trees, x, y, order.round, client)
        if least:
            check_leaves(new, x, least, client)
        return wire.ClientUpdate({NEW: {ROWS: packed(new, width, nodes)}}, {wire.NUM_EXAMPLES: len(chosen)})

    return each(order.clients, of)


def measure_trees(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Measure the trees on each client's test rows: loss, a mean squared error or log loss, and accuracy.

    Raises:
        WireError: What came down are not trees over the declared columns.
    """
    declared = declared_of(node.config)
    trees, objective = _received(declared, order), declared.objective

    def of(client: str) -> wire.ClientUpdate:
        chosen = node.clients.test(node.clients.index(client))
        if not len(chosen):
            raise FieldError(NO_TESTS, 'own test examples (run-config key "local-test-fraction")', "none")
        table = table_of(node.dataset, chosen)
        losses, wrong = objective.losses(trees.margins(declared.x(table)), declared.y(table))
        found = {"loss": float(losses.mean()) * 4.0**objective.shift, wire.NUM_EXAMPLES: len(chosen)}
        if objective.name != SQUARED:
            found["accuracy"] = 1.0 - float(wrong.mean())
        return wire.ClientUpdate({}, found)

    return each(order.clients, of)


def _received(declared: Declared, order: wire.TrainOrder) -> TreeEnsemble:
    """Return the model that came with an order.

    Raises:
        WireError: What came are not trees over the declared columns.
    """
    base = sent(order, BASE, 1, declared.objective.classes)[0]
    nodes = sent(order, TREES, len(order.arrays[TREES][ROWS]), declared.width)
    try:
        return unpacked(nodes, base, len(declared.variables))
    except DataError as err:
        raise WireError(f"training message: {err}", TREES) from None


def _base(asked: XGBoosting, table: NamedColumns, least: int, client: str) -> list[int]:
    """Return the rows and the sums of the target, in units of 2^-51."""
    y, objective = asked.y(table), asked.objective
    terms = objective.base_terms(y, asked.target.scale)
    if least and objective.name != SQUARED:
        names = asked.target.levels[-terms.shape[1] :] or (asked.target.name,)
        cells = [(name, asked.target.name, terms[:, k] == 1) for k, name in enumerate(names)]
        check_counts(cells, len(y), least, client)
    return row_sums(np.concatenate([np.ones((len(y), 1)), terms], axis=1), "the target")


def check_leaves(trees: TreeEnsemble, x: Values, least: int, client: str) -> None:
    """Refuse trees of which a leaf has fewer than `least` rows, whether a few or none.

    Raises:
        RefusedError: Naming the rule and what would help.
    """
    for tree in range(trees.trees):
        leaves = np.flatnonzero(trees.feature[trees.span(tree)] == LEAF)
        counts = np.bincount(trees.leaves(x, tree), minlength=leaves.max() + 1)[leaves]
        if counts.min() < least:
            raise RefusedError(
                f"policy: min-examples = {least}; a leaf of a tree of client {client} would have fewer rows. "
                "Raise xgb.min-child-weight, or lower xgb.max-depth"
            )


WORK = {"trees": grow_trees, "tree-test": measure_trees}
