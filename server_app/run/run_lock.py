"""At most one run writes into a result folder: it holds ``RUN/.lock`` for its life.

The kernel lets go of the lock when the process ends, however it ends. Who finds the folder held can wait:
what holds it may be a ServerApp that is about to end because its SuperLink has given up on it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from task.errors import BouquetError, ConfigError
from task.storage.files import FILE, make_folder

LOCK = ".lock"
LOOK_S = 0.2


@contextmanager
def holding(folder: Path, wait_s: float, tell: Callable[[str], None] = print) -> Iterator[None]:
    """Hold a result folder for the block; it is made.

    Args:
        folder: The folder.
        wait_s: How long to wait for whoever holds it.
        tell: Takes one line if there is somebody to wait for.

    Raises:
        BouquetError: Somebody else still holds it.
        ConfigError: The folder cannot be made.
    """
    path = folder / LOCK
    deadline, told = time.monotonic() + wait_s, False
    while (file := _try(path)) is None:
        holder = _holder(path)
        if time.monotonic() >= deadline:
            raise BouquetError(
                f"{folder}: expected a result folder that no run writes into; got one that process {holder} "
                f"holds. Wait for its end, or choose another --run-name"
            )
        if not told:
            tell(f"{folder}: process {holder} writes into it; waiting up to {wait_s:g} s for its end")
            told = True
        time.sleep(LOOK_S)
    try:
        os.ftruncate(file, 0)
        os.write(file, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(file)


def is_held(folder: Path) -> bool:
    """Return whether a run writes into a result folder just now."""
    try:
        file = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _try(path: Path) -> int | None:
    """Return the open lock file, held; None if somebody else holds it."""
    try:
        make_folder(path.parent)
        file = os.open(path, os.O_RDWR | os.O_CREAT, FILE)
    except OSError as err:
        raise ConfigError(
            f'run-config keys "runs-dir" and "run-name": cannot write the result folder {path.parent}: {err}'
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The folder may have been moved between the two calls; then the lock is that of another.
        if os.fstat(file).st_ino == path.stat().st_ino:
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(file)
    return None


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip() or "?"
    except (OSError, UnicodeDecodeError):
        return "?"
