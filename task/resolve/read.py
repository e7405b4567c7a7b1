"""Run config -> `Config`, refused before round 1 where its keys do not go together.

Unknown keys, types, ranges, names and keys that nothing in the run reads are refused with the key, what was
expected and what was got.
"""

from collections.abc import Mapping
from typing import Any

from task.config.knobs import Config
from task.config.read import as_run_config, defaults, flatten, read_checked
from task.config.sections import Value
from task.resolve.effective import check_read, unread
from task.resolve.validate import check_names


def read_config(run_config: Mapping[str, Any]) -> Config:
    """Build a `Config` from run-config keys; keys that are absent take their default.

    Raises:
        ConfigError: An unknown key, a wrong type, a value out of range, an unknown name, or a key that was
            set and that nothing in the run reads.
    """
    config = read_checked(run_config)
    check_names(config)
    check_read(as_run_config(config), defaults(), flatten(run_config))
    return config


def fuse(recipe: Mapping[str, Value], own: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Put run-config keys on top of a recipe's.

    A recipe may set the knobs of several algorithms, so that they can be run one after the other.

    Returns:
        All keys without those of the recipe that nothing in the run reads, and by key of these, why.

    Raises:
        ConfigError: A key that is wrong by itself.
    """
    own = flatten(own)
    keys: dict[str, Any] = {**recipe, **own}
    run = as_run_config(read_checked(keys))
    found = unread(run, defaults(), keys)
    out = {key: str(why) for key, why, _ in found if key in recipe and key not in own}
    return {key: value for key, value in keys.items() if key not in out}, out
