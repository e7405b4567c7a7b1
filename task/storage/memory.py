"""The memory that is available on this machine, to check before reading something large."""

import psutil


def available() -> int:
    """Return the memory that processes can have without swapping, in bytes."""
    return int(psutil.virtual_memory().available)
