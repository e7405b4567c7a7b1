"""The node's copy of the global model, from which the next rounds' codes go on (``codec.down``).

It lies with the clients' kept state, so that any process of the node may go on from it. It is a cache: what
cannot be written or read is asked for again.
"""

import os
from dataclasses import replace

from flwr.app import ConfigRecord, RecordDict
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from client_app.data.node import Node, OneClient
from client_app.memory.memory import store_of
from client_app.memory.state import StateStore
from client_app.stages.node_stage import NodeStage
from task.errors import StateError
from task.numerics.arrays import Arrays, NamedArrays
from task.storage.client_state import REPLICA
from task.storage.files import freeing_later, private
from task.text import logger
from task.wire import messages as wire
from task.wire.replica import MODEL, model_in


def with_model(node: Node, content: RecordDict) -> RecordDict:
    """Return a message with its model whole, whatever it came as; keep that model if codes may go on from it.

    Raises:
        WireError: Its codes go on from a model that this node does not have.
    """
    config = wire.records_of(content, ConfigRecord).get(wire.CONFIG, ConfigRecord())
    if MODEL not in config:
        return content
    part, parts = node.share
    name = node.clients.names[0] if isinstance(node.clients, OneClient) else f"{part}-of-{parts}"
    store, run = replace(store_of(node), scope=REPLICA), str(config.get("run", ""))
    try:
        mine: Arrays = load_file(store.path(name, run))
    except (OSError, SafetensorError):
        mine = {}
    model = model_in(content, node.config.codec, mine, node.parts().trainable)
    if model is not mine:
        try:
            _keep(store, name, run, model)
        except (OSError, SafetensorError, StateError) as err:
            what = "the model is not stored, so the next one must be sent whole"
            logger.error("codec.down: node %s, round %s: %s: %s", name, config.get("server-round"), what, err)
    return RecordDict({**content, wire.ARRAYS: wire.pack_arrays(model)})


def _keep(store: StateStore, name: str, run: str, model: NamedArrays) -> None:
    """Replace the copy; what a killed process has left of one is overwritten."""
    path = store.path(name, run)
    with store.lock(name, run):
        temp = path.with_name(f".{path.name}")
        os.close(private(str(temp), os.O_CREAT | os.O_WRONLY))
        save_file(dict(model), temp)
        with freeing_later(path, wait=store.durable):
            os.replace(temp, path)


class ReplicaNode(NodeStage):
    """Makes the model whole that came as codes."""

    name = "replica"

    def content(self, node: Node, content: RecordDict) -> RecordDict:
        """Return a message with its model whole."""
        return with_model(node, content)
