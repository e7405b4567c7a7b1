"""The server's data, and what config.json says of them."""

from typing import Any

from task.config.knobs import Config
from task.datasets import Dataset, spec_of
from task.datasets.partition import Partition, label_counts, load_partition
from task.datasets.public import without_public
from task.datasets.skew import load_dealt
from task.resolve.contract import takes_public

MOST_CLASSES, SHOWN_CLIENTS = 100, 60  # of the labels in config.json


def server_data(config: Config) -> Dataset | None:
    """Return the data set that the server evaluates on; None if only the nodes have data."""
    if spec_of(config.data.dataset).own and not config.data.data_path:
        return None
    return load_dealt(config)[0]


def data_card(config: Config, dataset: Dataset | None, labelled: bool) -> dict[str, Any] | None:
    """Return what ``config.json`` says of the data: what, where from, how many, how skewed."""
    if dataset is None:
        return None
    partition = load_partition(dataset, config.data, config.seeds.data)
    if takes_public(config):
        partition = without_public(partition, dataset, config)
    return {
        "description": dataset.description,
        "source": dataset.source,
        "fingerprint": dataset.fingerprint,
        "train_examples": dataset.num_train,
        **({"public_examples": config.public.examples} if takes_public(config) else {}),
        "test_examples": len(dataset.y) - dataset.num_train,
        "clients": partition.num_clients,
        "skew": {k: float(v) for k, v in partition.skew.items()},
        **(_labels(dataset, partition) if labelled else {}),
    }


def _labels(dataset: Dataset, partition: Partition) -> dict[str, Any]:
    """Return how many examples of each class the first clients have, if there are not too many classes."""
    if not 1 < dataset.num_classes <= MOST_CLASSES:
        return {}
    counts = label_counts(dataset, partition, SHOWN_CLIENTS).tolist()
    return {"labels": {"clients": list(partition.names[: len(counts)]), "counts": counts}}
