"""The server's side of homomorphic encryption (run-config key ``he``): it knows only the key's digest.

On a link its kit says so. In a simulation the driver is server and key holder in one: it makes the key, below
``state-dir``, and decrypts the final model with it. The model of a deployed run can be decrypted with a
node's kit.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from server_app.results.folder import ENCRYPTED, MODEL, no_run, place_of
from server_app.run.confined import KIT
from task.config.knobs import Config
from task.config.paths import state_root
from task.encryption import ckks
from task.errors import ConfigError
from task.numerics.arrays import Arrays, NamedArrays
from task.resolve.model_card import read_arrays
from task.storage.files import write_safetensors


def check_key(config: Config) -> Mapping[str, str]:
    """Return the digest of a run's key, like code in `task.references.code_of`; {} without encryption.

    Raises:
        ConfigError: TenSEAL is not installed, or there is no key.
    """
    if not config.server.he:
        return {}
    ckks.tenseal()
    if kit := os.environ.get(KIT):
        return {ckks.KEY_FILE: _of_kit(Path(kit) / ckks.PUBLIC_FILE)}
    return {ckks.KEY_FILE: ckks.id_of(ckks.simulated_key(state_root(config)).read_bytes())}


def _of_kit(path: Path) -> str:
    try:
        found = json.loads(path.read_text("utf-8"))
        known, parameters = str(found["id"]), found["parameters"]
    except FileNotFoundError:
        raise ConfigError(
            f'run-config key "he": expected {path}, the public parameters of the nodes\' key; got none. '
            "`bouquet provision --he` makes it; copy it to the link's kit"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise ConfigError(f"{path}: expected what `bouquet provision --he` made; got {err}") from None
    if parameters != ckks.public_of(b"")["parameters"]:
        raise ConfigError(f"{path}: expected the parameters of this version; got {parameters}")
    return known


def in_clear(config: Config, arrays: NamedArrays) -> Arrays:
    """Return a model, decrypted if the driver of a simulation has the key."""
    path = state_root(config) / ckks.KEY_FILE
    if not ckks.sealed(arrays) or os.environ.get(KIT) or not path.exists():
        return dict(arrays)
    return ckks.read_key(path).open(arrays)


def decrypt(run: Path, key: Path) -> Path:
    """Write ``model.safetensors`` into a result folder that holds an encrypted model; return its path.

    `key` is the file of the nodes' key.

    Raises:
        ConfigError: There is no such model, or no key.
        WireError: The model is encrypted under another key.
        StateError: The model's file is damaged.
    """
    folder = place_of(run)
    if not folder.exists():
        raise no_run("expected a result folder or a run's name below runs/", run)
    if not (folder / ENCRYPTED).exists():
        raise ConfigError(f"{folder}: expected a result folder with {ENCRYPTED}; got none")
    metadata, arrays = read_arrays(folder / ENCRYPTED)
    write_safetensors(folder / MODEL, ckks.read_key(key).open(arrays), metadata)
    return folder / MODEL
