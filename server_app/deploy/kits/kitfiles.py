"""Kits on disk: one command at a time, files replaced whole, leftovers of killed commands removed."""

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from task.errors import BouquetError, ConfigError
from task.storage import locks
from task.storage.files import make_folder, write_bytes, write_text

MAKING = ".making-"  # prefix of a kit's name while it is built
# What a killed command leaves: unfinished kits, and the temporary files of `task.storage.files`.
LEFT_OVER = (
    f"{MAKING}*", ".provision.json.*", "*/.kit.toml.*", "*/.README.txt.*", "link/.server.crt.*",
    "*/.node.crt.*", "*/.he.context.*", "link/.he.json.*", "link/nodes/.*.pub.*", "link/submitters/.*.pub.*",
    "link/revoked/.*.pub.*",
)  # fmt: skip


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make and lock a folder for the block, and remove what a killed command left in it.

    Raises:
        BouquetError: Another command has locked it.
    """
    make_folder(folder)
    with ExitStack() as held:
        try:
            held.enter_context(locks.locked(folder))
        except locks.HeldError:
            raise BouquetError(
                f"{folder}: another `bouquet provision` is working in it. Wait until it ends"
            ) from None
        for pattern in LEFT_OVER:
            for left in folder.glob(pattern):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        yield


def publish(path: Path, data: bytes) -> None:
    """Replace a file atomically, unless it has these bytes already."""
    if not path.exists() or path.read_bytes() != data:
        write_bytes(path, data)


def uncomment(config: Path, key: str) -> None:
    """Make a top-level key of a TOML file count that its template has in a comment."""
    text = config.read_text(encoding="utf-8")
    write_text(config, re.sub(rf"(?m)^# ({key} = \"[^\"\n]*\")", r"\1", text, count=1))


def set_key(config: Path, key: str, value: str) -> None:
    """Set a top-level key of a TOML file to a text, and leave the rest of the file as it is.

    Raises:
        ConfigError: The key does not appear exactly once, as a text on one line.
    """
    head, *rest = re.split(r"(?m)^(?=\[)", config.read_text(encoding="utf-8"), maxsplit=1)
    head, count = re.subn(rf"(?m)^({key}\s*=\s*)(\"[^\"\n]*\"|'[^'\n]*')", rf'\g<1>"{value}"', head)
    if count != 1:
        raise ConfigError(f'{config}: key "{key}": expected one line {key} = "..."; got {count}')
    write_text(config, head + "".join(rest))
