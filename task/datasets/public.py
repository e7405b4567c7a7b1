"""Public examples: the same rows at every party, never sent.

Their labels are not read, unless models are pretrained on them (``fedmd.pretrain-epochs``).

They come from a data set that all parties can have (``public.data``), or from the run's own training pool
(``public.data = ""``); of a pool they are taken out before any client trains or tests. Which rows follows
from the seed of the data. Where all parties need them (`task.catalogue.entry.Algorithm.public`), every node
says the SHA-256 of its examples when it registers, and one whose examples are others takes no part. Where the
server trains on them (`Algorithm.distils`), it alone has them.

A table of logits has two arrays:

===========  ====================  ==============================================
name         shape, dtype          meaning
===========  ====================  ==============================================
``logits``   float32 [P, C]        by public example and class, summed or averaged
``clients``  int64 [1]             of how many clients; 0 = there are none yet
===========  ====================  ==============================================
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from task.catalogue.user_algorithm import algorithm_of
from task.config.knobs import Config
from task.datasets import Dataset, load_dataset, spec_of
from task.datasets.base import Owners, Rows
from task.datasets.partition import Partition
from task.datasets.stream import StreamedPartition
from task.errors import ConfigError
from task.numerics import seeds

if TYPE_CHECKING:
    import torch

CODE = "public examples"  # name of their hash where parties compare their data


@dataclass(frozen=True, eq=False)
class PublicExamples:
    """Inputs, and labels where models are trained on them."""

    x: torch.Tensor  # [P, ...], on the CPU
    y: torch.Tensor | None = None  # class numbers [P]

    @property
    def sha256(self) -> str:
        """The hash of shape and values, and of the labels that are read, in hexadecimal."""
        digest = hashlib.sha256(repr(tuple(self.x.shape)).encode())
        digest.update(np.ascontiguousarray(self.x.numpy()).data)
        if self.y is not None:
            digest.update(np.ascontiguousarray(self.y.numpy()).data)
        return digest.hexdigest()


def public_rows(dataset: Dataset, config: Config) -> Rows:
    """Return which rows of a data set's training pool are public, rising.

    Raises:
        ConfigError: It has fewer.
    """
    count, pool = config.public.examples, dataset.num_train
    most = pool if config.public.data else pool - 1
    if count > most:
        name = config.public.data or config.data.dataset
        raise ConfigError(
            f'run-config key "public.examples": expected at most {most} of data set "{name}"; got {count}'
        )
    return np.sort(seeds.rng_for(config.seeds.data, seeds.PUBLIC).choice(pool, count, replace=False))


def without_public(partition: Partition, dataset: Dataset, config: Config) -> Partition:
    """Return the clients without the public rows of their pool; what is left arrives as the run says.

    Raises:
        ConfigError: Clients draw their rows for themselves, or one has no training row left.
    """
    if config.data.partition == "bootstrap":
        raise ConfigError(
            'run-config key "public.data": expected a data set, as with partition = "bootstrap" clients draw '
            "rows of the whole pool; got none"
        )
    public = np.zeros(len(dataset.y), bool)
    public[public_rows(dataset, config)] = True
    clients = range(partition.num_clients)
    train, test = (
        [rows[~public[rows]] for rows in map(of, clients)] for of in (partition.train, partition.test)
    )
    if empty := [name for name, rows in zip(partition.names, train, strict=True) if not len(rows)]:
        raise ConfigError(
            f'run-config key "public.examples": expected so few that each client keeps training examples; '
            f"got {config.public.examples}, and {empty[0]} has none"
        )
    left = Partition(Owners.from_lists(partition.names, train, test), partition.skew)
    return partition.over(left) if isinstance(partition, StreamedPartition) else left


def public_examples(config: Config, dataset: Dataset | None) -> PublicExamples:
    """Return the public examples of a run; `dataset` is the run's own, None = it is not here.

    Raises:
        ConfigError: They cannot be those of all parties, or are not of the form of the run's examples.
        DataError: Their data set cannot be read.
    """
    name, own = config.public.data, spec_of(config.public.data or config.data.dataset).own
    if (name and own) or (not name and ((own and not config.data.data_path) or dataset is None)):
        raise ConfigError(
            'run-config key "public.data": expected a data set that all parties can have, such as "digits", '
            f"since each brings data of its own; got {name!r}"
        )
    source = dataset
    if name:
        data = replace(
            config.data, dataset=name, data_path="", max_examples=0, pool_test=False, num_classes=0,
            feature_skew="none", standardise=False, missing="refuse", inputs="auto",
        )  # fmt: skip
        source = load_dataset(data, config.synthetic, config.seeds.data)
    assert source is not None
    if dataset is not None and source.input_shape != dataset.input_shape:
        raise ConfigError(
            f'run-config key "public.data": expected examples of shape {dataset.input_shape}, as those of '
            f'"{config.data.dataset}"; got {source.input_shape} of "{name}"'
        )
    rows = public_rows(source, config)
    labels = algorithm_of(config.algorithm).owns("fedmd.pretrain-epochs") and config.fedmd.pretrain_epochs
    if not labels:
        return PublicExamples(source.inputs(rows))
    if dataset is not None and source.num_classes != dataset.num_classes:
        raise ConfigError(
            f'run-config key "fedmd.pretrain-epochs": expected 0, as the labels of "{name}" are others than '
            f'those of "{config.data.dataset}": {source.num_classes} classes in place of '
            f"{dataset.num_classes}; got {config.fedmd.pretrain_epochs}"
        )
    return PublicExamples(source.inputs(rows), source.targets(rows))


def no_logits(config: Config, classes: int) -> dict[str, np.ndarray]:
    """Return the table before any client sent logits."""
    return {
        "logits": np.zeros((config.public.examples, classes), np.float32),
        "clients": np.zeros(1, np.int64),
    }
