"""Tables and plots of `bouquet data`: the data sets, their sources, and which client owns what."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.table import Table

from server_app.run.data_card import data_card
from server_app.run.remarks import warnings
from task.config.knobs import Config
from task.datasets import DATASETS
from task.datasets.facts_in_words import in_words
from task.datasets.partition import PARTITIONS, label_counts
from task.datasets.skew import load_partitioned
from task.storage.files import make_folder

MOST_NAMES = 30  # of columns, classes or owners in a line


def listing() -> list[Table]:
    """Return the tables of data sets and partitions."""
    sets = Table("dataset", "what it is", "source", "model", title="data sets")
    for name, spec in DATASETS.items():
        sets.add_row(name, spec.description, spec.source, spec.model)
    parts = Table("partition", "how examples are split", title="partitions")
    for name, partition in PARTITIONS.items():
        parts.add_row(name, partition.description)
    return [sets, parts]


def describe(config: Config, plot: Path) -> list[Table | str]:
    """Load and partition the data of a run, plot the label counts per client and return tables.

    Raises:
        DataError: The data cannot be used.
    """
    dataset, partition = load_partitioned(config)
    table = Table(show_header=False, title=f"{dataset.name}, {config.data.partition}")
    found = data_card(config, dataset, labelled=False)
    num_test = found["test_examples"]
    test = f"{num_test:,} in the global test set" if num_test else "no global test set"
    for key, value in (
        ("examples", f"{dataset.num_train:,} in the training pool, {test}"),
        ("example", f"{dataset.kind} of shape {list(dataset.input_shape)}"),
        *in_words({**found, "notes": ()}, MOST_NAMES),
        *skew_in_words(found["skew"], dataset.num_classes if dataset.task == "classification" else 0),
    ):
        table.add_row(key, value)
    counts = label_counts(dataset, partition)
    plot_label_counts(counts, list(partition.names), plot, f"{dataset.name}, {config.data.partition}")
    warned = [f"warning: {warning}" for warning in warnings(config, dataset)]
    return [table, *warned, f"label counts per client: {plot.resolve()}"]


def skew_in_words(skew: Mapping[str, float], classes: int) -> list[tuple[str, str]]:
    """Return the figures of `Partition.skew` that the line of clients lacks, each with what it means.

    `classes` is 0 where examples have none.
    """
    labels = [
        ("class count", f"{skew['classes_mean']:.3g} of {classes:,} at a client on average"),
        (
            "class mix",
            f"{skew['label_tv_mean']:.3g}: mean total-variation distance of a client's classes from those of "
            "all clients (0 = the same mix, 1 = no class in common)",
        ),
    ]
    return [
        ("sizes", f"Gini coefficient {skew['size_gini']:.3g} (0 = all clients have equally many examples)"),
        *(labels if classes else []),
        ("owned", f"{skew['coverage']:.1%} of the training pool, clients' own tests included"),
    ]


def plot_label_counts(counts: np.ndarray, names: list[str], path: Path, title: str) -> None:
    """Write a heat map of label counts, shape [K clients, C classes].

    With more than 60 clients only some axis labels are drawn; with more than 2,000 only the first clients.
    """
    from matplotlib.figure import Figure

    shown = counts[:2000]
    height = min(2.0 + 0.16 * len(shown), 14)
    figure = Figure(figsize=(2.5 + min(0.5 * counts.shape[1], 9), height), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(shown, aspect="auto", cmap="viridis", interpolation="nearest")
    step = max(1, len(shown) // 40)
    axes.set_yticks(range(0, len(shown), step), names[: len(shown) : step], fontsize=7)
    axes.set_xlabel("class")
    axes.set_ylabel(
        "client" if len(shown) == len(counts) else f"client (first {len(shown)} of {len(counts)})"
    )
    axes.set_title(title)
    figure.colorbar(image, ax=axes, label="training examples")
    make_folder(path.parent)
    figure.savefig(path, dpi=110)
