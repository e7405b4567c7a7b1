"""The record ``config`` of a training message: the numbers of an order."""

from typing import cast

from flwr.app import ConfigRecord, RecordDict

CONFIG = "config"
ROUNDS = ("server-round", "oldest-round")  # entries that are no scalars of the order


def config_of(content: RecordDict) -> ConfigRecord:
    """Return the record ``config`` of a message; an empty one if it has none."""
    record = content.get(CONFIG)
    return record if isinstance(record, ConfigRecord) else ConfigRecord()


def scalars_in(content: RecordDict) -> dict[str, float]:
    """Return the numbers that come with an order, ``lr`` among them."""
    config = config_of(content)
    return {k: float(v) for k, v in config.items() if isinstance(v, int | float) and k not in ROUNDS}


def epochs_in(content: RecordDict) -> tuple[int, ...]:
    """Return the epochs of an order's clients; 0 = as configured."""
    config = config_of(content)
    clients = cast("list[str]", config.get("clients", []))
    return tuple(int(e) for e in cast("list[int]", config.get("epochs", [0] * len(clients))))
