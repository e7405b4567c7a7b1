"""Open the model of an encrypted run (run-config key ``he``) where a node's key is."""

from pathlib import Path

from server_app.results.folder import ENCRYPTED, MODEL
from task.encryption.ckks import read_key
from task.errors import ConfigError
from task.resolve.model_card import read_arrays
from task.storage.files import write_safetensors


def decrypt(run: Path, key: Path) -> Path:
    """Write ``model.safetensors`` into a result folder that holds an encrypted model; return its path.

    `key` is the file of the nodes' key.

    Raises:
        ConfigError: There is no such model, or no key.
        WireError: The model is encrypted under another key.
        StateError: The model's file is damaged.
    """
    folder = next((p for p in (run, Path("runs") / run) if p.is_dir()), run)
    if not (folder / ENCRYPTED).exists():
        raise ConfigError(f"{folder}: expected a result folder with {ENCRYPTED}; got none")
    metadata, arrays = read_arrays(folder / ENCRYPTED)
    write_safetensors(folder / MODEL, read_key(key).open(arrays), metadata)
    return folder / MODEL
