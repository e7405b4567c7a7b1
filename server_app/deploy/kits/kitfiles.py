"""Kits on disk: built beside their place and renamed, keys never written over, one command at a time."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from task.errors import BouquetError, ConfigError
from task.storage import locks
from task.storage.files import building, make_folder, synced, write_bytes, write_text

MAKING = ".making-"
# What a killed command leaves: kits that are being built, and files that `task.storage.files` was about to
# replace.
LEFT_OVER = (
    f"{MAKING}*", ".provision.json.*", "*/.kit.toml.*", "*/.README.txt.*", "link/.server.crt.*",
    "link/nodes/.*.pub.*", "link/revoked/.*.pub.*",
)  # fmt: skip


def making(folder: Path) -> AbstractContextManager[Path]:
    """Give a folder to build `folder` in; when the block ends well, it becomes `folder`, whole."""
    return building(folder, MAKING)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder, keep other commands out of it for the block, and sweep what a killed one left.

    Raises:
        BouquetError: Another command is at work in it.
    """
    make_folder(folder)
    with ExitStack() as held:
        try:
            held.enter_context(locks.locked(folder))
        except locks.HeldError:
            raise BouquetError(
                f"{folder}: another `bouquet provision` works in it. Wait for its end"
            ) from None
        for pattern in LEFT_OVER:
            for left in folder.glob(pattern):
                shutil.rmtree(left)
        yield


def write_new(path: Path, data: bytes) -> None:
    """Write a file that must not be there yet, durably."""
    with synced(path) as file:
        file.write(data)


def publish(path: Path, data: bytes) -> None:
    """Write a file whole, unless it is there with these bytes."""
    if not path.exists() or path.read_bytes() != data:
        write_bytes(path, data)


def set_key(config: Path, key: str, value: str) -> None:
    """Replace the text of a top-level key of a TOML file, and leave everything else as it is.

    Raises:
        ConfigError: The key is not there, once, as a text on one line.
    """
    head, *rest = re.split(r"(?m)^(?=\[)", config.read_text(encoding="utf-8"), maxsplit=1)
    head, count = re.subn(rf"(?m)^({key}\s*=\s*)(\"[^\"\n]*\"|'[^'\n]*')", rf'\g<1>"{value}"', head)
    if count != 1:
        raise ConfigError(f'{config}: key "{key}": expected one line {key} = "..."; got {count}')
    write_text(config, head + "".join(rest))
