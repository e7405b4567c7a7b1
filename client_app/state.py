"""The only store of what a client keeps between rounds; it outlives the process.

One file per client, ``<state-dir>/<run>/<client>.safetensors``: the kept arrays as ``field/name``, and in the
header a JSON with round, algorithm, client and a checksum of the arrays. A save writes a temporary file,
syncs it and renames it over the old one, so that a reader finds the old state or the new one, never half of
one. A file that is damaged or belongs to something else is moved aside to ``*.damaged`` and refused, and the
client stays refused until somebody puts a backup in its place or deletes the damaged file: fresh values in
silence would be a wrong result.

A run that is resumed from round t trains round t + 1 again, and its clients may already have kept what they
made of that round or of later ones. So a save leaves earlier versions beside the new one, as
``<client>@<round>.safetensors``: all that a resume from a checkpoint could still ask for, and no more.
`StateStore.load` gives the newest one that is older than the round to train; `StateStore.save` drops those of
the abandoned rounds.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
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
        self,
        client: str,
        algorithm: str,
        server_round: int,
        fields: dict[str, Arrays],
        run: str = "",
        resumable: int | None = None,
    ) -> None:
        """Replace a client's state, atomically.

        Args:
            client: Its name.
            algorithm: The catalogue entry whose ``keeps`` this is.
            server_round: Round t in which the client made it.
            fields: Arrays by field.
            run: Identity of the run.
            resumable: Oldest round from whose end the run may have to be resumed; earlier versions that a
                resume could ask for are left. None leaves none.
        """
        arrays = {
            f"{f}/{n}": np.asarray(a, order="C") for f, named in fields.items() for n, a in named.items()
        }
        path = self.path(client)
        before = self._rounds(client, run, server_round)
        meta = {"client": client, "algorithm": algorithm, "round": server_round, "sha256": sha256(arrays)}
        meta |= {"run": run, "previous": max(before, default=0)}
        needed = {r for r in before if resumable is not None and r > resumable}
        older = [r for r in before if resumable is not None and r <= resumable]
        needed |= {max(older)} if older else set()
        made = self._set_aside(path, client, needed, before)
        try:
            write_safetensors(path, arrays, {"bouquet": json.dumps(meta)})
        except BaseException:
            if made is not None:
                made.unlink(missing_ok=True)
            raise
        for r, old in self._versions(client).items():
            if r not in needed:
                old.unlink(missing_ok=True)

    def load(self, client: str, algorithm: str, run: str = "", before: int | None = None) -> KeptState | None:
        """Return a client's state, or None if it never saved one in this run.

        What another run of the same name left is not this one's; the next `save` replaces it.

        Args:
            client: Its name.
            algorithm: The catalogue entry.
            run: Identity of the run; "" = any.
            before: Round to train: what was kept in this round or later belongs to rounds that a resume has
                abandoned. None = the newest.

        Raises:
            StateError: The file is damaged, or another client's or algorithm's, and was moved aside; or it
                was in an earlier round, and nobody has mended it since; or it cannot be read; or the version
                that `before` asks for is gone.
        """
        path = self.path(client)
        if not path.exists():
            self._refuse_what_was_refused(path, client)
            return None
        kept, previous = self._load(path, client, algorithm, run)
        versions = self._versions(client)
        while kept is not None and before is not None and kept.round >= before:
            if previous == 0:
                return None  # its first round in this run is yet to come
            if previous not in versions:
                raise StateError(
                    f"client {client}: kept state {path}: expected a version from before round {before}; got "
                    f"one of round {kept.round}, made from one of round {previous} that is not there. Resume "
                    f"from round {kept.round} or later, or put {self._version(path, previous).name} back."
                )
            kept, previous = self._load(versions[previous], client, algorithm, run)
        return kept

    def _version(self, path: Path, server_round: int) -> Path:
        return path.with_name(f"{path.stem}@{server_round}.safetensors")  # safe names have no "@"

    def _versions(self, client: str) -> dict[int, Path]:
        """Return the earlier versions of a client's state by round."""
        path = self.path(client)
        found = path.parent.glob(f"{path.stem}@*.safetensors") if path.parent.exists() else ()
        rounds = ((p.stem.rpartition("@")[2], p) for p in found)
        return {int(r): p for r, p in rounds if r.isascii() and r.isdigit()}

    def _rounds(self, client: str, run: str, server_round: int) -> dict[int, Path]:
        """Return the versions of this run that are older than a round, the present file among them."""
        path, rounds = self.path(client), {}
        for p in (*self._versions(client).values(), path):
            try:
                r, *_, from_run = _header(p)
            except (SafetensorError, KeyError, TypeError, ValueError, OSError):
                continue  # not there, or refused by the next `load`
            if from_run == run and r < server_round:
                rounds[r] = p
        return rounds

    def _set_aside(self, path: Path, client: str, needed: set[int], before: dict[int, Path]) -> Path | None:
        """Give the present file its version's name too, if it is needed; return that if it is new."""
        present = next((r for r, p in before.items() if p == path), None)
        if present is None or present not in needed:
            return None
        version = self._version(path, present)
        try:
            os.link(path, version)
        except FileExistsError:
            return None  # a save that a crash cut short
        except OSError:  # no hard links here
            part = version.with_suffix(".part")
            shutil.copyfile(path, part)
            part.replace(version)
        return version

    def _load(self, path: Path, client: str, algorithm: str, run: str) -> tuple[KeptState | None, int]:
        """Return a file's state, and the round of the one that it was made from (0 = none)."""
        try:
            (server_round, previous, whose, wanted, from_run), arrays = _header(path), _arrays(path)
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
            return None, 0
        fields: dict[str, Arrays] = {}
        for key, array in arrays.items():
            field, _, name = key.partition("/")
            fields.setdefault(field, {})[name] = array
        return KeptState(server_round, fields), previous

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


def _header(path: Path) -> tuple[int, int, tuple[str, str], str, str]:
    """Return round, round of the version before, (algorithm, client), checksum and run of a file."""
    with safe_open(path, framework="np") as file:
        meta = json.loads((file.metadata() or {})["bouquet"])
    whose = str(meta["algorithm"]), str(meta["client"])
    rounds = int(meta["round"]), int(meta.get("previous", 0))
    return *rounds, whose, str(meta["sha256"]), str(meta.get("run", ""))


def _arrays(path: Path) -> Arrays:
    with safe_open(path, framework="np") as file:
        return {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118 - not a dict


def oldest_resumable(server_round: int, every: int) -> int:
    """Return the oldest round from whose end a run may be resumed while it trains a round.

    The checkpoint of round t - 1 may still be in the making while round t trains, so that of round t - 2
    counts, or the one before it that was due.

    Args:
        server_round: Round t that is trained.
        every: Run-config key ``checkpoint-every``; with 0 there is a checkpoint at the end only.
    """
    last = max(server_round - 2, 0)
    return last - last % every if every else last


def safe_name(name: str) -> str:
    """Return a name as a file name, distinct for distinct names: percent-encoded UTF-8, long ones hashed."""
    safe = quote(name, safe=" ")
    if safe.startswith("."):
        safe = f"%2E{safe[1:]}"
    if len(safe) > LONGEST_NAME:
        safe = f"{safe[: LONGEST_NAME - 20]}%{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return safe
