"""Run-config keys of earlier versions by their present names, so that old files stay readable.

A name that is left here works until the next major version.
"""

from collections.abc import Mapping
from functools import cache
from typing import TypeVar

from task.errors import ConfigError
from task.text import logger

RENAMED = {
    "fedprox.gamma": "fedprox.measure-gamma",
    "heldout-clients": "fraction-heldout",
    "lora.modules": "lora.modules-to-save",
    "lora.targets": "lora.target-modules",
    "nodes": "node-names",
}

V = TypeVar("V")


def present(keys: Mapping[str, V], *, warn: bool = False) -> dict[str, V]:
    """Return the same run-config keys by their present names; `warn` names each old one once a process.

    Raises:
        ConfigError: A key was given by both names.
    """
    found: dict[str, V] = {}
    for key, value in keys.items():
        name = RENAMED.get(key, key)
        if name != key and name in keys:
            raise ConfigError(
                f'run-config key "{key}" is now "{name}": expected one of the two names; got both'
            )
        if name != key and warn:
            _warn(key)
        found[name] = value
    return found


@cache  # once a process
def _warn(key: str) -> None:
    logger.warning('run-config key "%s" is now "%s"; the old name goes with version 2.0', key, RENAMED[key])
