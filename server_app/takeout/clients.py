"""The clients of a run whose state is on this machine: their own models, and parts that they keep.

What a client's own model is, only the clients' half of the program knows; this module alone asks it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from client_app.data.node import Node, open_node
from client_app.memory.memory import Memory
from client_app.own_models import kept_model
from client_app.vertical.party import Party
from server_app.takeout.last_order import without
from task.catalogue.entry import Algorithm
from task.config.knobs import Config
from task.datasets import Dataset
from task.datasets.columns import with_moments
from task.errors import ConfigError
from task.numerics.arrays import Arrays
from task.population import some
from task.resolve.contract import contract_of
from task.resolve.model_card import ModelCard
from task.wire import messages as wire


@dataclass(frozen=True)
class OwnModel:
    """A client's own model."""

    model: nn.Module
    name: str  # of the model, where the run's clients have several kinds
    dataset: Dataset
    tests: npt.NDArray[np.int64]  # the client's rows of the test


class Clients:
    """The clients of a run, with their data and their state; on the CPU and prepared as in training.

    Raises:
        BouquetError: The data cannot be read.
    """

    def __init__(self, config: Config, node_config: Mapping[str, Any], card: ModelCard) -> None:
        # The state lies in a folder by the run's name, in which changed keys stand.
        named = replace(config, output=replace(config.output, run_name=config.run_name))
        node = open_node(replace(named, train=replace(config.train, device="cpu", threads=0)), node_config)
        if card.moments and node.dataset.preparation:
            node = replace(node, dataset=with_moments(node.dataset, card.moments))
        self.node: Node = node

    def own_model(self, entry: Algorithm, order: wire.TrainOrder, given: Arrays) -> OwnModel:
        """Return the own model of the client of an order, `given` the arrays of the run's model.

        Raises:
            ConfigError: There is no such client.
            StateError: Its state is gone.
        """
        (client,), node = order.clients, self.node.at(order.round)
        names = node.clients.names
        if client not in names:
            raise ConfigError(f"--client: expected one of {some(list(names))}; got {client!r}")
        node = node.having(given)
        order = without(order, node.parts().frozen)
        model = kept_model(node, entry, order, client)
        tests = np.asarray(node.clients.test(node.clients.index(client)))
        return OwnModel(model, node.seen_by(client).model, node.dataset, tests)

    def kept(self, client: str, field: str, run: str) -> Arrays:
        """Return a field of a client's state after a run; {} = there is none."""
        order = wire.TrainOrder(0, {}, clients=(client,), run=run)
        (kept,) = Memory(self.node, contract_of(self.node.config), order).load([client], 0)
        return kept.get(field, {})

    def columns(self, client: str) -> slice:
        """Return which places along the last axis of an example a party has."""
        return Party(self.node, client).columns

    def labelled(self, client: str) -> bool:
        """Return whether a party has the labels."""
        return Party(self.node, client).labelled
