"""The server's data, and their description in config.json."""

from typing import Any

import numpy as np

from server_app.run.meaning import names_let_out
from strategies.membership.client_registry import ClientRegistry
from task.config.knobs import Config
from task.datasets import Dataset, spec_of
from task.datasets.description import Description
from task.datasets.facts import facts_of, listed, names_in, spread
from task.datasets.partition import Partition, label_counts, load_partition
from task.datasets.public import without_public
from task.datasets.skew import load_partitioned
from task.resolve.contract import contract_of, takes_public

MOST_CLASSES, SHOWN_CLIENTS = 100, 60  # of the labels in config.json


def server_data(config: Config) -> Dataset | None:
    """Return the data set that the server evaluates on; None if only the nodes have data."""
    if spec_of(config.data.dataset).own and not config.data.data_path:
        return None
    return load_partitioned(config)[0]


def clients_measure(config: Config) -> bool:
    """Return whether clients are asked to evaluate a model on their own test data."""
    return config.server.fraction_evaluate > 0 or config.server.fraction_heldout > 0


def data_card(config: Config, dataset: Dataset, labelled: bool) -> dict[str, Any]:
    """Return what ``config.json`` says of the data: what, where from, how many, how skewed."""
    partition = load_partition(dataset, config.data, config.seeds.data)
    if takes_public(config):
        partition = without_public(partition, dataset, config)
    held = 0 if contract_of(config).vertical else partition.held_out(dataset.num_train)
    return {
        "description": dataset.description,
        "source": dataset.source,
        "fingerprint": dataset.fingerprint,
        "train_examples": dataset.num_train,
        **({"public_examples": config.public.examples} if takes_public(config) else {}),
        "test_examples": len(dataset.y) - dataset.num_train,
        "clients": partition.num_clients,
        "client_examples": spread(partition.num_train()),
        **({"held_out": {"examples": held, "read": clients_measure(config)}} if held else {}),
        "skew": {k: float(v) for k, v in partition.skew.items()},
        **facts_of(dataset),
        **(_labels(dataset, partition) if labelled else {}),
    }


def described(
    config: Config,
    dataset: Dataset | None,
    registry: ClientRegistry,
    shape: tuple[int, ...],
    classes: int,
    *,
    labelled: bool,
) -> tuple[dict[str, Any], Description | None]:
    """Return what ``config.json`` says of a run's data, and the names that nodes alone know and let out."""
    if dataset is not None:
        return data_card(config, dataset, labelled), None
    names = None if contract_of(config).vertical else names_let_out(registry.membership)
    return nodes_card(registry, shape, classes, names), names


def nodes_card(
    registry: ClientRegistry, shape: tuple[int, ...], classes: int, names: Description | None
) -> dict[str, Any]:
    """Return what ``config.json`` says of data that only nodes have: what they registered, and no more.

    `names` are those of columns and classes, where a node's owner lets them out.
    """
    counts = registry.num_examples(registry.names)
    return {
        "at": "nodes",
        "train_examples": sum(counts.values()),
        "clients": len(counts),
        "client_examples": spread(np.array(list(counts.values()) or [0])),
        "input_shape": list(shape),
        "outputs": classes,
        "owners": listed(counts.items(), len(counts)),
        **(names_in(names) if names else {}),
    }


def _labels(dataset: Dataset, partition: Partition) -> dict[str, Any]:
    """Return how many examples of each class the first clients have, if there are not too many classes."""
    if not 1 < dataset.num_classes <= MOST_CLASSES:
        return {}
    counts = label_counts(dataset, partition, SHOWN_CLIENTS).tolist()
    return {"labels": {"clients": list(partition.names[: len(counts)]), "counts": counts}}
