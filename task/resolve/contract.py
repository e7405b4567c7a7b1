"""The contract of a run: its algorithm's catalogue entry with what other keys and features add to it."""

from dataclasses import replace
from functools import lru_cache

from task.catalogue.entry import Algorithm
from task.catalogue.selections import with_selection
from task.catalogue.several import with_models
from task.config.knobs import Config
from task.datasets.base import Dataset
from task.features import with_features, with_read
from task.tasks import metrics_of, with_task


def entry_of(config: Config) -> Algorithm:
    """Return the entry of the run's algorithm, as the algorithm's own keys change it."""
    entry = config.entry
    if entry.models:
        return with_models(entry, int(config.value(entry.models)))
    if entry.distils and not config.value(entry.distils):
        return replace(entry, distils="")
    return entry


@lru_cache(64)  # every message asks for it
def contract_of(config: Config) -> Algorithm:
    """Return the entry of the run's algorithm, under its selection policy and with its features."""
    entry = with_selection(entry_of(config), config.server.selection)
    entry = with_features(config, entry)
    measures = not entry.statistics and metrics_of(config, config.data.task)  # of a trained model
    return replace(entry, metrics=True) if measures else entry


def with_data(config: Config, data: Dataset) -> Config:
    """Return a run config with what follows from data that all clients share: the task, and for features.

    Raises:
        ConfigError: The data are none that a feature of the run could work with.
    """
    return with_read(with_task(config, data.task, data.form), data)


def takes_public(config: Config) -> bool:
    """Return whether the run's public examples are taken out of its clients' own pool."""
    return contract_of(config).reads_public and not config.public.data
