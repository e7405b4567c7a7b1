"""Advisory locks on files, which the kernel frees when their process ends, however it ends."""

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from task import timing
from task.storage.files import FILE, make_folder

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

PROBES = 5  # tries before a lock counts as held: `is_locked` holds it for a moment
WORDS = 200  # length of a holder's text in bytes, padded with blanks


class HeldError(Exception):
    """Another process holds the lock; `holder` is what it wrote into the file, "" if nothing can be read."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


@contextmanager
def locked(
    path: Path,
    words: str = "",
    *,
    wait_s: float = 0.0,
    waiting: Callable[[str], None] = lambda holder: None,
    optional: bool = False,
) -> Iterator[None]:
    """Hold a lock on a file, which is made with its folder, or on a folder that is there, during the block.

    The file stays, with the last holder's text in it: if it were deleted, a process that waits for the old
    file and one that makes a new one could hold the lock at the same time. A forked child shares the lock:
    the parent frees it for both, and a child's end of the block does not.

    Wait up to `wait_s` for another holder; `waiting` is called once before, with the holder's words.
    With `optional` it continues without a lock if the system or the file system has none.

    Raises:
        HeldError: Another process still holds it.
        OSError: The file cannot be made, or cannot be locked and `optional` is not set.
    """
    for _ in range(PROBES):
        if (taken := _try(path, optional)) is not None:
            break
        time.sleep(timing.LOCK_PROBE_S)
    deadline, said = time.monotonic() + wait_s, False
    while taken is None and (taken := _try(path, optional)) is None:
        holder = _holder(path)
        if time.monotonic() >= deadline:
            raise HeldError(holder)
        if not said:
            waiting(holder)
            said = True
        time.sleep(timing.LOCK_LOOK_S)
    handle, owner = taken
    try:
        if owner and words:
            # Overwrite the text: truncating the file first would wait for the disk.
            os.pwrite(handle, words.encode().ljust(WORDS)[:WORDS], 0)
        yield
    finally:
        if os.getpid() == owner:
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def is_locked(path: Path) -> bool:
    """Return whether a process holds a lock just now."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _try(path: Path, optional: bool) -> tuple[int, int] | None:
    """Return the open file and the process that holds it, 0 = there are no locks; None if another does."""
    make_folder(path.parent)
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    handle = os.open(path, flags, FILE)  # Python's files are closed on exec
    try:
        if fcntl is None:
            raise OSError(errno.ENOSYS, "this system has no file locks", str(path))
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The folder may have been moved between the two calls; then the lock is that of another.
        if os.path.samestat(os.fstat(handle), path.stat()):
            return handle, os.getpid()
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        if optional:
            return handle, 0
        os.close(handle)
        raise
    os.close(handle)
    return None


def _holder(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(WORDS).decode(errors="replace").strip()
    except OSError:
        return ""
