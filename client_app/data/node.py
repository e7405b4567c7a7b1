"""A node: its clients, their data and the models that they train."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch

from client_app.data.frozen import bind, held, hold, own
from client_app.data.open_data import OneClient, open_data
from client_app.data.owner import SIMULATION, Owner
from task.config.knobs import Config
from task.config.paths import state_root
from task.datasets import Dataset, spec_of, stamp_of
from task.datasets.partition import Partition
from task.datasets.public import PublicExamples, public_examples
from task.encryption.ckks import KEY_FILE, Key, read_key, simulated_key
from task.errors import ConfigError
from task.models.family import Kind, Kinds, SubModels, Widths
from task.models.kinds import one_of
from task.models.units import smaller
from task.numerics import seeds
from task.numerics.arrays import Arrays, form_of, forms_of, only, sha256, state_of
from task.resolve.contract import contract_of
from task.resolve.run_model import Parts, family_of, initial_of, levels_of, model_of, parts_of
from task.tasks import task_of
from task.tasks.base import Task
from task.wire.layouts import Forms

Batch = tuple[torch.Tensor, torch.Tensor]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Node:
    """The clients, data and models of this process."""

    config: Config
    dataset: Dataset
    clients: Partition
    pool: str
    share: tuple[int, int]
    device: torch.device
    owner: Owner = SIMULATION
    width: float = 0.0  # of its one client's model, as the node config says; 0 = as the run assigns it
    named: str = ""  # its one client's model, as the node config says; "" = as the run assigns it
    lacks: tuple[str, ...] = ()  # columns that the run declares and its data have not
    # SHA-256 of the model's frozen part, which this process holds; "" = all of the model is in the messages
    frozen: str = ""

    def data(self, client: str, part: str) -> Batch:
        """Return a client's ``train`` or ``test`` data on the device.

        Raises:
            DataError: This node does not host the client.
        """
        i = self.clients.index(client)
        rows = self.clients.train(i) if part == "train" else self.clients.test(i)
        x, y = self.dataset.inputs(rows), self.task.targets(self.dataset, rows)
        return x.to(self.device), y.to(self.device)

    def at(self, server_round: int) -> "Node":
        """Return the node with its clients' data as they are in a round."""
        dataset, clients = self.dataset.at(server_round), self.clients.at(server_round)
        if dataset is self.dataset and clients is self.clients:
            return self
        return replace(self, dataset=dataset, clients=clients)

    @property
    def bounds(self) -> Owner:
        """The owner, for limits: a data set that anyone can have, such as MNIST, has none."""
        return self.owner if spec_of(self.config.data.dataset).own else SIMULATION

    @property
    def task(self) -> Task:
        """What the run trains for."""
        return _task(self.config, self.dataset.task, self.dataset.num_classes)

    def seen_by(self, client: str) -> Config:
        """Return the run as seen by a client; without a name, by one of the first level."""
        if not self.config.models.levels or self.config.by_kind:
            return self.config
        levels = levels_of(self.config, lambda client: self.named)
        return self.config.with_model(levels.of(client) if client else levels.values[0])

    def model(self, client: str = "") -> torch.nn.Module:
        """Return this process's instance of a client's model, by default the run's.

        Each use loads its arrays first.
        """
        config = self.seen_by(client)
        return _model(config, self.dataset.input_shape, self.dataset.num_classes, self.device, self.frozen)

    @property
    def family(self) -> Widths | Kinds | None:
        """Which part of the model each client trains; None = all train the whole."""
        shape, classes = self.dataset.input_shape, self.dataset.num_classes
        return _family(self.config, shape, classes, self.width, self.named)

    def local_model(self, client: str = "") -> torch.nn.Module:
        """Return this process's instance of what a client trains: the run's model, or one of its form.

        Without a name it is of the largest size that clients have.
        """
        if (family := self.family) is None:
            return self.model(client)
        part, shape, classes = family.first(client), self.dataset.input_shape, self.dataset.num_classes
        if isinstance(part, Kind):
            return _of_kind(self.config, shape, classes, self.device, part.name)
        width = family.levels.of(client) if client else family.levels.values[0]
        return _smaller(self.config, shape, classes, self.device, width, self.frozen)

    def _made(self, client: str = "") -> tuple[Arrays, Parts, Arrays]:
        shape, classes = self.dataset.input_shape, self.dataset.num_classes
        return _made(self.seen_by(client), shape, classes, self.device, self.frozen)

    def initial(self, client: str = "") -> Arrays:
        """Return a client's initial model, by default the run's, without what is frozen; it is shared."""
        shape, classes = self.dataset.input_shape, self.dataset.num_classes
        return _initial(self.seen_by(client), shape, classes, bool(self.frozen))

    def initial_of(self, client: str) -> Arrays:
        """Return an initial model of a client's own, drawn by the run's seed and the client's name."""
        seed = seeds.seed_for(self.config.seeds.model, seeds.MODEL, client=client)
        config = replace(self.seen_by(client), model_seed=seed)
        model = model_of(config, self.dataset.input_shape, self.dataset.num_classes)
        return state_of(model, self.parts(client).frozen)

    def own_frozen(self) -> tuple[str, Arrays]:
        """Return the SHA-256 of the frozen part that this node has, "" = none, and the part.

        It is as drawn by the run's seed, or of the owner's file.

        Raises:
            ConfigError: The file cannot be read, or has nothing of it.
        """
        model = model_of(self.config, self.dataset.input_shape, self.dataset.num_classes)
        frozen = parts_of(model, self.config).frozen
        return own(model, frozen, self.owner.initial_model) if frozen else ("", {})

    def having(self, given: Arrays) -> "Node":
        """Return the node with the frozen part of a whole model, or as drawn by seed where that has none."""
        _, mine = self.own_frozen()
        if not mine:
            return self
        mine = {name: given.get(name, a) for name, a in mine.items()}
        digest = sha256(mine)
        hold(digest, mine)
        return replace(self, frozen=digest)

    def whole(self, arrays: Arrays) -> Arrays:
        """Return a model with its frozen part."""
        return {**arrays, **held(self.frozen)} if self.frozen and arrays else arrays

    def parts(self, client: str = "") -> Parts:
        """Return which of the tensors of a client's model are shared and which are private."""
        return self._made(client)[1]

    def forms(self, client: str = "", *, drawn: bool = False) -> Forms:
        """Return the forms of records for a client's model, by default the run's.

        They take no memory, or are `drawn`: the initial values, the caller's own.
        """
        whole, parts, server = self._made(client)
        if drawn:
            shape, classes = self.dataset.input_shape, self.dataset.num_classes
            whole = _drawn(self.seen_by(client), shape, classes, bool(self.frozen))
            server = {name: whole[name] if name in whole else np.array(a) for name, a in server.items()}
        others = {"whole": whole, "private": only(whole, parts.private), "top": only(whole, parts.top)}
        others["sums"] = self.task.measures.like
        others["shared-table"] = server
        columns = math.prod(self.dataset.input_shape)
        shared = only(whole, parts.shared)
        part = SubModels(self.family, 0, shared).form if self.family else None
        return Forms(shared, parts.trainable, others=others, columns=columns, part=part)

    def public(self) -> PublicExamples | None:
        """Return the run's public examples; None if it needs none.

        Raises:
            ConfigError: As from `task.datasets.public.public_examples`.
        """
        return _public(self.config, self.dataset) if contract_of(self.config).public else None

    def key(self) -> Key:
        """Return the key that this node encrypts with, as all others do.

        Raises:
            ConfigError: It has none.
        """
        if self.owner.simulation:
            return read_key(simulated_key(state_root(self.config)))
        if not self.owner.key:
            raise ConfigError(
                f'run-config key "he": expected a key on this node, {KEY_FILE} in its kit; got '
                "none. The maker of "
                "the kits adds it: bouquet provision --he"
            )
        return read_key(Path(self.owner.key))


def open_node(
    config: Config,
    node_config: Mapping[str, bool | int | float | str],
    owner: Owner = SIMULATION,
    node_id: int = 0,
) -> Node:
    """Open what the node config and the run config say this node hosts.

    The config has this node's paths; without an `owner` the node is a simulation's. `node_id` is Flower's:
    it names the client of a node whose config has a ``data-path`` and no ``client-name``.

    Raises:
        ConfigError: ``client-name``, ``width`` or ``model`` is given without ``data-path``.
        DataError: The data cannot be used.
    """
    name, path = (str(node_config.get(key) or "") for key in ("client-name", "data-path"))
    if name and not path:
        raise ConfigError(
            f'node config: expected data-path, the data of client "{name}", with client-name; got none'
        )
    name = name or (f"node-{node_id}" if path else "")
    share = int(node_config.get("partition-id", 0)), int(node_config.get("num-partitions", 1))
    width, named = float(node_config.get("width", 0.0)), str(node_config.get("model", ""))
    if (width or named) and not path:
        raise ConfigError(
            f"node config: expected {'width' if width else 'model'} with data of the node's own "
            "(data-path), as others may stand in for this node's clients otherwise; got "
            f"{f'{width:g}' if width else named} alone"
        )
    stamp = stamp_of(config.data, path, name) if path else ()  # a file that changed is read again
    found = open_data(config, name, path, stamp)
    return Node(
        found.config, found.dataset, found.clients, found.pool, share, found.device, owner, width, named,
        found.lacks,
    )  # fmt: skip


@lru_cache(maxsize=16)
def _model(config: Config, shape: Shape, classes: int, device: torch.device, frozen: str) -> torch.nn.Module:
    return bind(model_of(config, shape, classes), frozen).to(device)


@lru_cache(maxsize=4)
def _family(config: Config, shape: Shape, classes: int, width: float, named: str) -> Widths | Kinds | None:
    if not config.parted:
        return None
    model = model_of(config, shape, classes)
    return family_of(model, config, shape, lambda client: width, lambda client: named)


@lru_cache(maxsize=16)
def _smaller(
    config: Config, shape: Shape, classes: int, device: torch.device, width: float, frozen: str
) -> torch.nn.Module:
    family = _family(config, shape, classes, 0.0, "")
    model = _model(config, shape, classes, device, frozen)
    return smaller(model, family.sized(width)) if isinstance(family, Widths) else model


@lru_cache(maxsize=16)
def _of_kind(config: Config, shape: Shape, classes: int, device: torch.device, name: str) -> torch.nn.Module:
    return bind(one_of(name, model_of(config.with_model(name), shape, classes)), "").to(device)


@lru_cache(maxsize=4)
def _public(config: Config, dataset: Dataset) -> PublicExamples:
    return public_examples(config, dataset)


@lru_cache(maxsize=4)
def _task(config: Config, found: str, classes: int) -> Task:
    return task_of(config, found, classes)


@lru_cache(maxsize=16)
def _made(
    config: Config, shape: Shape, classes: int, device: torch.device, frozen: str
) -> tuple[Arrays, Parts, Arrays]:
    """Return the forms of the model's arrays, its parts, and the forms of what the server begins with."""
    # One whose frozen part is not known yet is thawed, so that it does not say what is frozen.
    known = frozen and device.type == "cpu"
    model = _model(config, shape, classes, device, frozen) if known else model_of(config, shape, classes)
    parts = parts_of(model, config)
    whole = form_of(model, parts.frozen if frozen else ())
    parts = parts if frozen else parts.thawed(whole)
    return whole, parts, forms_of(initial_of(model, config, shape, classes, parts))


def _drawn(config: Config, shape: Shape, classes: int, frozen: bool) -> Arrays:
    model = model_of(config, shape, classes)
    return state_of(model, parts_of(model, config).frozen if frozen else ())


_initial = lru_cache(maxsize=16)(_drawn)


def forget_whole() -> None:
    """Free the models of this process that were made before the frozen part of the run's was known."""
    for made in (_model, _made, _initial):
        made.cache_clear()


def app_version() -> str:
    """Return the version of the installed app, or "" inside a bundle."""
    try:
        return version("bouquet")
    except PackageNotFoundError:
        return ""


__all__ = ["Node", "OneClient", "app_version", "open_node"]
