"""The trees that parties with different columns have grown together, joined from the parts that they keep.

Each party keeps its own splits, and the party with the labels the shape and the leaves. In a simulation all
parts are in the state folder of this machine. Each is compared with the SHA-256 in the run's model file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from client_app.data.node import Node, open_node
from client_app.memory.memory import Memory
from client_app.vertical.party import Party
from server_app.results.folder import CONFIG, RunFolder
from server_app.takeout.model import find
from server_app.takeout.trees import TakenTrees
from task.catalogue.user_algorithm import algorithm_of
from task.classical.columns import Variable
from task.config.read import read_checked
from task.datasets import spec_of
from task.errors import ConfigError, StateError
from task.numerics.arrays import Arrays, NamedArrays, sha256
from task.references import check_origin
from task.resolve.contract import contract_of
from task.resolve.model_card import ModelCard, read_model
from task.trees.declared import Declared
from task.trees.objectives import LOGISTIC, SQUARED, Objective
from task.vertical import open_tree
from task.wire import messages as wire

_MOST = 1e30  # a column has no declared range


def joined_in(run: Path) -> TakenTrees | None:
    """Return the joined trees of a run; None if its parties have grown none.

    Raises:
        ConfigError: There is no such run, or its parts are not on this machine.
        StateError: A part is gone, or another model's.
    """
    path = find(run)
    card, digests = read_model(path)
    if algorithm_of(card.config.algorithm).work != "grow":
        return None
    folder = RunFolder(path.parent)
    if not (path.parent / CONFIG).exists():
        raise ConfigError(
            f"{path}: expected the folder of a run, which names the parties' state; got a model file, which "
            "has only the SHA-256 of each part"
        )
    keys = folder.config()["run"]
    check_origin(keys, path.parent / CONFIG)
    config = read_checked(keys)
    if spec_of(config.data.dataset).own and not config.data.data_path:
        raise ConfigError(
            f"{path}: expected a run that was simulated on this machine; got a deployed one. Each party's "
            "part of the trees, its columns and cuts, is in the state folder of its node and stays there. "
            "To have trees that can be taken out, simulate the run with one csv file of all columns"
        )
    node = open_node(replace(config, train=replace(config.train, device="cpu", threads=0)), {})
    parts = {name: _part(node, str(folder.config()["id"]), name, digests) for name in sorted(digests)}
    return _joined(card, node, parts)


def _part(node: Node, run: str, client: str, digests: NamedArrays) -> Arrays:
    """Return a party's part as it was kept.

    Raises:
        StateError: It is gone, or not that of the model file.
    """
    order = wire.TrainOrder(0, {}, clients=(client,), run=run)
    (kept,) = Memory(node, contract_of(node.config), order).load([client], 0)
    part = kept.get("part", {})
    if not part or sha256(part) != bytes(digests[client]).hex():
        raise StateError(
            f"client {client}: expected the part of the trees whose SHA-256 the model file has; got "
            f"{'another one' if part else 'none'}. `bouquet state` lists what is kept; run again with the "
            "same keys, and keep the state"
        )
    return part


def _joined(card: ModelCard, node: Node, parts: Mapping[str, Arrays]) -> TakenTrees:
    """Return the trees of all parts, over the parties' columns in the order of their names."""
    (label,) = (name for name in parts if Party(node, name).labelled)
    shape = node.dataset.input_shape
    index = np.arange(math.prod(shape)).reshape(shape)
    places = {name: index[..., Party(node, name).columns].ravel().tolist() for name in parts}
    whose = [name for name in parts for _ in places[name]]
    tables = {name: part for name, part in parts.items() if name != label}
    trees = open_tree.joined(parts[label], whose, tables, label)
    names = card.columns[:-1]
    if len(names) != index.size:  # categories, of which each level is a column
        names = tuple(f"x{j}" for j in range(index.size))
    classes = node.task.name == "classification"
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
