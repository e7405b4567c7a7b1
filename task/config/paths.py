"""Folders that a run uses: raw data, decoded data, client state."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from task.config.knobs import Config
from task.config.sections import DataConfig

DATA, CACHE = "BOUQUET_DATA", "BOUQUET_CACHE"  # environment variables: the folders of keys that are not set


def cache_dir(config: DataConfig) -> Path:
    """Return the folder of decoded data and partitions: the key, $BOUQUET_CACHE or ~/.cache/bouquet."""
    return _cache(config.cache_dir)


def _cache(chosen: str) -> Path:
    return Path(chosen or os.environ.get(CACHE) or "~/.cache/bouquet").expanduser()


def data_dir(config: DataConfig) -> Path:
    """Return the folder of raw data: the key, $BOUQUET_DATA or ~/.cache/bouquet/data."""
    return Path(config.data_dir or os.environ.get(DATA) or "~/.cache/bouquet/data").expanduser()


def state_root(config: Config) -> Path:
    """Return the folder of client state: the key's, else one next to the decoded data."""
    chosen = config.output.state_dir
    return Path(chosen).expanduser() if chosen else state_in(cache_dir(config.data))


def own_state_root(node_config: Mapping[str, Any]) -> Path:
    """Return a deployed node's folder of client state, which no run can change."""
    chosen, cache = (str(node_config.get(key, "")) for key in ("state-dir", "cache-dir"))
    return Path(chosen).expanduser() if chosen else state_in(_cache(cache))


def state_in(cache: Path) -> Path:
    """Return the folder of client state next to the decoded data."""
    return cache / "state"
