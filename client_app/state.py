"""The only store of what a client keeps between rounds; it outlives the process.

One file per client, ``<state-dir>/<federation>/<client>.safetensors``: the kept arrays as
``field/name``, and in the header a JSON with round, algorithm, client and a checksum of the arrays. A
save writes a temporary file, syncs it and renames it over the old one, so that a reader finds the old
state or the new one, never half of one. A file that is damaged or belongs to something else is moved
aside and refused: fresh values in silence would be a wrong result.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from task.arrays import Arrays, sha256
from task.errors import StateError
from task.files import write_safetensors


@dataclass(frozen=True)
class KeptState:
    """What a client kept: arrays by field of the catalogue entry, and when."""

    round: int
    fields: dict[str, Arrays]


class StateStore:
    """Kept state of the clients of one federation.

    Args:
        root: ``state-dir``.
        federation: Name of the federation; runs of the same name share their clients' state.
    """

    def __init__(self, root: Path, federation: str) -> None:
        self.folder = root / safe_name(federation)

    def path(self, client: str) -> Path:
        """Return the file of a client."""
        return self.folder / f"{safe_name(client)}.safetensors"

    def save(self, client: str, algorithm: str, server_round: int, fields: dict[str, Arrays]) -> None:
        """Replace a client's state, atomically."""
        arrays = {
            f"{f}/{n}": np.asarray(a, order="C") for f, named in fields.items() for n, a in named.items()
        }
        meta = {"client": client, "algorithm": algorithm, "round": server_round, "sha256": sha256(arrays)}
        write_safetensors(self.path(client), arrays, {"bouquet": json.dumps(meta)})

    def load(self, client: str, algorithm: str) -> KeptState | None:
        """Return a client's state, or None if it never saved one.

        Raises:
            StateError: The file is damaged, or another client's or algorithm's; it was moved aside to
                ``*.damaged``.
        """
        path = self.path(client)
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="np") as file:
                meta = json.loads((file.metadata() or {})["bouquet"])
                arrays = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118 - not a dict
            found = sha256(arrays)
        except (SafetensorError, KeyError, ValueError, OSError) as err:
            raise self._refuse(path, client, "a whole state file", str(err)) from None
        if found != meta["sha256"]:
            raise self._refuse(path, client, f"checksum {meta['sha256'][:12]}", found[:12])
        if (meta["client"], meta["algorithm"]) != (client, algorithm):
            whose = f"{meta['algorithm']} state of {meta['client']}"
            raise self._refuse(path, client, f"{algorithm} state of {client}", whose)
        fields: dict[str, Arrays] = {}
        for key, array in arrays.items():
            field, _, name = key.partition("/")
            fields.setdefault(field, {})[name] = array
        return KeptState(int(meta["round"]), fields)

    def _refuse(self, path: Path, client: str, expected: str, got: str) -> StateError:
        aside = path.with_suffix(".damaged")
        n = 1
        while aside.exists():
            aside = path.with_suffix(f".damaged.{n}")
            n += 1
        path.rename(aside)
        return StateError(
            f"client {client}: kept state {path}: expected {expected}; got {got}. Moved to {aside.name}; "
            "put a backup in its place, or leave it out to let this client begin anew."
        )


def safe_name(name: str) -> str:
    """Return a name as a file name, distinct for distinct names."""
    return re.sub(r"[^A-Za-z0-9._ -]|^\.", lambda m: f"%{ord(m[0]):02X}", name)
