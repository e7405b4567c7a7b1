"""The trees that parties with different columns have grown together, joined from the parts that they keep.

Each party keeps its own splits, and the party with the labels the shape and the leaves. In a simulation all
parts are in the state folder of this machine. Each is compared with the SHA-256 in the run's model file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from server_app.takeout.clients import Clients
from server_app.takeout.trees import GrownTrees, TakenTrees
from task.classical.columns import Variable
from task.datasets import spec_of
from task.errors import ConfigError, StateError
from task.numerics.arrays import Arrays, NamedArrays, sha256
from task.resolve.model_card import ModelCard
from task.trees.declared import Declared
from task.trees.objectives import LOGISTIC, SQUARED, Objective
from task.vertical import open_tree

_MOST = 1e30  # a column has no declared range


class JoinedTrees(GrownTrees):
    """The trees of a run of parties."""

    missing = True

    @cached_property
    def grown(self) -> TakenTrees:
        """The trees, joined.

        Raises:
            ConfigError: The parts are not on this machine.
            StateError: A part is gone, or another model's.
        """
        path, folder = self.file.path, self.file.folder
        if folder is None:
            raise ConfigError(
                f"{path}: expected the folder of a run, which names the parties' state; got a model file, "
                "which has only the SHA-256 of each part"
            )
        config = self.file.config
        if spec_of(config.data.dataset).own and not config.data.data_path:
            raise ConfigError(
                f"{path}: expected a run that was simulated on this machine; got a deployed one. Each "
                "party's part of the trees, its columns and cuts, is in the state folder of its node and "
                "stays there. To have trees that can be taken out, simulate the run with one csv file of "
                "all columns"
            )
        clients, run = Clients(config, {}, self.file.card), str(folder.config()["id"])
        digests = self.file.arrays
        return joined(
            self.file.card, clients, {name: _part(clients, run, name, digests) for name in sorted(digests)}
        )


TAKES = {"grow": JoinedTrees}


def _part(clients: Clients, run: str, client: str, digests: NamedArrays) -> Arrays:
    """Return a party's part as it was kept.

    Raises:
        StateError: It is gone, or not that of the model file.
    """
    part = clients.kept(client, "part", run)
    if not part or sha256(part) != bytes(digests[client]).hex():
        raise StateError(
            f"client {client}: expected the part of the trees whose SHA-256 the model file has; got "
            f"{'another one' if part else 'none'}. `bouquet state` lists what is kept; run again with the "
            "same keys, and keep the state"
        )
    return part


def joined(card: ModelCard, clients: Clients, parts: Mapping[str, Arrays]) -> TakenTrees:
    """Return the trees of all parts, over the parties' columns in the order of their names."""
    (label,) = (name for name in parts if clients.labelled(name))
    shape = clients.node.dataset.input_shape
    index = np.arange(math.prod(shape)).reshape(shape)
    places = {name: index[..., clients.columns(name)].ravel().tolist() for name in parts}
    whose = [name for name in parts for _ in places[name]]
    tables = {name: part for name, part in parts.items() if name != label}
    trees = open_tree.joined(parts[label], whose, tables, label)
    names = card.columns[:-1]
    if len(names) != index.size:  # categories, of which each level is a column
        names = tuple(f"x{j}" for j in range(index.size))
    classes = clients.node.task.name == "classification"
    target = Variable(
        card.columns[-1] if card.columns else "target", "data", levels=card.names if classes else ()
    )
    columns = [names[place] for name in parts for place in places[name]]
    declared = Declared(
        tuple(Variable(name, "data", -_MOST, _MOST) for name in columns),
        target,
        Objective(LOGISTIC if classes else SQUARED),
    )
    return TakenTrees(replace(card, taken={"parts": "joined"}), declared, trees)
