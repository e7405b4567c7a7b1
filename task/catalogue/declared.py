"""What the modules of a room declare for algorithms, such as the work of an analysis's clients.

A module says it itself, under a name that all modules of the room use, and no list has to name the module.
"""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from task.errors import ConfigError


def declared_in(name: str, *rooms: str) -> dict[str, Any]:
    """Return the mappings that modules of some rooms have under a name, as one.

    Raises:
        ConfigError: Two modules declare the same key.
    """
    found: dict[str, Any] = {}
    for room in rooms:
        for module in iter_modules(import_module(room).__path__):
            own: Mapping[str, Any] = vars(import_module(f"{room}.{module.name}")).get(name, {})
            if both := found.keys() & own.keys():
                raise ConfigError(
                    f"{room}.{module.name}: expected keys of {name} of its own; got {sorted(both)}"
                )
            found |= own
    return found
