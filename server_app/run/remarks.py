"""Remarks of a run before round 1: its data, its name, and warnings about them."""

from collections.abc import Iterator, Mapping
from typing import Any

from server_app.run.data_card import clients_measure
from server_app.run.naming import numbered
from task.config.knobs import Config
from task.config.read import as_run_config
from task.datasets import Dataset
from task.datasets.columns import unscaled
from task.datasets.facts_in_words import as_text
from task.datasets.own import rearranged
from task.references import not_repeatable
from task.resolve.contract import contract_of


def remarks(
    config: Config, name: str, card: Mapping[str, Any], dataset: Dataset | None, loaded: list[str]
) -> Iterator[str]:
    """Yield the lines.

    Args:
        config: The run.
        name: What its folder is called.
        card: What ``config.json`` says of its data.
        dataset: What the server has of them.
        loaded: Lines about the file that its model comes from.
    """
    yield from as_text(card)
    if note := numbered(config, name):
        yield note
    yield from loaded
    if alone := only_in_python(config):
        yield alone
    if config.server.transcript == "full" and not config.server.secagg:
        yield 'transcript = "full" without secagg: the result folder holds what nodes send, unmasked'
    if no_figures := unmeasured(config, dataset):
        yield no_figures
    if dataset is not None and not config.output.resume:
        yield from (f"warning: {warning}" for warning in warnings(config, dataset))


def unmeasured(config: Config, dataset: Dataset | None) -> str:
    """Return the sentence for a run that measures its model on no test data; "" for any other."""
    entry, rows = contract_of(config), dataset.test_rows if dataset else slice(0, 0)
    central = config.server.evaluate_every > 0 and rows.stop > rows.start
    if entry.statistics or entry.vertical or central or clients_measure(config):
        return ""
    if config.server.evaluate_every < 1 and rows.stop > rows.start:
        todo = "set evaluate-every, such as 1, to test on the server"
    elif config.dp.central:
        todo = "the server has no test data, and those of single clients are not protected by dp.noise"
    else:
        todo = "set fraction-evaluate, such as 1.0, to test at the clients; the server has no test data"
    return f"no test figures: {todo}"


def only_in_python(config: Config) -> str:
    """Return the sentence for a run whose config alone does not repeat it; "" for any other."""
    return not_repeatable(as_run_config(config))


def warnings(config: Config, dataset: Dataset) -> list[str]:
    """Return what is odd about the training examples, or was not read as it stands."""
    return [line for line in _odd(config, dataset) if line]


def _odd(config: Config, dataset: Dataset) -> Iterator[str]:
    by_party = contract_of(config).vertical and config.vertical.standardise
    yield "" if by_party else unscaled(dataset, config.data)
    yield from dataset.notes
    yield rearranged(dataset, config.data)
    if dataset.frozen:
        yield (
            f'run-config key "dataset": "{config.data.dataset}": reading an example twice gives '
            "different data, but examples are read once and cached: its random transforms stay the same in "
            'all rounds. Remove them from the data set and set the run-config key "augment", which draws in '
            "each epoch"
        )
