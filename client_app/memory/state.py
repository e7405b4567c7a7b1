"""The only store of what a client keeps between rounds; it outlives the process.

One file per client and run; `task.storage.client_state` says where and in which form. A save writes a
temporary file, syncs it and renames it over the old one, so that a reader finds the old state or the new
one, never half of one. In a simulation the checkpoint syncs instead, once for all clients: it is what a run
goes on from after a power cut. A damaged file is moved aside to ``*.damaged`` and refused, and the client
stays refused until a backup is put in its place or the damaged file is deleted: to start from fresh values
would be a wrong result. A whole file that is another client's, algorithm's, run's or model's is refused and
left where it is.

A run that is resumed from round t trains round t + 1 again, and its clients may already have kept what they
made of that round or of later ones. So a save leaves earlier versions next to the new one, as
``<client>@<round>.safetensors``: all that a resume from a checkpoint could still ask for, and no more. Each
file names the one that it was made from, and only this chain counts: after a crash there may be versions of
rounds that a resume has abandoned. `StateStore.load` gives the newest one that is older than the round to
train; `StateStore.save` drops those of the abandoned rounds.
"""

import os
import platform
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, count
from pathlib import Path

import numpy as np
from safetensors import SafetensorError

from task.errors import StateError, local, reason
from task.numerics.arrays import Arrays, NamedArrays
from task.storage.client_state import SUFFIX, Header, folder_of, read_header, read_kept, safe_name, write_kept
from task.storage.files import freeing_later, write_bytes
from task.storage.locks import HeldError, locked


def version_of(path: Path, server_round: int) -> Path:
    """Return the file of a round's version; `path` is the present file."""
    return path.with_name(f"{path.stem}@{server_round}{SUFFIX}")  # safe names have no "@"


def chain_of(path: Path, present: Header | None, enough: Callable[[int], bool]) -> tuple[list[int], int]:
    """Return the rounds of the present file and of the versions that led to it, the newest first.

    It ends with the first one that is `enough`. The second value is the round where the chain breaks off
    before that, 0 = nowhere. If that version is damaged and a backup is put in its place, those before it
    count again.
    `path` is the present file and `present` its header, None if it is not there.
    """
    if present is None:
        return [], 0
    chain, previous = [present.round], present.previous
    while previous and not enough(chain[-1]):
        try:
            header = read_header(version_of(path, previous))
        except (OSError, ValueError, StateError):
            return chain, previous
        if header.round != previous:
            return chain, previous
        chain.append(previous)
        previous = header.previous
    return chain, 0


def listed(folder: Path) -> list[str]:
    """Return the sorted names in a folder; none of one that is not there."""
    try:
        return sorted(os.listdir(folder))
    except OSError:  # a save makes it, or says why not
        return []


def beside(path: Path, names: Sequence[str]) -> tuple[list[int], list[Path]]:
    """Return the rounds of a file's versions, and the temporary files that killed saves left next to it.

    `names` are those in its folder, sorted: there may be thousands of clients.
    """
    rounds, leftovers, stem = [], [], path.stem
    for name in _beginning(names, f"{stem}@"):
        if name.endswith(SUFFIX) and (number := name[len(stem) + 1 : -len(SUFFIX)]).isdecimal():
            rounds.append(int(number))
    for name in _beginning(names, f".{stem}"):  # as `task.storage.files.write_bytes` names them
        version, _, end = name[len(stem) + 1 :].partition(f"{SUFFIX}.")
        if end and "." not in end and (not version or re.fullmatch("@[0-9]+", version)):
            leftovers.append(path.with_name(name))
    return rounds, leftovers


def _beginning(names: Sequence[str], begin: str) -> Iterator[str]:
    """Yield those of sorted names that begin so."""
    for i in range(bisect_left(names, begin), len(names)):
        if not names[i].startswith(begin):
            return
        yield names[i]


@contextmanager
def set_aside(path: Path, server_round: int | None, durable: bool) -> Iterator[None]:
    """Give the present file its version's name too; if the block fails, all is as it was before.

    `server_round` is the file's round, None if there is no present file; `durable` is as of `StateStore`.
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
        write_bytes(version, path.read_bytes(), durable=durable)
    try:
        yield
    except BaseException:
        os.replace(version, path)
        version.unlink(missing_ok=True)  # both were names of one file still
        raise


@lru_cache(maxsize=1 << 12)
def _file_of(folder: Path, scope: str, client: str) -> Path:
    return folder / scope / f"{safe_name(client)}{SUFFIX}"


@dataclass(frozen=True)
class KeptState:
    """What a client kept: arrays by field of the catalogue entry, and when."""

    round: int
    fields: dict[str, Arrays]


@dataclass(frozen=True)
class StateStore:
    """Kept state of the clients of one machine."""

    root: Path  # ``state-dir``
    run_name: str  # each run of the name has a folder of its own
    scope: str = ""  # folder in that for what is kept otherwise than by client and run; "" = none
    durable: bool = True  # whether each save survives a power cut; else what the last checkpoint synced does

    def path(self, client: str, run: str = "") -> Path:
        """Return the file of a client in a run."""
        return _file_of(folder_of(self.root, self.run_name, run), self.scope, client)

    @contextmanager
    def lock(self, client: str, run: str = "") -> Iterator[None]:
        """Keep other processes from training a client; to be held from `load` to `save`.

        Raises:
            StateError: Another process holds it, or the folder cannot be written.
        """
        path = self.path(client, run)
        with ExitStack() as held:
            with _writing(path, client):
                lock = path.with_name(f"{path.stem}.lock")
                try:
                    words = f"process {os.getpid()} on {platform.node()}"
                    held.enter_context(locked(lock, words, optional=True))
                except HeldError as err:
                    raise StateError(
                        f"client {client}: expected no other process to use its state; got its lock "
                        f"{local(lock)} "
                        f"held by {local(err.holder or 'another process')}. Let that process end, or stop it."
                    ) from None
            yield

    def save(
        self,
        client: str,
        algorithm: str,
        server_round: int,
        fields: Mapping[str, Arrays],
        run: str = "",
        resumable: int | None = None,
        void: Collection[int] = (),
        names: Sequence[str] | None = None,
    ) -> None:
        """Replace a client's state, made in round t of the run, atomically.

        Earlier versions stay that a resume from the end of round `resumable` or of a later one could ask
        for; None leaves none. `void` is as of `load`. `names` is the folder's content by `listed`, from a
        caller that saves the state of many clients.

        Raises:
            StateError: It cannot be written, or the file there is damaged or belongs to something else. All
                that was kept before is still there.
        """
        path = self.path(client, run)
        found = _read(path, client, algorithm, run, whole=False)
        present = found[0] if found else None

        def enough(r: int) -> bool:
            """Return whether no version before that of round r can be needed."""
            return r < server_round and r not in void and (resumable is None or r <= resumable)

        chain, lost = chain_of(path, present, enough)
        before = sorted(r for r in chain if r < server_round)
        last = max((r for r in before if r not in void and (resumable is None or r <= resumable)), default=0)
        # Rounds that the server has gone back from are still to come in a resume from a checkpoint in them.
        needed = {r for r in before if r >= last} if resumable is not None else set()
        header = Header(client, algorithm, run, server_round, max(needed, default=last), tuple(fields))
        rounds, leftovers = beside(path, listed(path.parent) if names is None else names)
        for leftover in leftovers:
            with suppress(OSError):
                leftover.unlink()
        with _writing(path, client), set_aside(path, present.round if present else None, self.durable):
            write_kept(path, header, fields, durable=self.durable)
        with suppress(OSError):  # the new state is in place, and the next save tries again
            # The oldest first: so a crash leaves no version that the chain does not reach.
            for r in sorted({*rounds, *chain} - needed):
                if r > lost:
                    version = version_of(path, r)
                    with freeing_later(version, wait=self.durable):
                        version.unlink(missing_ok=True)

    def load(
        self,
        client: str,
        algorithm: str,
        run: str = "",
        before: int | None = None,
        like: Mapping[str, NamedArrays] | None = None,
        void: Collection[int] = (),
    ) -> KeptState | None:
        """Return a client's state, or None if it never saved one in this run.

        What was kept in round `before` or later, or in a round of `void`, is left out: a resume has abandoned
        these rounds, or the server has gone back from them. `like` has arrays of the expected names, shapes
        and dtypes for fields whose form the model sets.

        Raises:
            StateError: The file is damaged, and was moved aside; or it was in an earlier round and has not
            been repaired; or it is another client's, algorithm's, run's or model's, or a newer
                Bouquet's; or it cannot be read; or the version that `before` asks for is gone.
        """
        path = self.path(client, run)
        found = _read(path, client, algorithm, run)
        if found is None:
            _refuse_what_was_refused(path, client)
            return None
        header, fields = found
        while (before is not None and header.round >= before) or header.round in void:
            if header.previous == 0 or before == 1:
                return None  # its first round in this run is yet to come
            version = version_of(path, header.previous)
            found = _read(version, client, algorithm, run, header.previous)
            if found is None:
                wanted = header.round if header.round in void else before
                what = (
                    f": expected a version from before round {wanted}; got one of round {header.round}, made "
                    f"from one of round {header.previous} that is not there. Resume from round "
                    f"{header.round} or later, or put {local(version.name)} back."
                )
                raise _error(path, client, what)
            header, fields = found
        _check_form(path, client, fields, like or {})
        return KeptState(header.round, fields)


def _read(
    path: Path, client: str, algorithm: str, run: str, version: int | None = None, whole: bool = True
) -> tuple[Header, dict[str, Arrays]] | None:
    """Return header and fields of a file, or None if it is not there; not `whole`: without the fields."""
    try:
        header, fields = read_kept(path) if whole else (read_header(path), {})
    except FileNotFoundError:
        return None
    except OSError as err:
        raise _error(path, client, f" cannot be read: {reason(err)}. Nothing was changed.") from err
    except ValueError as err:
        raise _moved_aside(path, client, str(err)) from None
    made = header.round if version is None else version
    for expected, got in (
        (f"{algorithm} state of {client}", f"{header.algorithm} state of {header.client}"),
        (f"state of run {run!r}", f"state of run {header.run!r}"),
        (f"a version of round {made}", f"a version of round {header.round}"),
    ):
        if expected != got:
            what = (
                f": expected {expected}; got {got}. The file was left as it is. Restore the right one, "
                "or move it away to let this client start over."
            )
            raise _error(path, client, what)
    return header, fields


def _error(path: Path, client: str, what: str) -> StateError:
    return StateError(f"client {client}: kept state {local(path)}{what}")


def _check_form(
    path: Path, client: str, fields: Mapping[str, Arrays], like: Mapping[str, NamedArrays]
) -> None:
    """Refuse state of another model."""
    for field, wanted in like.items():
        kept = fields.get(field, {})
        for name in sorted(wanted.keys() | kept.keys()):
            want, have = wanted.get(name), kept.get(name)
            if want is None or have is None or want.dtype != have.dtype or want.shape != have.shape:
                expected, got = _form(want), _form(have)
                what = (
                    f": {field}/{name}: expected {expected}; got {got}: state of another model. The file was "
                    "left as it is. Use the run-config keys that it was made with, or start a new run."
                )
                raise _error(path, client, what)


def _form(array: np.ndarray | None) -> str:
    return "no such array" if array is None else f"{array.dtype} of shape {list(array.shape)}"


@contextmanager
def _writing(path: Path, client: str) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as err:
        what = (
            f" cannot be written: {reason(err)}. The earlier state is untouched. Free space on that disk, "
            'make it writable, or choose another with the run-config key "state-dir".'
        )
        raise _error(path, client, what) from err


def _moved_aside(path: Path, client: str, damage: str) -> StateError:
    """Move a damaged file out of the way and return the error that refuses it."""
    suffixes = chain([".damaged"], (f".damaged.{n}" for n in count(1)))
    aside = next(p for p in map(path.with_suffix, suffixes) if not p.exists())
    try:
        path.rename(aside)
        then = f"Moved to {local(aside.name)}; put a backup at {local(path)}, or delete {local(aside.name)}"
    except OSError as err:
        then = f"It cannot be moved aside: {reason(err)}. Restore a backup, or delete it"
    return _error(path, client, f": {local(damage)}. {then} to let this client start over.")


def _refuse_what_was_refused(path: Path, client: str) -> None:
    begin = f"{path.stem}.damaged"
    ours = _beginning(listed(path.parent), begin)
    if aside := [name for name in ours if re.fullmatch(r"(\.[0-9]+)?", name.removeprefix(begin))]:
        raise StateError(
            f"client {client}: kept state was refused before and is at {local(path.with_name(aside[-1]))}. "
            f"Put a backup at {local(path)}, or delete the damaged file to let this client start over."
        )
