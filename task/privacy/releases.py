"""The secret that noise is derived from, and a file with a line for each release."""

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from task.errors import StateError, local
from task.privacy import noise
from task.storage.files import make_folder, naming, private, sync_folder


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
            with contextlib.suppress(FileExistsError):
                os.link(temp.name, path)
        sync_folder(path.parent)
    found = path.read_bytes()
    if len(found) != noise.SECRET_BYTES:
        raise StateError(f"{local(path)}: expected {noise.SECRET_BYTES} bytes; got {len(found)}")
    return found


class Releases:
    """An append-only file of JSON lines, each on the disk before the release that it describes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines; an incomplete last line describes a release that was not made, and is ignored.

        Raises:
            StateError: Another line is damaged.
        """
        if not self.path.exists():
            return []
        whole, _, _ = self.path.read_bytes().rpartition(b"\n")
        found = []
        for i, line in enumerate(whole.splitlines(), start=1):
            try:
                found.append(dict(json.loads(line)))
            except (ValueError, TypeError) as err:
                raise StateError(
                    f"{local(self.path)}, line {i}: expected a JSON object; got {local(err)}"
                ) from None
        return found

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line; it is on the disk when this returns."""
        make_folder(self.path.parent)
        new = not self.path.exists()
        with naming(self.path), open(self.path, "a+b", opener=private) as file:
            self._cut(file)
            file.write((json.dumps(line, allow_nan=False) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync_folder(self.path.parent)

    @staticmethod
    def _cut(file: BinaryIO) -> None:
        """Cut off a last line that is not whole, so that the next one does not become a part of it."""
        end = file.seek(0, os.SEEK_END)
        if end and (file.seek(end - 1), file.read(1))[1] != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
