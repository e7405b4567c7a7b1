"""Partitions by a class of flwr-datasets, and the arguments of a partition of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import flwr_datasets.partitioner
import numpy as np
import pytest

from task import trust
from task.datasets import load_dataset
from task.datasets.partition import Partition, load_partition
from task.errors import ConfigError, DataError
from task.numerics import seeds
from task.resolve.read import read_config
from task.resolve.validate import check_names
from tests.support.brought import imported_from

CLIENTS = 5


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with imported_from(tmp_path):
        yield tmp_path


def dealt(folder: Path, partition: str, arguments: str = "", **keys: Any) -> Partition:
    given = {
        "partition": partition, "partition-arguments": arguments, "num-clients": CLIENTS,
        "local-test-fraction": 0.0, "cache-dir": str(folder / "cache"), **keys,
    }  # fmt: skip
    trust.user_named([partition])
    config = read_config(given)
    check_names(config)
    dataset = load_dataset(config.data, config.synthetic, config.seed)
    return load_partition(dataset, config.data, config.seeds.data)


def rows(partition: Partition) -> list[list[int]]:
    return [partition.train(i).tolist() for i in range(partition.num_clients)]


@pytest.mark.filterwarnings("ignore")  # the library warns, here where it is called alone
@pytest.mark.parametrize(
    ("name", "arguments", "given"),
    [
        ("DirichletPartitioner", "alpha=0.5, min_partition_size=5", {"alpha": 0.5, "min_partition_size": 5}),
        ("DirichletPartitioner", "alpha=[1, 1, 1, 2, 2.5]", {"alpha": [1, 1, 1, 2, 2.5]}),
        (
            "PathologicalPartitioner",
            "num_classes_per_partition=2, class_assignment_mode='deterministic'",
            {"num_classes_per_partition": 2, "class_assignment_mode": "deterministic"},
        ),
        (
            "ShardPartitioner",
            "num_shards_per_partition=2, shuffle=false",
            {"num_shards_per_partition": 2, "shuffle": False},
        ),
        (
            "SizePartitioner",
            "partition_sizes=[10, 20, 30, 40, 50]",
            {"partition_sizes": [10, 20, 30, 40, 50]},
        ),
        ("LinearPartitioner", "", {}),
    ],
)
def test_a_class_deals_as_the_library_does(
    folder: Path, name: str, arguments: str, given: dict[str, Any]
) -> None:
    """A seed of the library's own, 42 for all runs; arguments that do not reach it."""
    found = rows(dealt(folder, f"flwr_datasets.partitioner:{name}", arguments))
    config = read_config({})
    labels = load_dataset(config.data, config.synthetic, 1)
    made = getattr(flwr_datasets.partitioner, name)
    ours = {"num_partitions": CLIENTS, "partition_by": "class", "seed": seeds.seed_for(1, seeds.PARTITION)}
    if name in ("SizePartitioner", "LinearPartitioner"):
        ours = {} if name.startswith("Size") else {"num_partitions": CLIENTS}
    partitioner = made(**ours, **given)
    table = {"class": labels.y[: labels.num_train], "row": np.arange(labels.num_train)}
    partitioner.dataset = datasets.Dataset.from_dict(table)
    assert found == [sorted(partitioner.load_partition(i)["row"]) for i in range(CLIENTS)]


def test_the_seed_of_the_data_decides(folder: Path) -> None:
    name = "flwr_datasets.partitioner:DirichletPartitioner"
    first, again, other, weak = (
        rows(dealt(folder / str(i), name, arguments, **{"data-seed": seed}))
        for i, (seed, arguments) in enumerate(
            [(3, "alpha=0.5"), (3, "alpha=0.5"), (4, "alpha=0.5"), (3, "alpha=9")]
        )
    )
    assert first == again
    assert first not in (other, weak)
    assert rows(dealt(folder / "0", name, "alpha=9", **{"data-seed": 3})) == weak  # not those of the cache


def test_arguments_reach_a_function_of_ones_own(folder: Path) -> None:
    (folder / "spread_out.py").write_text(
        "import numpy as np\n"
        "def every(labels, num_clients, rng, step, offset=0):\n"
        "    return [np.arange(offset + i, len(labels), step) for i in range(num_clients)]\n"
    )
    found = rows(dealt(folder, "spread_out:every", "step=100, offset=7"))
    assert found[1][:3] == [8, 108, 208]


@pytest.mark.parametrize(
    ("name", "arguments", "error", "words"),
    [
        (
            "DirichletPartitioner",
            "",
            ConfigError,
            r'"partition-arguments": .*\(num_partitions.*argument: .alpha.',
        ),
        ("DirichletPartitioner", "alfa=1", ConfigError, "arguments.*got 'alfa=1'"),
        ("DirichletPartitioner", "alpha=", ConfigError, '"partition-arguments": expected TOML'),
        ("DirichletPartitioner", "alpha=1}\nb={", ConfigError, "expected one line of TOML"),
        ("DirichletPartitioner", "alpha=1, seed=3", ConfigError, 'no seed, which .*"data-seed" says'),
        ("IidPartitioner", "num_partitions=3", ConfigError, 'no num_partitions, which .*"num-clients" says'),
        ("DirichletPartitioner", "alpha=1, partition_by='text'", DataError, "got an error"),
        ("SizePartitioner", "partition_sizes=[9, 9]", DataError, "expected 5 lists of rows.*got 2"),
        ("VerticalEvenPartitioner", "", ConfigError, "a partitioner of examples; got one of columns"),
        ("Partitioner", "", DataError, "got an error"),
    ],
)
def test_what_a_class_does_not_take_is_refused(
    folder: Path, name: str, arguments: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        dealt(folder, f"flwr_datasets.partitioner:{name}", arguments)


def test_arguments_that_nothing_reads_are_refused() -> None:
    with pytest.raises(
        ConfigError, match='"partition-arguments": nothing in this run reads it; expected partition'
    ):
        read_config({"partition": "dirichlet", "partition-arguments": "alpha=0.5"})
