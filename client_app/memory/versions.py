"""Earlier versions of a client's kept state, for a run that is resumed.

``<client>@<round>.safetensors`` lies next to the present file. Each file names the one that it was made from,
and only this chain counts: after a crash there may be versions of rounds that a resume has abandoned.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from task.errors import StateError
from task.storage.client_state import SUFFIX, Header, read_header
from task.storage.files import replacing


def version_of(path: Path, server_round: int) -> Path:
    """Return the file of a round's version; `path` is the present file."""
    return path.with_name(f"{path.stem}@{server_round}{SUFFIX}")  # safe names have no "@"


def chain_of(path: Path, present: Header | None) -> tuple[list[int], int]:
    """Return the rounds of the present file and of the versions that led to it, the newest first.

    The second value is the round where the chain breaks off, 0 = nowhere. If that version is damaged and
    a backup is put in its place, those before it count again.
    `path` is the present file and `present` its header, None if it is not there.
    """
    if present is None:
        return [], 0
    chain, previous = [present.round], present.previous
    while previous:
        try:
            header = read_header(version_of(path, previous))
        except (OSError, ValueError, StateError):
            return chain, previous
        if header.round != previous:
            return chain, previous
        chain.append(previous)
        previous = header.previous
    return chain, 0


def beside(path: Path) -> tuple[list[int], list[Path]]:
    """Return the rounds of a file's versions, and the temporary folders that killed saves left next to it."""
    pattern = re.compile(rf"(\.)?{re.escape(path.stem)}(?:@([0-9]+))?{re.escape(SUFFIX)}(\.[^.]+)?")
    rounds, leftovers = [], []
    with suppress(OSError):  # no folder: the save makes it, or says why not
        for name in os.listdir(path.parent):
            match = pattern.fullmatch(name)
            if match and match[1] and match[3]:
                leftovers.append(path.with_name(name))  # as `task.storage.files.replacing` names them
            elif match and match[2] and not match[1] and not match[3]:
                rounds.append(int(match[2]))
    return rounds, leftovers


@contextmanager
def set_aside(path: Path, server_round: int | None) -> Iterator[None]:
    """Give the present file its version's name too; if the block fails, all is as it was before.

    `server_round` is the file's round, None if there is no present file.
    """
    if server_round is None:
        try:
            yield
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return
    version = version_of(path, server_round)
    try:
        os.link(path, version)
    except OSError:  # no hard links here, or a save that was killed has left a file of that name
        with replacing(version) as temp:
            shutil.copyfile(path, temp)
    try:
        yield
    except BaseException:
        os.replace(version, path)
        version.unlink(missing_ok=True)  # both were names of one file still
        raise
