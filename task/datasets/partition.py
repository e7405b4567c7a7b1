"""Partitions: who owns which examples, computed once, cached, and the same on every machine.

A partition splits the pool by class, by size or at random (`task.datasets.partitioners`), or follows the data
set's natural owners (``natural``), or lets each client draw for itself (``bootstrap``). Of a client's rows
the share ``local-test-fraction`` is its own test set, drawn by its name; natural owners that come with test
rows keep those instead.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from task import portable
from task.config.paths import cache_dir
from task.config.sections import DataConfig
from task.datasets import PADDING, Dataset, cache
from task.datasets import partitioners as deals
from task.datasets.base import Owners, Rows
from task.datasets.column_split import columns_of
from task.datasets.own import Mask, local_test
from task.datasets.partitioners import Deal
from task.errors import ConfigError, DataError, choose_from
from task.numerics import seeds
from task.population import ClientNames, numbering
from task.references import code_of, folder_name, is_reference


class PartitionSpec(NamedTuple):
    """One entry of `PARTITIONS`."""

    description: str
    deal: Callable[[Deal], list[Rows]] | None = None  # None: the pool is not split
    keys: tuple[str, ...] = ()  # fields of `DataConfig` that it depends on, besides `_COMMON`


PARTITIONS: dict[str, PartitionSpec] = {
    "bootstrap": PartitionSpec(
        "each client draws examples-per-client rows for itself; clients overlap; any num-clients",
        keys=("examples_per_client",),
    ),
    "classes": PartitionSpec(
        "exactly classes-per-client classes each, a class split evenly among its holders (NIID-Bench)",
        deals.classes, ("classes_per_client",),
    ),
    "classes-unbalanced": PartitionSpec(
        "classes-per-client classes each, shares of a class random (PFLlib, FedALA)",
        deals.classes_unbalanced, ("classes_per_client",),
    ),
    "columns": PartitionSpec(
        "all rows, but only the party's columns, as `columns` says: parties of a vertical algorithm",
        deals.whole, ("columns",),
    ),
    "dirichlet": PartitionSpec(
        "each class split by Dir(dirichlet-alpha) among the clients; labels and sizes skewed",
        deals.dirichlet, ("dirichlet_alpha",),
    ),
    "dirichlet-capped": PartitionSpec(
        "the same, who has n/K examples gets no further class (NIID-Bench, MOON, PFLlib)",
        functools.partial(deals.dirichlet, capped=True), ("dirichlet_alpha",),
    ),
    "dirichlet-client": PartitionSpec(
        "equal sizes, each client's class mix from Dir(dirichlet-alpha p) (Hsu et al. 2019)",
        deals.dirichlet_client, ("dirichlet_alpha",),
    ),
    "half-labels": PartitionSpec(
        "half the classes split evenly among half the clients, the rest by class (Wang et al. 2019)",
        deals.half_labels,
    ),
    "iid": PartitionSpec("shuffled and split evenly", deals.iid),
    "labels": PartitionSpec(
        "whole classes: client k has those that are k modulo K (Wang et al. 2019)", deals.labels
    ),
    "natural": PartitionSpec("the data set's own owners; num-clients = 0 takes all, fewer a sample by seed"),
    "power-law": PartitionSpec(
        "two classes each, sizes after a lognormal law (FedProx's MNIST split)", deals.power_law
    ),
    "quantity": PartitionSpec(
        "shuffled, sizes proportional to 1..K to the power size-skew", deals.quantity, ("size_skew",)
    ),
    "shards": PartitionSpec(
        "sorted by class, shards-per-client shards each (McMahan et al. 2017)",
        deals.shards, ("shards_per_client",),
    ),
}  # fmt: skip

_COMMON = ("partition", "num_clients", "min_client_examples", "local_test_fraction")
_VERSION = 1  # increment it when a partition's code changes, so that older cache entries are not used

_SAMPLE = 100  # clients whose statistics stand for all of a bootstrap partition


class Partition:
    """The clients, by number and by name, and their rows; nothing in it changes.

    The names are stable for the same config. What clients have only in some rounds, `at` says.
    """

    def __init__(self, owners: Owners, skew: dict[str, float]) -> None:
        self.names = owners.names
        self._owners = owners
        self._skew = skew

    @property
    def num_clients(self) -> int:
        """Population K."""
        return len(self.names)

    @property
    def skew(self) -> dict[str, float]:
        """How unequal the clients are, over their training rows.

        ``size_min``, ``size_mean``, ``size_max``, ``size_gini`` (0 = all equal), ``classes_mean`` (classes
        a client has), ``label_tv_mean`` (total-variation distance of a client's class mix to that of all
        clients together, 0 = equal, averaged over clients) and ``coverage`` (share of the training pool that
        anybody owns, own test sets included). For bootstrap they are those of the first 100 clients.
        """
        return dict(self._skew)

    def train(self, client: int) -> Rows:
        """Return the training rows of client number `client`, in ascending order."""
        return self._owners.train(client)

    def test(self, client: int) -> Rows:
        """Return the rows of the client's own test set; it may be empty."""
        return self._owners.test(client)

    def num_train(self) -> Rows:
        """Return the number of training examples of every client, int64 ``[K]``."""
        return np.diff(self._owners.train_offsets)

    def held_out(self, pool: int) -> int:
        """Return how many of the first `pool` rows, the training pool, are clients' own test examples."""
        return int((self._owners.test_rows < pool).sum())

    def at(self, server_round: int) -> "Partition":
        """Return the partition as it is in a round; `task.datasets.stream` has one that changes."""
        return self

    def index(self, name: str) -> int:
        """Return the number of the client of that name.

        Raises:
            DataError: There is none.
        """
        number = self._number(name)
        if number is None:
            raise DataError(
                f'client "{name}" is not in this partition: expected one of {self.num_clients} names from '
                f'"{self.names[0]}" to "{self.names[-1]}". Is a node running with other data, another seed '
                "or another num-clients?"
            )
        return number

    @functools.cached_property
    def _number(self) -> Callable[[str], int | None]:
        return numbering(self.names)


class _Bootstrap(Partition):
    """Each client draws its rows when asked: constant memory, so that K may be a million."""

    def __init__(self, dataset: Dataset, config: DataConfig, seed: int) -> None:
        super().__init__(Owners.from_lists(ClientNames(config.num_clients), [], []), {})
        self._dataset = dataset
        self._config = config
        self._seed = seed

    @functools.cached_property
    def skew(self) -> dict[str, float]:
        few = [self._rows(i) for i in range(min(_SAMPLE, self.num_clients))]
        return _statistics(self._dataset, [rows[~test] for rows, test in few], sum(t.sum() for _, t in few))

    def _rows(self, client: int) -> tuple[Rows, Mask]:
        """Return the client's rows, ascending and without repetition, and which of them are for its test."""
        name, size = self.names[range(self.num_clients)[client]], self._config.examples_per_client
        rng = seeds.rng_for(self._seed, seeds.PARTITION, client=name)
        rows = np.sort(rng.choice(self._dataset.num_train, size, replace=False))
        return rows, local_test(size, self._config.local_test_fraction, self._seed, name)

    def train(self, client: int) -> Rows:
        rows, test = self._rows(client)
        return rows[~test]

    def test(self, client: int) -> Rows:
        rows, test = self._rows(client)
        return rows[test]

    def num_train(self) -> Rows:
        kept = self._config.examples_per_client - len(self.test(0))
        return np.broadcast_to(np.int64(kept), self.num_clients)

    def held_out(self, pool: int) -> int:
        return len(self.test(0)) * self.num_clients  # clients share rows


def load_partition(dataset: Dataset, config: DataConfig, seed: int) -> Partition:
    """Return the partition that the run names; compute it if no process did before.

    Raises:
        ConfigError: Keys that do not fit together or the data set.
        DataError: A client would own fewer than ``min-client-examples`` training rows.
    """
    _check(dataset, config)
    if config.partition == "bootstrap":
        partition = _Bootstrap(dataset, config, seed)
        _check_sizes(partition.names, partition.num_train()[:1], config)
        return partition
    keys = {name: getattr(config, name) for name in (*_COMMON, *_spec(config.partition).keys)}
    keys |= {"version": _VERSION, "seed": seed, "data": dataset.fingerprint, **portable.cache_key()}
    if is_reference(config.partition):
        keys["code"] = code_of([config.partition])
    named = folder_name(f"{dataset.name}-{config.partition}")
    folder = cache_dir(config) / "partitions" / f"{named}-{cache.key_of(keys)}"
    entry = cache.load(folder)
    if entry is None:
        entry = cache.store(folder, *_compute(dataset, config, seed))
    arrays, meta = entry
    names = tuple(meta["names"]) if "names" in meta else ClientNames(config.num_clients)
    return Partition(Owners(names, **arrays), meta["skew"])


def _spec(name: str) -> PartitionSpec:
    """Return the entry of a partition; one of the user's own code reads only its arguments."""
    if is_reference(name):
        return PartitionSpec("your own code", deals.brought, ("partition_arguments",))
    if name not in PARTITIONS:
        raise ConfigError(choose_from('run-config key "partition"', name, PARTITIONS))
    return PARTITIONS[name]


def _check(dataset: Dataset, config: DataConfig) -> None:
    """Refuse what no seed can make work."""
    owners = len(dataset.owners.names) if dataset.owners else 0
    natural = config.partition == "natural"
    _spec(config.partition)
    if natural and not owners:
        raise ConfigError(
            f'run-config key "partition": data set "{dataset.name}" has no natural owners; expected one of '
            f"{', '.join(sorted(set(PARTITIONS) - {'natural'}))}, or a data set with owners; a csv file "
            'says them in a column "client", or in another by column-types="NAME:client"'
        )
    if natural and config.num_clients > owners:
        raise DataError(
            f'run-config key "num-clients": data set "{dataset.name}" has {owners} owners; expected at most '
            f"that many, or 0 for all; got {config.num_clients}"
        )
    if not natural and config.num_clients < 1:
        raise ConfigError(
            'run-config key "num-clients": 0 (the number of owners) needs '
            f'partition = "natural"; got "{config.partition}". Say how many clients there are.'
        )
    if config.partition == "columns":
        columns_of(dataset, config.columns, config.num_clients)
    if config.partition == "bootstrap" and config.examples_per_client > dataset.num_train:
        raise ConfigError(
            f'run-config key "examples-per-client": expected at most the {dataset.num_train} training '
            f'examples of "{dataset.name}"; got {config.examples_per_client}'
        )


def _compute(dataset: Dataset, config: DataConfig, seed: int) -> tuple[cache.Arrays, dict[str, Any]]:
    """Return the arrays and the meta data of a cache entry."""
    names: Sequence[str] = ClientNames(config.num_clients)
    meta: dict[str, Any] = {}
    tests: list[Rows] = []
    deal, owners = _spec(config.partition).deal, dataset.owners
    if deal is not None:
        labels = dataset.y[: dataset.num_train] if dataset.task == "classification" else None
        parts = deal(Deal(dataset.num_train, labels, dataset.num_classes, config, seed))
    else:
        assert owners is not None  # checked before
        chosen = list(range(len(owners.names)))
        if config.num_clients:
            rng = seeds.rng_for(seed, seeds.PARTITION)
            chosen = sorted(rng.choice(len(chosen), config.num_clients, replace=False).tolist())
        names = meta["names"] = [owners.names[i] for i in chosen]
        parts = [owners.train(i) for i in chosen]
        if len(owners.test_rows):
            tests = [np.sort(owners.test(i)) for i in chosen]
    parts = [np.sort(part) for part in parts]
    num_test = 0  # of the rows of the training pool
    if not tests:
        drawn = zip(parts, names, strict=True)
        # Parties have one test set, of their common rows.
        fraction = 0.0 if config.partition == "columns" else config.local_test_fraction
        masks = [local_test(len(part), fraction, seed, name) for part, name in drawn]
        tests = [part[mask] for part, mask in zip(parts, masks, strict=True)]
        parts = [part[~mask] for part, mask in zip(parts, masks, strict=True)]
        num_test = sum(map(len, tests))
    _check_sizes(names, np.array([len(part) for part in parts]), config)
    meta["skew"] = _statistics(dataset, parts, num_test)
    return Owners.from_lists(names, parts, tests).arrays(), meta


def _check_sizes(names: Sequence[str], sizes: Rows, config: DataConfig) -> None:
    small = np.flatnonzero(sizes < config.min_client_examples)
    if len(small):
        raise DataError(
            f'partition "{config.partition}": "{names[int(small[0])]}" and {len(small) - 1} more clients own '
            f"too few training examples: expected at least {config.min_client_examples}, as "
            f"min-client-examples says; got {int(sizes[small[0]])}. Lower num-clients, min-client-examples "
            "or local-test-fraction, or choose a less skewed partition."
        )


def _statistics(dataset: Dataset, parts: Sequence[Rows], num_test: int) -> dict[str, float]:
    """Compute `Partition.skew`."""
    sizes = np.sort([len(part) for part in parts]).astype(np.float64)
    rank = np.arange(1, len(sizes) + 1)
    total = _count(dataset, np.concatenate(parts))
    classes, distance = 0, 0.0
    for part in parts:  # a client at a time, so that K x C counts need not be kept
        counts = _count(dataset, part)
        classes += int((counts > 0).sum())
        distance += 0.5 * float(np.abs(counts / max(counts.sum(), 1) - total / max(total.sum(), 1)).sum())
    return {
        "size_min": float(sizes[0]),
        "size_mean": float(sizes.mean()),
        "size_max": float(sizes[-1]),
        "size_gini": float(((2 * rank - len(sizes) - 1) * sizes).sum() / (len(sizes) * sizes.sum())),
        "classes_mean": classes / len(sizes),
        "label_tv_mean": distance / len(sizes),
        # Parties have the same rows.
        "coverage": float(min((sizes.sum() + num_test) / dataset.num_train, 1.0)),
    }


def _count(dataset: Dataset, rows: Rows) -> Rows:
    """Count the classes of some rows; of text, bytes to predict, of maps pixels, of numbers all rows."""
    if dataset.y.dtype.kind == "f":  # what has no classes counts as one
        return np.array([len(rows)], np.int64)
    y = dataset.y[rows].reshape(-1)
    if dataset.y.ndim > 1:
        y = y[y != PADDING]
    return np.bincount(y, minlength=dataset.num_classes)


def label_counts(dataset: Dataset, partition: Partition, most: int | None = None) -> Rows:
    """Return how many training examples of each class every client has, int64 ``[K, C]``.

    `most` clients are counted, the first ones; None = all.
    """
    counts = [_count(dataset, partition.train(i)) for i in range(partition.num_clients)[:most]]
    return np.stack(counts).astype(np.int64)
