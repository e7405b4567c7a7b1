"""What one node hosts: its clients, their data and their kept state.

A node hosts either one client with data of its own (node config ``client-name`` and ``data-path``), or
clients of the run's partition. Of a partition a node can train every client, since it can load all of
the data; nodes with one state folder therefore form a pool and stand in for each other.
"""

import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch

from client_app.data.owner import SIMULATION, Owner
from client_app.solvers import solver_of
from client_app.training.local_optimizer import check_optimizer
from client_app.training.precision import check_precision
from task.config.knobs import Config
from task.config.paths import state_root
from task.config.read import as_run_config
from task.datasets import Dataset, Stamp, load_owned, spec_of, stamp_of
from task.datasets.base import Owners, compared
from task.datasets.condition import refuse_own
from task.datasets.description import described, meaning_of
from task.datasets.partition import Partition
from task.datasets.public import CODE, PublicExamples, public_examples, without_public
from task.datasets.skew import load_dealt
from task.encryption.ckks import KEY_FILE, Key, read_key, simulated_key
from task.errors import ConfigError, DataError, local
from task.models.family import Kind, Kinds, SubModels, Widths
from task.models.kinds import one_of
from task.models.units import smaller
from task.numerics import seeds
from task.numerics.arrays import Arrays, only, state_of
from task.numerics.devices import training_device
from task.numerics.kernels import check_kernels, kernels
from task.portable import KERNELS
from task.privacy.canaries import CLAIMED, canary_names
from task.references import code_of, is_reference, references_in
from task.resolve.changing import check_own_data
from task.resolve.contract import contract_of, takes_public
from task.resolve.run_model import (
    Parts,
    check_levels,
    check_model,
    family_of,
    initial_of,
    levels_of,
    model_of,
    parts_of,
)
from task.storage.files import write_once
from task.tasks import task_of, with_task
from task.tasks.base import Task, check_fits
from task.wire import registration
from task.wire.layouts import Forms

Batch = tuple[torch.Tensor, torch.Tensor]
Shape = tuple[int, ...]


class OneClient(Partition):
    """The only client of a node that brings its own data: all rows are its own."""

    def __init__(self, name: str, dataset: Dataset) -> None:
        train, test = np.split(np.arange(len(dataset.y)), [dataset.num_train])
        super().__init__(Owners.from_lists((name,), [train], [test]), {})

    def index(self, name: str) -> int:
        """Return 0, or refuse another client.

        Raises:
            DataError: This node does not host that client.
        """
        if name not in self.names:
            raise DataError(f"client {name}: this node hosts {self.names[0]} only")
        return 0


@dataclass(frozen=True)
class Node:
    """What this process can train."""

    config: Config
    dataset: Dataset
    clients: Partition
    pool: str
    share: tuple[int, int]
    device: torch.device
    owner: Owner = SIMULATION
    width: float = 0.0  # of its one client's model, as the node config says; 0 = as the run deals it
    named: str = ""  # its one client's model, as the node config says; "" = as the run deals it

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
        """The owner as far as bounds go: a data set that everybody can have, such as MNIST, has none."""
        return self.owner if spec_of(self.config.data.dataset).own else SIMULATION

    @property
    def task(self) -> Task:
        """What the run trains for."""
        return _task(self.config, self.dataset.task, self.dataset.num_classes)

    def check_task(self) -> None:
        """Refuse a model, a task or a loss that cannot be trained on the data of this node.

        Raises:
            ConfigError: Naming the key; before round 1.
        """
        # Nobody else has examples to try a user's model on; a party's is made for what it sends.
        if isinstance(self.clients, OneClient) and not contract_of(self.config).vertical:
            shape, classes = self.dataset.input_shape, self.dataset.num_classes
            check_model(self.config, shape, classes, self.task.name, self.dataset)
        if not self.task.plain or self.task.measures.own or is_reference(self.config.model):
            check_fits(self.task, self.model(), self.dataset)

    def seen_by(self, client: str) -> Config:
        """Return the run as a client sees it; without a name, as one of the first level does."""
        if not self.config.models.levels or self.config.by_kind:
            return self.config
        levels = levels_of(self.config, lambda client: self.named)
        return self.config.with_model(levels.of(client) if client else levels.values[0])

    def model(self, client: str = "") -> torch.nn.Module:
        """Return this process's instance of a client's model, by default the run's.

        Each use loads its arrays first.
        """
        config = self.seen_by(client)
        return _model(config, self.dataset.input_shape, self.dataset.num_classes, self.device)

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
        return _smaller(self.config, shape, classes, self.device, width)

    def _initial(self, client: str = "") -> tuple[Arrays, Parts, Arrays]:
        return _initial(self.seen_by(client), self.dataset.input_shape, self.dataset.num_classes)

    def initial(self, client: str = "") -> Arrays:
        """Return a client's initial model, by default the run's; not to be changed."""
        return self._initial(client)[0]

    def initial_of(self, client: str) -> Arrays:
        """Return an initial model of a client's own, drawn by the run's seed and the client's name."""
        seed = seeds.seed_for(self.config.seeds.model, seeds.MODEL, client=client)
        config = replace(self.seen_by(client), model_seed=seed)
        return state_of(model_of(config, self.dataset.input_shape, self.dataset.num_classes))

    def parts(self, client: str = "") -> Parts:
        """Return which of the tensors of a client's model are shared and which are private."""
        return self._initial(client)[1]

    def forms(self, client: str = "") -> Forms:
        """Return what records look like under a client's model, by default the run's."""
        whole, parts, server = self._initial(client)
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
                f'run-config key "he": expected a key on this node, {KEY_FILE} in its kit; got none. Whoever '
                "made the kits makes it: bouquet provision --he"
            )
        return read_key(Path(self.owner.key))

    def registration(self) -> registration.Registration:
        """Return what this node says of itself."""
        self.check_task()
        entry = contract_of(self.config)
        for part in (entry, *(p for p in entry.phases.values() if p.work == "train")):
            solver_of(part.solver)  # a user's own may be none
        if self.config.parted:
            self.local_model()  # which the run's model may not have
        self._check_level()
        code = code_of(references_in(as_run_config(self.config)))
        if self.config.server.he:
            code[KEY_FILE] = self.key().id
        if self.config.train.portable:
            code[KERNELS] = kernels()
        if public := self.public():
            code[CODE] = public.sha256
        if not isinstance(self.clients, OneClient):
            code |= compared(self.dataset, self.config.data)
        names, counts, data = self.clients.names, self.clients.num_train(), self.dataset
        if canaries := canary_names(self.config):
            if isinstance(self.clients, OneClient):
                raise ConfigError(
                    'run-config key "audit.canaries": expected 0 where nodes bring their own data, as '
                    f"canaries are clients of a partition; got {len(canaries)}"
                )
            names = [*names, *canaries]
            counts = np.concatenate([counts, np.full(len(canaries), CLAIMED)])
        # Of a party's columns the others see embeddings only.
        shape = (self.config.vertical.cut,) if entry.vertical else data.input_shape
        return registration.Registration(
            names, counts, self.pool, self.share, app_version(), shape, data.num_classes,
            code=code, width=self.width, model=self.named, meaning=meaning_of(data),
            names=described(data) if self.owner.names else None,
        )  # fmt: skip

    def _check_level(self) -> None:
        """Refuse a width or a model that the run does not have, and models that do not fit its data.

        Raises:
            ConfigError: Naming what it has.
        """
        names = levels_of(self.config).values
        if self.named and self.named not in names:
            raise ConfigError(
                f'node config "model": expected one of the run\'s, {", ".join(names)} (run-config key '
                f'"models.levels"); got "{self.named}"'
            )
        check_levels(self.config, self.dataset.input_shape, self.dataset.num_classes, self.dataset)
        levels = [r for r, _ in self.config.widths]
        if self.width and self.width not in levels:
            has = ", ".join(f"{r:g}" for r in levels)
            raise ConfigError(
                f'node config "width": expected one of the run\'s levels, {has} (run-config key '
                f'"{self.config.part_key}"); got {self.width:g}'
            )


def open_node(
    config: Config, node_config: Mapping[str, bool | int | float | str], owner: Owner = SIMULATION
) -> Node:
    """Open what the node config and the run config say this node hosts.

    The config has this node's paths; without an `owner` the node is a simulation's.

    Raises:
        ConfigError: Only one of ``client-name`` and ``data-path`` is given, or ``width`` or ``model``
            without them.
        DataError: The data cannot be used.
    """
    own = {k: str(node_config[k]) for k in ("client-name", "data-path") if node_config.get(k)}
    if len(own) == 1:
        raise ConfigError(
            f"node config: expected both client-name and data-path, or neither; got only {next(iter(own))}"
        )
    share = int(node_config.get("partition-id", 0)), int(node_config.get("num-partitions", 1))
    width, named = float(node_config.get("width", 0.0)), str(node_config.get("model", ""))
    if (width or named) and not own:
        raise ConfigError(
            f"node config: expected {'width' if width else 'model'} with data of the node's own (client-name "
            "and data-path), as others may stand in for this node's clients otherwise; got "
            f"{f'{width:g}' if width else named} alone"
        )
    name, path = own.get("client-name", ""), own.get("data-path", "")
    stamp = stamp_of(config.data, path, name) if path else ()  # a file that changed is read again
    node = _open(config, name, path, share, stamp)
    return replace(node, owner=owner, width=width, named=named)


@lru_cache(maxsize=4)
def _open(config: Config, name: str, path: str, share: tuple[int, int], stamp: Stamp) -> Node:
    if config.train.portable:
        check_kernels()
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    device = training_device(config.train.device, portable=config.train.portable)
    check_precision(config.train.precision, device)
    if is_reference(config.train.optimizer):
        check_optimizer(config.train.optimizer)  # said at registration if it cannot be used
    if name:
        refuse_own(config, local(path))
        check_own_data(config)
        owned = load_owned(config.data, path, name, config.seeds.data, grows=config.stream.own_data)
        config = with_task(config, owned.task)
        return Node(config, owned, OneClient(name, owned), f"{_pool(config)}/{name}", share, device)
    dataset, partition = load_dealt(config)
    if takes_public(config):
        partition = without_public(partition, dataset, config)
    config = with_task(config, dataset.task)
    return Node(config, dataset, partition, _pool(config), share, device)


@lru_cache(maxsize=16)
def _model(config: Config, shape: Shape, classes: int, device: torch.device) -> torch.nn.Module:
    return model_of(config, shape, classes).to(device)


@lru_cache(maxsize=4)
def _family(config: Config, shape: Shape, classes: int, width: float, named: str) -> Widths | Kinds | None:
    if not config.parted:
        return None
    model = model_of(config, shape, classes)
    return family_of(model, config, shape, lambda client: width, lambda client: named)


@lru_cache(maxsize=16)
def _smaller(
    config: Config, shape: Shape, classes: int, device: torch.device, width: float
) -> torch.nn.Module:
    family, model = _family(config, shape, classes, 0.0, ""), model_of(config, shape, classes)
    return (smaller(model, family.sized(width)) if isinstance(family, Widths) else model).to(device)


@lru_cache(maxsize=16)
def _of_kind(config: Config, shape: Shape, classes: int, device: torch.device, name: str) -> torch.nn.Module:
    return one_of(name, model_of(config.with_model(name), shape, classes)).to(device)


@lru_cache(maxsize=4)
def _public(config: Config, dataset: Dataset) -> PublicExamples:
    return public_examples(config, dataset)


@lru_cache(maxsize=4)
def _task(config: Config, found: str, classes: int) -> Task:
    return task_of(config, found, classes)


@lru_cache(maxsize=16)
def _initial(config: Config, shape: Shape, classes: int) -> tuple[Arrays, Parts, Arrays]:
    model = model_of(config, shape, classes)
    return state_of(model), parts_of(model, config), initial_of(model, config, shape, classes)


def _pool(config: Config) -> str:
    """Return the id of the pool, a random word in the state folder.

    So it is equal just where the folder is the same one, whatever machines and containers are called.
    """
    path = state_root(config) / "pool-id"
    write_once(path, lambda: uuid.uuid4().hex.encode())
    return path.read_text(encoding="utf-8").strip()


def app_version() -> str:
    """Return the version of the installed app, or "" inside a bundle."""
    try:
        return version("bouquet")
    except PackageNotFoundError:
        return ""
