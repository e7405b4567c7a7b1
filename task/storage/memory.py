"""Memory: how much of it is left on this machine, before something large is read."""

import psutil


def available() -> int:
    """Return the memory that processes can have without swapping, in bytes."""
    return int(psutil.virtual_memory().available)
