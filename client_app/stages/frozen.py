"""Client half of the frozen part: finds it by the SHA-256 that an order names, or takes it from the order."""

from dataclasses import replace

from flwr.app import RecordDict

from client_app.data.frozen import held, hold, is_held, part_of, store, stored
from client_app.data.node import Node, forget_whole
from client_app.stages.node_stage import NodeStage
from task.config.knobs import Config
from task.config.paths import state_root
from task.errors import ConfigError
from task.numerics.arrays import Arrays, sha256
from task.wire.frozen import FROZEN, digest_in, frozen_of, lost, without

_known: set[tuple[Config, str]] = set()  # runs of this process, and the digests of their frozen parts
_checked: set[tuple[Config, str]] = set()  # those of them whose tensors were looked at after a training


class FrozenNode(NodeStage):
    """Has the node use the frozen part that an order is for."""

    name = "frozen"

    @property
    def answers(self) -> bool:
        """Whether it makes the answer or adds to it: no, it looks at the model."""
        return False

    def node(self, node: Node) -> Node:
        """Return the node with the frozen part of the run's model, if the server says that it has one.

        Raises:
            WireError: The node lacks it, or got another one.
        """
        digest = digest_in(self.asked.content)
        if not digest:
            return node
        if not is_held(digest):
            hold(digest, self._find(node, digest))
        if (node.config, digest) not in _known:
            _known.add((node.config, digest))
            forget_whole()
        return replace(node, frozen=digest)

    def _find(self, node: Node, digest: str) -> Arrays:
        root = state_root(node.config)
        mine, arrays = node.own_frozen()
        if mine == digest:
            return arrays
        sent = frozen_of(self.asked.content, arrays)
        if sent is not None:
            return store(root, digest, sent)
        found = stored(root, digest, list(arrays))
        if found is None:
            raise lost(digest, mine)
        return found

    def content(self, node: Node, content: RecordDict) -> RecordDict:
        """Return the message without the frozen tensors."""
        return without(content) if FROZEN in content else content

    def answered(self, content: RecordDict) -> None:
        """Refuse a model whose training has changed what is frozen; once a process, as it reads all of it.

        Raises:
            ConfigError: Naming a tensor.
        """
        digest = digest_in(self.asked.content)
        run = self.asked.node.config, digest
        if not digest or run in _checked or self.asked.contract.work != "train":
            return
        node = replace(self.asked.node, frozen=digest)
        arrays = part_of(node.model(), held(digest))
        if sha256(arrays) != digest:
            moved = [n for n, a in held(digest).items() if a.tobytes() != arrays[n].tobytes()]
            raise ConfigError(
                'run-config key "model": expected frozen tensors that training leaves as they are; got a '
                f"change of {moved[0] if moved else next(iter(arrays))!r}, which a trial step left alone. "
                "Train it, or keep the module that changes it in evaluation mode"
            )
        _checked.add(run)
