"""Counts by groups of people on a client's test data, as far as its owner lets them go."""

from __future__ import annotations

from client_app.data.node import Node
from client_app.stages.node_stage import NodeStage
from client_app.stages.stage import Stage
from task.errors import WireError
from task.fairness.counts import CountLayout
from task.fairness.groups import comparisons_of, named, places_of
from task.fairness.tested import counts_of
from task.features.groups import COUNTS, NAME
from task.numerics.arrays import Arrays
from task.tasks.evaluate import Test
from task.wire.layouts import ROWS


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
        return {COUNTS: {ROWS: counts}}
