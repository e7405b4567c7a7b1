"""Store the global model of a message on the node, if its owner set ``keep-models``."""

from pathlib import Path

from client_app.data.node import Node, OneClient
from task.config.read import as_run_config
from task.resolve.kept_model import KeptModel, write_kept_model
from task.resolve.model_card import card_of
from task.text import logger
from task.wire import messages as wire


def keep_model(node: Node, order: wire.TrainOrder) -> None:
    """Write down the model of an order; a node that cannot says so in its log and trains all the same."""
    config, data, preparation = node.config, node.dataset, node.dataset.preparation
    own: dict[str, str | int] = {"partition-id": node.share[0], "num-partitions": node.share[1]}
    if isinstance(node.clients, OneClient):
        own = {"client-name": node.clients.names[0], "data-path": config.data.data_path}
    moments = preparation.moments if preparation else None
    card = card_of(config, data.input_shape, data.num_classes, data, moments)
    kept = KeptModel(order.run, order.round, as_run_config(config), own, order.void)
    arrays = node.whole(order.arrays.get(wire.ARRAYS, {}))
    try:
        write_kept_model(Path(node.owner.keep_models), config.run_name, arrays, card, kept)
    except OSError as err:
        logger.error("keep-models: the model of round %d was not stored: %s", order.round, err)
