"""Confine a run on a link to files of the link's kit."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server_app.deploy.kits.kit import CONFIG, read_link_kit
from task.config.read import flatten
from task.config.sections import Value
from task.errors import ConfigError

KIT = "BOUQUET_KIT"  # in the environment of every process of a link's kit: its folder
PATHS = ("runs-dir", "data-path", "data-dir", "cache-dir", "state-dir", "initial-model")


def authority() -> bytes:
    """Return the certificate of the federation's authority, PEM; b"" outside of a link's kit."""
    kit = os.environ.get(KIT)
    return Path(kit, "ca.crt").read_bytes() if kit else b""


def reply_limit() -> tuple[int, str]:
    """Return the bytes that a node's reply may have, and the file that says so; (0, "") outside of a link."""
    kit = os.environ.get(KIT)
    return (read_link_kit(kit).max_reply, str(Path(kit, CONFIG))) if kit else (0, "")


def submitter_of(run: str) -> str:
    """Return who submitted a run, by the name of its result folder; "" outside of a link's kit."""
    kit = os.environ.get(KIT)
    try:
        return str(json.loads(Path(kit, "jobs", f"{run}.json").read_bytes())["submitter"]) if kit else ""
    except (OSError, ValueError, KeyError, TypeError):  # it was not submitted as a job
        return ""


def confined(keys: Mapping[str, Any], kit: Path) -> dict[str, Value]:
    """Return run-config keys with absolute paths below a kit; relative paths start there.

    Only names count: a symbolic link that the kit's owner put there may lead anywhere.

    Raises:
        ConfigError: A path leads out of the kit.
    """
    flat = flatten(keys)
    for key in PATHS:
        if given := flat.get(key):
            path = Path(os.path.normpath(kit / str(given)))
            if not path.is_relative_to(kit):
                raise ConfigError(
                    f'run-config key "{key}": expected a path below {kit}, the kit of the link that runs '
                    f"it; got {given!r}. Put the file there, or a symbolic link to it"
                )
            flat[key] = str(path)
    return flat
