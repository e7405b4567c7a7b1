"""Read and check a run's keys before anything starts, and load its data into the cache."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server_app.run.confined import KIT, confined
from server_app.run.data_card import server_data
from server_app.run.encryption import check_key
from server_app.run.naming import folder_of_run
from task import trust
from task.config.knobs import Config
from task.datasets.partition import load_partition
from task.errors import ConfigError
from task.features import check_simulated
from task.flower.ray import in_simulation
from task.models.brought import find_maker
from task.privacy.accounting import accountant
from task.references import is_reference, references_in
from task.resolve.contract import contract_of
from task.resolve.read import read_config
from task.tasks import task_of


def read_submitted(run_config: Mapping[str, Any]) -> Config:
    """Return the config of a run that Flower starts, from its submitted keys.

    Raises:
        ConfigError: A key is wrong, names a file outside the link's kit, or cannot be simulated.
    """
    kit = os.environ.get(KIT)
    keys = confined(run_config, Path(kit)) if kit else run_config
    trust.user_named(references_in(keys))  # the user who submits a run has typed its keys
    config = read_config(keys)
    if in_simulation():
        check_simulated(config)
    return config


def prepare(run_config: Mapping[str, Any]) -> None:
    """Check the keys and bring the data into the cache, before anything else is started.

    Raises:
        BouquetError: As `server_app.app.run` would raise it later.
    """
    config = read_config(run_config)
    check_measured(config)
    if config.output.trackers:
        from server_app.run.trackers import check_trackers

        check_trackers(config)
    if config.dp.noise:
        accountant()
    check_key(config)
    folder_of_run(config)
    for name in filter(is_reference, config.model_names):
        find_maker(name)
    dataset = server_data(config)
    if dataset is not None:
        task_of(config, dataset.task, dataset.num_classes)
        load_partition(dataset, config.data, config.seeds.data)


def check_measured(config: Config) -> None:
    """Refuse a run whose models are the clients' own and that measures nothing on the clients.

    Raises:
        ConfigError: Naming the key to set.
    """
    if config.dp.central:  # numbers of single clients stay there
        return
    if config.server.he and config.server.fraction_evaluate == 0:
        raise ConfigError(
            'run-config key "fraction-evaluate": the server cannot decrypt the model (he = true), so '
            "clients must evaluate it; expected > 0, such as 1.0, or no value; got 0"
        )
    if contract_of(config).personal and config.server.fraction_evaluate == 0:
        raise ConfigError(
            f'run-config key "fraction-evaluate": the models of "{config.algorithm}" are the clients\' own '
            "and are evaluated on their test data; expected > 0, such as 1.0, or no value; got 0"
        )
