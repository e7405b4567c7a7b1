"""The file of the secret that noise is derived from."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from task.errors import StateError, local
from task.privacy import noise
from task.storage.files import make_folder, sync_folder


def secret_in(path: Path) -> bytes:
    """Return the secret in a file, drawn by the first process that asks for it.

    Raises:
        StateError: It has another length.
    """
    if not path.exists():
        make_folder(path.parent)
        with tempfile.NamedTemporaryFile(dir=path.parent) as temp:  # of mode 0600
            temp.write(noise.draw_secret())
            temp.flush()
            os.fsync(temp.fileno())
            # If several processes start at once, the first link stays, and all of them read it.
            with suppress(FileExistsError):
                os.link(temp.name, path)
        sync_folder(path.parent)
    found = path.read_bytes()
    if len(found) != noise.SECRET_BYTES:
        raise StateError(f"{local(path)}: expected {noise.SECRET_BYTES} bytes; got {len(found)}")
    return found
