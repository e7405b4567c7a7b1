"""Open the data that a node hosts, once the machine is known to be suitable for the run.

A node hosts either one client with data of its own (node config ``data-path``), named by ``client-name`` or
else by the node's id at its link, or clients of the run's partition. Of a partition a node can train every
client, since it can load all of the data; nodes with the same state folder therefore form a pool and can
replace each other.
"""

import uuid
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from client_app.training.local_optimizer import check_optimizer
from client_app.training.precision import check_precision
from task.config.knobs import Config
from task.config.paths import state_root
from task.datasets import Dataset, Stamp, load_owned
from task.datasets.base import Owners
from task.datasets.column_types import RUN, lacking
from task.datasets.condition import refuse_own
from task.datasets.partition import Partition
from task.datasets.public import without_public
from task.datasets.skew import load_partitioned
from task.errors import DataError, local
from task.features.changing_data import check_own_data
from task.numerics.devices import training_device
from task.numerics.kernels import check_kernels
from task.references import is_reference
from task.resolve.contract import takes_public, with_data
from task.storage.files import write_once
from task.tasks import with_task
from task.text import logger


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
class HostedData:
    """What a node hosts."""

    config: Config  # with the task that the data said
    dataset: Dataset
    clients: Partition
    pool: str  # id of the nodes that stand in for each other
    device: torch.device  # to train on
    lacks: tuple[str, ...] = ()  # columns that the run declares and the data have not


@lru_cache(maxsize=4)
def open_data(config: Config, name: str, path: str, stamp: Stamp) -> HostedData:
    """Open the data of the client `name` at `path`, as they were at `stamp`; of the run's partition without.

    Raises:
        ConfigError: The machine or the data cannot do what the run asks for.
        DataError: The data cannot be used.
    """
    if config.train.portable:
        check_kernels()
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    device = training_device(config.train.device, portable=config.train.portable)
    check_precision(config.train.precision, device)
    if is_reference(config.train.optimizer):
        check_optimizer(config.train.optimizer)  # reported at registration if it cannot be used
    if name:
        refuse_own(config, local(path))
        check_own_data(config)
        owned = load_owned(config.data, path, name, config.seeds.data, grows=config.stream.own_data)
        config = with_task(config, owned.task, owned.form)
        if absent := tuple(column.name for column in lacking(owned, RUN, config.data.column_types)):
            logger.warning(
                "%s declares columns that these data have not: %s", RUN, ", ".join(map(repr, absent))
            )
        return HostedData(config, owned, OneClient(name, owned), f"{_pool(config)}/{name}", device, absent)
    dataset, partition = load_partitioned(config)
    if takes_public(config):
        partition = without_public(partition, dataset, config)
    config = with_data(config, dataset)
    return HostedData(config, dataset, partition, _pool(config), device)


def _pool(config: Config) -> str:
    """Return the id of the pool, a random word in the state folder.

    So it is equal exactly if the folder is the same, whatever the names of machines and containers.
    """
    path = state_root(config) / "pool-id"
    write_once(path, lambda: uuid.uuid4().hex.encode())
    return path.read_text(encoding="utf-8").strip()
