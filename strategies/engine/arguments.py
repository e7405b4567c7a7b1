"""The arguments of a strategy, by our names and by Flower's."""

from dataclasses import fields, replace
from typing import Any

from task.config.knobs import Config
from task.config.sections import ServerConfig
from task.errors import ConfigError, choose_from

FLOWER_NAMES = {"min_available_nodes": "min_nodes", "min_train_nodes": "min_replies"}


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
