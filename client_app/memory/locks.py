"""One process at a time trains a client: an advisory lock on a file beside its kept state."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from task.errors import StateError, local
from task.storage.files import FILE

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(path: Path, client: str) -> Iterator[None]:
    """Hold the lock file `path` during the block; go on without where the system knows no such locks.

    The file stays, with the last holder's process in it: to delete it would let a process that waits for the
    old file and one that makes a new one hold the lock at once.

    Raises:
        StateError: Somebody else trains this client.
        OSError: The file cannot be made.
    """
    if fcntl is None:
        yield
        return
    handle = os.open(path, os.O_RDWR | os.O_CREAT, FILE)  # Python's files are closed on exec
    try:
        owner = os.getpid()
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 200).decode(errors="replace") or "another process"
            raise StateError(
                f"client {client}: expected that nobody else trains it; got its lock {local(path)} held by "
                f"{local(holder)}. Let that process end, or stop it."
            ) from None
        except OSError:
            owner = 0  # no locks on this file system
        else:
            os.ftruncate(handle, 0)
            os.write(handle, f"process {owner} on {platform.node()}".encode())
        try:
            yield
        finally:
            # A forked child shares the lock: the parent frees it for both, and a child must not.
            if os.getpid() == owner:
                fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)
