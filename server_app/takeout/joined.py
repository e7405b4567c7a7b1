"""The trees that parties with different columns have grown together, joined from the parts that they keep.

Each party keeps its own splits, and the party with the labels the shape and the leaves. In a simulation all
parts are in the state folder of this machine. Each is compared with the SHA-256 in the run's model file.

Rows are read by the columns of the run's own table, whatever their names. The trees split what a model reads
of them: a number, or whether a category has a value, which is called ``column=value`` as in other models that
are exported. Data without names of columns, such as pictures, are read by place: ``x0``, ``x1``, ...
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from server_app.takeout.clients import Clients
from server_app.takeout.declared_rows import Reader
from server_app.takeout.trees import GrownTrees, TakenTrees
from task.classical.columns import Variable
from task.datasets import spec_of
from task.datasets.header import TypedColumn, read_column
from task.errors import ConfigError, StateError
from task.numerics.arrays import Arrays, NamedArrays, sha256
from task.trees.declared import Declared
from task.trees.ensemble import Values
from task.trees.objectives import LOGISTIC, SQUARED, Objective
from task.vertical import open_tree

_MOST = 1e30  # a column has no declared range


class JoinedTrees(GrownTrees):
    """The trees of a run of parties."""

    missing = True

    @cached_property
    def clients(self) -> Clients:
        """The parties, with what they keep.

        Raises:
            ConfigError: It is not on this machine.
        """
        path, config = self.file.path, self.file.config
        if self.file.folder is None:
            raise ConfigError(
                f"{path}: expected the folder of a run, which names the parties' state; got a model file, "
                "which has only the SHA-256 of each part"
            )
        if spec_of(config.data.dataset).own and not config.data.data_path:
            raise ConfigError(
                f"{path}: expected a run that was simulated on this machine; got a deployed one. Its trees "
                "cannot be taken out: each party's columns and cuts stay in the state folder of its node. "
                "The parties have measured them on their common test rows: client_loss in rounds.jsonl. To "
                "take trees out, simulate the run from one csv file of all columns: bouquet run with "
                'data-path = "FILE.csv", and columns = how many each party has'
            )
        return Clients(config, {}, self.file.card)

    @cached_property
    def places(self) -> Mapping[str, list[int]]:
        """By party, in the order of their names, the places of its inputs among those of an example."""
        shape = self.clients.node.dataset.input_shape
        index = np.arange(math.prod(shape)).reshape(shape)
        return {n: index[..., self.clients.columns(n)].ravel().tolist() for n in sorted(self.file.arrays)}

    @cached_property
    def inputs(self) -> list[tuple[TypedColumn, str]]:
        """What the trees split, in their order: a column, and the value of a category or ""."""
        columns = [read_column(name) for name in self.file.card.columns[:-1]]
        listed = [(c, value) for c in columns for value in c.values or ("",)]
        chosen = [place for places in self.places.values() for place in places]
        return [listed[place] if listed else (TypedColumn(f"x{place}"), "") for place in chosen]

    @cached_property
    def grown(self) -> TakenTrees:
        """The trees, joined.

        Raises:
            ConfigError: The parts are not on this machine.
            StateError: A part is gone, or another model's.
        """
        clients, card = self.clients, self.file.card
        assert self.file.folder is not None
        run, digests = str(self.file.folder.config()["id"]), self.file.arrays
        parts = {name: _part(clients, run, name, digests) for name in self.places}
        (label,) = (name for name in parts if clients.labelled(name))
        whose = [name for name, places in self.places.items() for _ in places]
        tables = {name: part for name, part in parts.items() if name != label}
        trees = open_tree.joined(parts[label], whose, tables, label)
        classes = clients.node.task.name == "classification"
        levels = card.names if classes else ()
        declared = Declared(
            tuple(_number(f"{c.name}={value}" if value else c.name) for c, value in self.inputs),
            Variable(card.columns[-1] if card.columns else "target", "data", levels=levels),
            Objective(LOGISTIC if classes else SQUARED),
        )
        return TakenTrees(replace(card, taken={"parts": "joined"}), declared, trees)

    def x(self, read: Reader) -> Values:
        """Return what the trees split, of the rows of a file, float32 [rows, inputs].

        Where a category has no value, all its inputs are NaN, as in the run.
        """
        columns = dict.fromkeys(column for column, _ in self.inputs)
        table = read([replace(_number(c.name), levels=c.values) for c in columns])
        found = []
        for column, value in self.inputs:
            if value:
                place = table.places[column.name][0]
                found.append(np.where(place < 0, np.nan, place == column.values.index(value)))
            else:
                found.append(table.numbers[column.name])
        return np.stack(found, axis=1).astype(np.float32)


TAKES = {"grow": JoinedTrees}


def _number(name: str) -> Variable:
    return Variable(name, "data", -_MOST, _MOST)


def _part(clients: Clients, run: str, client: str, digests: NamedArrays) -> Arrays:
    """Return a party's part as it was kept.

    Raises:
        StateError: It is gone, or not that of the model file.
    """
    part = clients.kept(client, "part", run)
    if not part or sha256(part) != bytes(digests[client]).hex():
        raise StateError(
            f"client {client}: expected the part of the trees whose SHA-256 the model file has; got "
            f"{'another one' if part else 'none'}. `bouquet state` lists what is kept here; simulate "
            "the run again with the same keys, and keep the state"
        )
    return part
