"""The lock of a result folder: a run holds ``RUN/.lock``, so that no other writes there.

The kernel releases the lock when the process ends, however it ends. A process that finds the folder locked
can wait: the holder may be a ServerApp that is about to end because its SuperLink gave it up.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from task.errors import BouquetError, ConfigError
from task.storage.locks import HeldError, is_locked, locked

LOCK = ".lock"


@contextmanager
def holding(folder: Path, wait_s: float, tell: Callable[[str], None] = print) -> Iterator[None]:
    """Make a result folder and hold it for the block; wait up to `wait_s` seconds for another holder.

    If nothing was written into it, it is removed.

    Raises:
        BouquetError: Another process still holds it.
        ConfigError: The folder cannot be made.
    """

    def waiting(holder: str) -> None:
        tell(f"{folder}: process {holder or '?'} writes to it; waiting up to {wait_s:g} s until it ends")

    with ExitStack() as held:
        try:
            held.enter_context(locked(folder / LOCK, f"{os.getpid()}\n", wait_s=wait_s, waiting=waiting))
        except HeldError as err:
            raise BouquetError(
                f"{folder}: expected a result folder that no run writes to; got one that process "
                f"{err.holder or '?'} holds. Wait until it ends, or choose another --run-name"
            ) from None
        except OSError as err:
            raise ConfigError(
                f'run-config keys "runs-dir" and "run-name": cannot write the result folder {folder}: {err}'
            ) from None
        owner = os.getpid()
        try:
            yield
        finally:
            if os.getpid() == owner:
                _drop_empty(folder)


def _drop_empty(folder: Path) -> None:
    """Remove a folder that holds only its lock; a process that waits for the lock makes both again."""
    with suppress(OSError):  # it is gone, or another file has come
        if [path.name for path in folder.iterdir()] == [LOCK]:
            (folder / LOCK).unlink()
            folder.rmdir()


def is_held(folder: Path) -> bool:
    """Return whether a run writes into a result folder just now."""
    return is_locked(folder / LOCK)
