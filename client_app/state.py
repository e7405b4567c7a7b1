"""The only store of what a client keeps between rounds; it outlives the process.

One file per client, ``<state-dir>/<run>/<client>.safetensors``: the kept arrays as ``field/name``, and in the
header a JSON with round, algorithm, client and a checksum of the arrays. A save writes a temporary file,
syncs it and renames it over the old one, so that a reader finds the old state or the new one, never half of
one. A file that is damaged or belongs to something else is moved aside to ``*.damaged`` and refused, and the
client stays refused until somebody puts a backup in its place or deletes the damaged file: fresh values in
silence would be a wrong result.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
from safetensors import SafetensorError, safe_open

from task.arrays import Arrays, sha256
from task.errors import StateError
from task.files import write_safetensors

LONGEST_NAME = 160  # of a file; file systems take 255 bytes, the suffixes of damaged ones included


@dataclass(frozen=True)
class KeptState:
    """What a client kept: arrays by field of the catalogue entry, and when."""

    round: int
    fields: dict[str, Arrays]


class StateStore:
    """Kept state of the clients of one run.

    Args:
        root: ``state-dir``.
        run: Name of the run; runs of the same name share their clients' state.
    """

    def __init__(self, root: Path, run: str) -> None:
        self.folder = root / safe_name(run)

    def path(self, client: str) -> Path:
        """Return the file of a client."""
        return self.folder / f"{safe_name(client)}.safetensors"

    def save(
        self, client: str, algorithm: str, server_round: int, fields: dict[str, Arrays], run: str = ""
    ) -> None:
        """Replace a client's state, atomically."""
        arrays = {
            f"{f}/{n}": np.asarray(a, order="C") for f, named in fields.items() for n, a in named.items()
        }
        meta = {"client": client, "algorithm": algorithm, "round": server_round, "sha256": sha256(arrays)}
        meta["run"] = run
        write_safetensors(self.path(client), arrays, {"bouquet": json.dumps(meta)})

    def load(self, client: str, algorithm: str, run: str = "") -> KeptState | None:
        """Return a client's state, or None if it never saved one in this run.

        What another run of the same name left is not this one's; the next `save` replaces it.

        Raises:
            StateError: The file is damaged, or another client's or algorithm's, and was moved aside; or it
                was in an earlier round, and nobody has mended it since; or it cannot be read.
        """
        path = self.path(client)
        if not path.exists():
            self._refuse_what_was_refused(path, client)
            return None
        try:
            server_round, whose, wanted, arrays, from_run = _read(path)
        except PermissionError as err:
            raise StateError(f"client {client}: kept state {path} cannot be read: {err}") from None
        except (SafetensorError, KeyError, TypeError, ValueError, OSError) as err:
            raise self._refuse(path, client, "a whole state file", f"{type(err).__name__}: {err}") from None
        if sha256(arrays) != wanted:
            raise self._refuse(path, client, f"checksum {wanted[:12]}", sha256(arrays)[:12])
        if whose != (algorithm, client):
            got = f"{whose[0]} state of {whose[1]}"
            raise self._refuse(path, client, f"{algorithm} state of {client}", got)
        if run and from_run != run:
            return None
        fields: dict[str, Arrays] = {}
        for key, array in arrays.items():
            field, _, name = key.partition("/")
            fields.setdefault(field, {})[name] = array
        return KeptState(server_round, fields)

    def _refuse(self, path: Path, client: str, expected: str, got: str) -> StateError:
        aside = path.with_suffix(".damaged")
        n = 1
        while aside.exists():
            aside = path.with_suffix(f".damaged.{n}")
            n += 1
        path.rename(aside)
        return StateError(
            f"client {client}: kept state {path}: expected {expected}; got {got}. Moved to "
            f"{aside.name}; put a backup at {path}, or delete {aside.name} to let this client begin anew."
        )

    def _refuse_what_was_refused(self, path: Path, client: str) -> None:
        # A percent-encoded name has none of the letters that mean something to glob.
        aside = sorted(path.parent.glob(f"{path.stem}.damaged*")) if path.parent.exists() else []
        if aside:
            raise StateError(
                f"client {client}: kept state was refused before and is at {aside[-1]}. Put a backup "
                f"at {path}, or delete the damaged file to let this client begin anew."
            )


def _read(path: Path) -> tuple[int, tuple[str, str], str, Arrays, str]:
    """Return round, (algorithm, client), checksum, arrays and run of a file."""
    with safe_open(path, framework="np") as file:
        meta = json.loads((file.metadata() or {})["bouquet"])
        arrays = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118 - not a dict
    whose = str(meta["algorithm"]), str(meta["client"])
    return int(meta["round"]), whose, str(meta["sha256"]), arrays, str(meta.get("run", ""))


def safe_name(name: str) -> str:
    """Return a name as a file name, distinct for distinct names: percent-encoded UTF-8, long ones hashed."""
    safe = quote(name, safe=" ")
    if safe.startswith("."):
        safe = f"%2E{safe[1:]}"
    if len(safe) > LONGEST_NAME:
        safe = f"{safe[: LONGEST_NAME - 20]}%{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return safe
