"""Checkpoints: the state after a round, written atomically.

``checkpoint/round-N.safetensors`` holds the arrays; ``checkpoint/latest.json`` names the file that
counts, with its checksum, the state's numbers and the lengths of the journal files at that moment. While that
state has not proved good (`strategies.engine.recovery`), the file of the rollback target stays, and ``good``
describes it as the rest describes the latest. The JSON is renamed into place last, which makes the checkpoint
valid; a crash before that leaves the earlier one.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from safetensors import SafetensorError, safe_open

from strategies.engine.journal import Snapshot
from task.errors import StateError
from task.numerics.arrays import Arrays, hash_into, sha256
from task.storage.files import mapped_safetensors, write_json, write_safetensors

CHECKSUM, OLD = "xxh3", "sha256"  # keys of the checksum, now and up to 0.10


class Checkpoint:
    """The checkpoint of one run, in its folder ``checkpoint/``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.latest = folder / "latest.json"
        self._known: dict[int, dict[str, Any]] = {}  # by round, what the JSON says of its file
        self._committed: Snapshot | None = None

    def write_arrays(self, snapshot: Snapshot) -> Path:
        """Write the arrays of a snapshot; they count once `commit` names them."""
        path = self.folder / f"round-{snapshot.round}.safetensors"
        if snapshot is not self._committed:
            write_safetensors(path, snapshot.arrays)
        return path

    def commit(self, snapshot: Snapshot, path: Path, extra: Mapping[str, Any]) -> None:
        """Make `path` the checkpoint; of the earlier files only the rollback target's is kept."""
        again = snapshot is self._committed  # as when a run ends after a round with a checkpoint
        meta = {snapshot.round: self._known[snapshot.round] if again else _meta(snapshot, path)}
        good = snapshot.good
        if good is not None:
            # With a checkpoint after every round its file is there.
            meta[good.round] = self._known.get(good.round) or _meta(good, self.write_arrays(good))
        latest = {**meta[snapshot.round], "extra": dict(extra)}
        write_json(self.latest, latest if good is None else {**latest, "good": meta[good.round]})
        self._known, self._committed = meta, snapshot
        for old in self.folder.glob("round-*.safetensors"):
            if old.name not in {m["file"] for m in meta.values()}:
                old.unlink(missing_ok=True)

    def read(self) -> tuple[Snapshot, dict[str, Any]] | None:
        """Return the last snapshot and the `extra` of its `commit`; None if there is none.

        Raises:
            StateError: The checkpoint is damaged; nothing is changed on disk.
        """
        if not self.latest.exists():
            return None
        with _whole(self.latest):
            meta = json.loads(self.latest.read_text(encoding="utf-8"))
            extra, good = dict(meta["extra"]), meta.get("good")
        back = self._read(good) if good is not None else None
        snapshot = replace(self._read(meta), good=back)
        self._known = {snapshot.round: {k: v for k, v in meta.items() if k not in ("extra", "good")}}
        if back is not None:
            self._known[back.round] = good
        return snapshot, extra

    def mapped(self, server_round: int, like: Arrays) -> Arrays | None:
        """Return some of a round's arrays in the memory of its file, which may be deleted then.

        None if the file is not, or not yet, part of the checkpoint, or cannot be mapped here.
        """
        meta = self._known.get(server_round)
        if meta is None or os.name != "posix":  # others cannot delete a file that is in use
            return None
        return mapped_safetensors(self.folder / meta["file"], like)

    def _read(self, meta: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot that `_meta` describes."""
        with _whole(self.latest):
            path = self.folder / meta["file"]
        with _whole(path):
            with safe_open(path, framework="np") as file:
                arrays: Arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no dict
            old = OLD in meta
            found, wanted = (sha256 if old else _checksum)(arrays), meta[OLD if old else CHECKSUM]
            numbers = {k: _number(v) for k, v in meta["numbers"].items()}
            snapshot = Snapshot(int(meta["round"]), arrays, numbers)
        if found != wanted:
            raise _damaged(path, f"checksum {wanted[:12]}", found[:12])
        return snapshot


def _meta(snapshot: Snapshot, path: Path) -> dict[str, Any]:
    """Return what the JSON says of a snapshot and its file."""
    # repr keeps every bit, and infinity; a rule may have computed a number with NumPy.
    plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in snapshot.numbers.items()}
    numbers = {k: repr(v) for k, v in plain.items()}
    facts = {"round": snapshot.round, "file": path.name, CHECKSUM: _checksum(snapshot.arrays)}
    return {**facts, "numbers": numbers}


def _checksum(arrays: Arrays) -> str:
    """Return a checksum that shows damage; who may write the file may write this, too."""
    digest = xxhash.xxh3_128()
    hash_into(digest, arrays)
    return digest.hexdigest()


def _number(text: str) -> bool | int | float:
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text)
    except ValueError:
        return float(text)


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Name the file that cannot be read in the block."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as err:
        raise _damaged(path, "a whole checkpoint", f"{type(err).__name__}: {err}") from None


def _damaged(path: Path, expected: str, got: str) -> StateError:
    return StateError(
        f"{path}: expected {expected}; got {got}. Nothing was changed. Restore a backup, or start "
        "the run again with another --run-name."
    )
