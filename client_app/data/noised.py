"""A node whose answer has noise, so that it protects each row of its clients."""

from __future__ import annotations

from dataclasses import dataclass, fields

from client_app.data.node import Node
from task.privacy.row_noise import RowNoise


@dataclass(frozen=True)
class NoisedNode(Node):
    """A node that answers one message with noise."""

    noise: RowNoise | None = None

    @classmethod
    def of(cls, node: Node, noise: RowNoise) -> NoisedNode:
        """Return a node with the noise of its answer."""
        return cls(**{field.name: getattr(node, field.name) for field in fields(Node)}, noise=noise)


def noise_of(node: Node) -> RowNoise | None:
    """Return the noise of a node's answer; None = it is exact."""
    return node.noise if isinstance(node, NoisedNode) else None
