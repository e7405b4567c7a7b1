"""A file of JSON lines that outlive the process that writes them."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from task.errors import StateError, local
from task.storage.files import make_folder, naming, private, sync_folder


class DurableLines:
    """An append-only file of JSON lines, each on the disk before what it describes happens."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines; an incomplete last line describes what did not happen, and is ignored.

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
