"""Node stages: a feature's client half around a node's answer; `Stage` is the one around training.

`client_app.answer` runs the node stages of a run in the order of `task.features` and names none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from flwr.app import Context, RecordDict

from client_app.data.node import Node
from client_app.stages.merge import FoldPlan, Merge
from task.catalogue.entry import Algorithm
from task.wire import messages as wire

Query = Callable[[Node, RecordDict, Context], RecordDict]


@dataclass
class Asked:
    """A message of a phase as it came to a node."""

    node: Node
    content: RecordDict
    contract: Algorithm  # of the phase
    kind: str  # Flower's message type
    context: Context | None = None  # None where nothing is remembered between messages

    @property
    def phase(self) -> str:
        """The phase's name."""
        verb, _, name = self.kind.partition(".")
        return name or verb


class NodeStage:
    """A node stage that does nothing; the base of every other."""

    name: ClassVar[str] = ""  # of its feature, see `task.features`
    queries: ClassVar[Mapping[str, Query]] = {}  # handlers of the feature's own queries, by name

    def __init__(self, asked: Asked) -> None:
        self.asked = asked

    @property
    def answers(self) -> bool:
        """Whether it makes the answer or adds to it."""
        kind = type(self)
        return (kind.reply, kind.answered) != (NodeStage.reply, NodeStage.answered)

    @classmethod
    def absent(cls, asked: Asked) -> None:
        """Refuse a message of a run without this feature, if the message or the owner requires it.

        Raises:
            RefusedError: The owner of the node allows no run without it.
        """

    @classmethod
    def ready(cls, node: Node) -> None:
        """Refuse a run whose feature the node's data do not allow, when the node registers.

        Raises:
            BouquetError: Saying what the data lack.
        """

    def node(self, node: Node) -> Node:
        """Return the node as this message needs it."""
        return node

    def content(self, node: Node, content: RecordDict) -> RecordDict:
        """Return the message in the form of the phase's contract."""
        return content

    def check(self, content: RecordDict, order: wire.TrainOrder) -> None:
        """Refuse an order, given the message that it was read from."""

    def plan(self, node: Node, plan: FoldPlan, order: wire.TrainOrder) -> None:
        """Change how the uploads of the clients are checked and folded."""

    def reply(self, merged: Merge) -> RecordDict | None:
        """Return the answer of the node, given its clients' uploads; None leaves it to the others."""
        return None

    def answered(self, content: RecordDict) -> None:
        """Add to the answer before it leaves."""
