"""The arguments of a strategy, by our names and by Flower's."""

from dataclasses import fields, replace
from typing import Any

from task.catalogue.entry import Algorithm
from task.catalogue.user_algorithm import algorithm_of
from task.config.knobs import Config
from task.config.read import as_run_config, defaults
from task.config.sections import ServerConfig
from task.errors import ConfigError, choose_from
from task.resolve.contract import contract_of
from task.resolve.effective import check_read

FLOWER_NAMES = {"min_available_nodes": "min_nodes", "min_train_nodes": "min_replies"}


def configured(algorithm: str, config: Config | None, knobs: dict[str, Any]) -> tuple[Config, Algorithm]:
    """Return the config of a strategy of an algorithm, with `knobs` on top, and the contract of its run.

    Raises:
        ConfigError: An unknown knob, or one that was set and that nothing in the run reads.
    """
    config = with_knobs(config or Config(algorithm=algorithm), knobs)
    mine = algorithm_of(config.algorithm).rule == algorithm_of(algorithm).rule
    named = config if mine else replace(config, algorithm=algorithm)
    check_read(as_run_config(named), defaults())
    return config, contract_of(named)


def with_knobs(config: Config, knobs: dict[str, Any]) -> Config:
    """Return `config` with server knobs replaced by name."""
    # The number of rounds is an argument of `start`, as Flower has it.
    known = {f.name for f in fields(ServerConfig)} - {"num_server_rounds"}
    named = {FLOWER_NAMES.get(k, k): v for k, v in knobs.items()}
    seed = named.pop("seed", config.seed)
    for key in named:
        if key not in known:
            raise ConfigError(choose_from(f"strategy argument {key!r}", key, known | {"seed", *FLOWER_NAMES}))
    return replace(config, seed=seed, server=replace(config.server, **named))
