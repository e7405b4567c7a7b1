"""Counts by groups of people on a client's test data, as far as its owner lets them go."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from client_app.data.node import Node
from client_app.stages.node_stage import NodeStage
from client_app.stages.stage import Stage
from task.errors import WireError
from task.fairness.counts import CountLayout
from task.fairness.groups import Comparison, comparisons_of, named, places_of
from task.fairness.tested import counts_of
from task.features.groups import COUNTS, NAME
from task.numerics.arrays import Arrays
from task.privacy.query_ledger import QueryLedger, digests, row_digests
from task.tasks.evaluate import Test
from task.wire.layouts import ROWS

PEOPLE = "groups of people"  # what a ledger calls these counts


class GroupsNode(NodeStage):
    """Checks a node's columns before round 1."""

    name = NAME

    @classmethod
    def ready(cls, node: Node) -> None:
        """Refuse data without the columns of the groups, or with values that the run does not name.

        Raises:
            ConfigError: Naming the column, and those that there are.
            DataError: Naming the column.
        """
        for comparison in named(comparisons_of(node.config.groups)):
            places_of(comparison, node.dataset, slice(None))


class GroupCounts(Stage):
    """Counts by group what a client's model predicts."""

    names = (NAME,)

    def tested(self, client: str, test: Test) -> dict[str, Arrays]:
        """Return the record of counts.

        Raises:
            WireError: The server asks for another number of them.
        """
        node, comparisons = self.node, named(comparisons_of(self.node.config.groups))
        layout, asked = CountLayout(node.dataset.num_classes), self.order.rows.get(COUNTS)
        wanted = sum(len(comparison.names) for comparison in comparisons), layout.width
        if asked != wanted:
            raise WireError(
                f"evaluation message: expected {wanted[0]} groups with {wanted[1]} counts each; got {asked}",
                COUNTS,
            )
        rows = node.clients.test(node.clients.index(client))
        least = node.bounds.min_examples
        counts = counts_of(comparisons, node.dataset, rows, test, node.task, node.device, least)
        if node.bounds.queries is not None and least > 1:
            self._audit(node.bounds.queries, client, comparisons, rows, layout.parts(counts).people > 0)
        return {COUNTS: {ROWS: counts}}

    def _audit(
        self,
        ledger: QueryLedger,
        client: str,
        comparisons: Sequence[Comparison],
        rows: npt.NDArray[np.int64],
        shown: npt.NDArray[np.bool_],
    ) -> None:
        """Write down whose counts leave the node; `shown` are the groups of which something is said.

        Raises:
            RefusedError: A group has almost the same people as one of an earlier run.
        """
        node, data = self.node, self.node.dataset
        aside = [] if data.aside is None else [data.aside[rows].astype("U")]
        each = row_digests(data.x[rows], data.y[rows], *aside)
        places = [places_of(comparison, data, rows) for comparison in comparisons]
        groups = [
            each[at == i] for c, at in zip(comparisons, places, strict=True) for i in range(len(c.names))
        ]
        used = [digests(group) for group, said in zip(groups, shown, strict=True) if said]
        about = {
            "question": f"{NAME} = {node.config.groups}",
            "run": self.order.run,
            "round": self.order.round,
        }
        ledger.ask(client, {PEOPLE: used}, digests(each), node.bounds.min_examples, about, once=True)
