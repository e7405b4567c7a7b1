"""The client state of a run on this machine: synced before a checkpoint; at the end reported or deleted."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Self

from task.config.knobs import Config
from task.config.paths import state_root
from task.errors import StateError
from task.storage.client_state import SUFFIX, folder_of
from task.storage.files import sync_folder
from task.units import human_bytes


class KeptSync:
    """Syncs client state to the disk; in a simulation the clients leave that to the run's checkpoints.

    `folder` is that of the run. Files that were put there before are not synced again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._done: set[tuple[int, int]] = set()  # inode and time of each file that is there and synced

    @classmethod
    def of(cls, config: Config, run: str) -> Self:
        """Return the one for the run of this id."""
        return cls(folder_of(state_root(config), config.run_name, run))

    def sync(self) -> None:
        """Sync all files that are new, and the folder.

        The next round may be under way: a file that it replaces has the name of an earlier version by then.
        So it is looked for again until there is no new one.
        """
        while new := self._new():
            for path, file in new.items():
                with suppress(FileNotFoundError):
                    handle = os.open(path, os.O_RDONLY)
                    try:
                        found = os.fstat(handle)
                        os.fsync(handle)
                    finally:
                        os.close(handle)
                    if (found.st_ino, found.st_mtime_ns) == file:
                        self._done.add(file)
            sync_folder(self.folder)

    def _new(self) -> dict[str, tuple[int, int]]:
        if not self.folder.is_dir():
            return {}
        files = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX):
                    with suppress(FileNotFoundError):
                        found = entry.stat()
                        files[entry.path] = found.st_ino, found.st_mtime_ns
        self._done &= set(files.values())
        return {path: file for path, file in files.items() if file not in self._done}


def finish(config: Config, run: str) -> str:
    """Delete the client state of a run, or report its size: return the line to print.

    It is "" where the clients kept nothing, or on machines of their own.

    Raises:
        StateError: It cannot be deleted.
    """
    folder = folder_of(state_root(config), config.run_name, run)
    if not folder.is_dir():
        return ""
    try:
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    except OSError as err:
        raise StateError(f"{folder}: the kept state cannot be read: {err}") from None
    if config.output.keep_state:
        return (
            f"Kept state: {human_bytes(size)} in {folder}; delete it with "
            f"`bouquet state {config.run_name}/{folder.name} --delete --yes`"
        )
    try:
        shutil.rmtree(folder)
    except OSError as err:
        raise StateError(f"--no-keep-state: {folder} cannot be deleted: {err}") from None
    return f"Kept state: {human_bytes(size)} deleted (--no-keep-state); a resumed run would start without it"
