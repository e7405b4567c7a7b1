"""At most one run writes into a result folder: it holds ``RUN/.lock`` for its life.

The kernel lets go of the lock when the process ends, however it ends. Who finds the folder held can wait:
what holds it may be a ServerApp that is about to end because its SuperLink has given up on it.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from task.errors import BouquetError, ConfigError
from task.storage.locks import HeldError, is_locked, locked

LOCK = ".lock"


@contextmanager
def holding(folder: Path, wait_s: float, tell: Callable[[str], None] = print) -> Iterator[None]:
    """Make a result folder and hold it for the block; wait up to `wait_s` seconds for another holder.

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
        yield


def is_held(folder: Path) -> bool:
    """Return whether a run writes into a result folder just now."""
    return is_locked(folder / LOCK)
