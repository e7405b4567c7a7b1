"""A node's ledger of questions for exact sums, over all runs: a line for each, before it is answered.

Two answers of which one has a person more than the other give away that person, however many are in each. So
the ledger keeps the rows of each answer, by digests of their contents, and refuses a question whose rows are
almost those of an earlier one, or almost those that an earlier one left out, and one whose answer would tell
of few persons together with all earlier ones (`task.privacy.row_sets`). It also keeps the cuts at which a
column's values have been counted, and the owner's limit of questions (``max-questions``).

    queries.ledger.jsonl   a line for each question, refused ones too
    queries/SHA.u64        sorted digests of rows, little-endian uint64

Rows are compared by what is in them: a corrected cell makes another row. Answers are compared with those of
the same column, or of all columns.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from task import timing
from task.errors import ConfigError, RefusedError, StateError, local
from task.privacy.row_sets import single_out
from task.storage.durable_lines import DurableLines
from task.storage.files import make_folder, write_bytes
from task.storage.locks import HeldError, locked

FILE, ROWS = "queries.ledger.jsonl", "queries"  # in the state folder
MAX_QUESTIONS = "max-questions"  # key of the node config
Digests = npt.NDArray[np.uint64]
Sets = Mapping[str, Digests]  # by the SHA-256 of each
_ODD = np.uint64(0x9E3779B97F4A7C15)


def row_digests(*columns: npt.NDArray[Any]) -> Digests:
    """Return a digest of each row's contents, uint64 [rows], of arrays [rows, ...] of it."""
    parts = zip(*map(np.ascontiguousarray, columns), strict=True)
    texts = (b"".join(np.asarray(a).tobytes() for a in row) for row in parts)
    found = [hashlib.blake2b(text, digest_size=8).digest() for text in texts]
    return np.frombuffer(b"".join(found), np.uint64)


def digests(rows: Digests) -> Digests:
    """Return a set that tells equal rows apart by how many there are, sorted, from a digest of each row."""
    ordered = np.sort(rows)
    first = np.searchsorted(ordered, ordered, "left")
    again = (np.arange(len(ordered)) - first).astype(np.uint64)
    found: Digests = np.sort(ordered + again * _ODD)
    return found


def apart(a: Digests, b: Digests) -> int:
    """Return how many persons two sets of rows differ by: a row that was changed is one."""
    only_a, only_b = np.setdiff1d(a, b), np.setdiff1d(b, a)
    return max(len(only_a), len(only_b))


class QueryLedger:
    """The ledger of a node; `most` is the number of questions that its owner allows, 0 = any."""

    def __init__(self, folder: Path, most: int = 0) -> None:
        self.path, self.rows, self.most = folder / FILE, folder / ROWS, most
        self._file = DurableLines(self.path)

    @classmethod
    def of(cls, folder: Path, node_config: Mapping[str, Any]) -> QueryLedger:
        """Return the ledger in a state folder, with the limit of a node config.

        Raises:
            ConfigError: The limit is no whole number from 0.
        """
        most = node_config.get(MAX_QUESTIONS, 0)
        if type(most) is not int or most < 0:
            raise ConfigError(
                f'node config: key "{MAX_QUESTIONS}": expected a whole number >= 0; got {most!r}'
            )
        return cls(folder, most)

    def ask(
        self,
        client: str,
        used: Mapping[str, Digests | Sequence[Digests]],
        everybody: Digests,
        least: int,
        about: Mapping[str, object],
        cuts: Mapping[str, list[float]] | None = None,
        *,
        once: bool = False,
    ) -> None:
        """Write a question down, or refuse it; the line is on the disk when this returns.

        Args:
            client: Whose rows they are.
            used: The rows that are in the answer, by what it says of them, such as a column's name; several
                sets, if it says the same of several.
            everybody: All rows of the client.
            least: Fewest persons that two answers may differ by; 0 = any number.
            about: What the line says besides: the question and the run.
            cuts: The cuts at which a column's values are counted, by its name.
            once: Whether it is no further question if all sets have been in earlier answers, and whether it
                may be answered where it is not known if it tells of few persons with the others.

        Raises:
            RefusedError: The limit is reached, or an earlier answer differs by fewer persons.
            StateError: The ledger is damaged or cannot be written.
        """
        sets = {what: [of] if isinstance(of, np.ndarray) else list(of) for what, of in used.items()}
        named = {what: {self._sha(rows): rows for rows in of} for what, of in sets.items()}
        names = {what: list(of) if len(of) != 1 else next(iter(of)) for what, of in named.items()}
        line = {"time": time.strftime("%Y-%m-%d %H:%M"), "client": client, **about, "rows": names}
        try:
            with locked(self.path.with_suffix(".lock"), wait_s=timing.LEDGER_LOCK_S, optional=True):
                lines = self._file.lines()
                if once and self._known(lines, client, named):
                    return
                refused = self._limit(lines)
                refused = refused or self._close(lines, client, named, everybody, least, unsure=not once)
                if refused:
                    self._file.append({**line, "refused": refused, "rows": {}})
                    raise RefusedError(refused)
                for sha, rows in (pair for of in named.values() for pair in of.items()):
                    self._store(sha, rows)
                self._file.append({**line, **({"cuts": cuts} if cuts else {})})
        except (OSError, HeldError) as err:
            raise StateError(f"{local(self.path)}: the ledger cannot be written: {local(err)}") from err

    def cuts(self, client: str) -> dict[str, list[float]]:
        """Return the cuts at which columns' values have been counted, sorted, by the column's name."""
        found: dict[str, set[float]] = {}
        for line in self._file.lines():
            if line.get("client") == client:
                for column, cuts in dict(line.get("cuts", {})).items():
                    found.setdefault(column, set()).update(map(float, cuts))
        return {column: sorted(cuts) for column, cuts in found.items()}

    def _limit(self, lines: list[dict[str, Any]]) -> str:
        if not self.most or len(lines) < self.most:
            return ""
        return (
            f"policy: {MAX_QUESTIONS} = {self.most}; so many questions for exact sums have been asked in "
            "all runs. The owner may allow more"
        )

    def _known(self, lines: list[dict[str, Any]], client: str, named: Mapping[str, Sets]) -> bool:
        """Return whether all sets have been in earlier answers."""
        known = {(what, sha) for _, what, sha in self._earlier(lines, client)}
        return all((what, sha) in known for what, of in named.items() for sha in of)

    def _close(
        self,
        lines: list[dict[str, Any]],
        client: str,
        named: Mapping[str, Sets],
        everybody: Digests,
        least: int,
        *,
        unsure: bool,
    ) -> str:
        """Return why a question must not be answered; "" = it may."""
        if least <= 1:
            return ""
        seen: dict[str, dict[str, Digests]] = {what: {} for what in named}
        for line, what, sha in self._earlier(lines, client):
            if what not in named or sha in seen[what]:
                continue
            before = seen[what][sha] = self._load(sha)
            others = [before]
            if np.isin(before, everybody).all():
                others.append(np.setdiff1d(everybody, before))
            new = (rows for own, rows in named[what].items() if own != sha)
            if any(0 < apart(rows, other) < least for rows in new for other in others):
                asked = (
                    f'"{line.get("question", "?")}" of {line.get("time", "?")}, run {line.get("run", "?")}'
                )
                return (
                    f"policy: min-examples = {least}; the rows of client {client} ({what}) differ by fewer "
                    f"persons from those of an earlier question, {asked}, or from those that it left out. "
                    "Ask with the same rows as then, or when more have changed"
                )
        for what, earlier in seen.items():
            sets, more = list(earlier.values()), [r for sha, r in named[what].items() if sha not in earlier]
            if not more or len(sets) + len(more) < 3 or (sets and single_out(sets, least, unsure=unsure)):
                continue  # nothing is new; or a smaller bound of before allowed it, and all would be refused
            if single_out([*sets, *more], least, unsure=unsure):
                return (
                    f"policy: min-examples = {least}; the answer of client {client} ({what}) would tell of "
                    f"fewer persons together with those to {len(sets)} other sets of rows, though with "
                    "none of them alone. Ask with the same rows as in one of these"
                )
        return ""

    @staticmethod
    def _earlier(lines: list[dict[str, Any]], client: str) -> Iterator[tuple[dict[str, Any], str, str]]:
        for line in lines:
            if line.get("client") == client:
                for what, of in dict(line.get("rows", {})).items():
                    for sha in of if isinstance(of, list) else [of]:
                        yield line, what, str(sha)

    @staticmethod
    def _sha(rows: Digests) -> str:
        return hashlib.sha256(rows.tobytes()).hexdigest()[:32]

    def _store(self, sha: str, rows: Digests) -> None:
        path = self.rows / f"{sha}.u64"
        if not path.exists():
            make_folder(self.rows)
            write_bytes(path, rows.astype("<u8").tobytes())

    def _load(self, sha: str) -> Digests:
        path = self.rows / f"{sha}.u64"
        try:
            found = np.frombuffer(path.read_bytes(), "<u8").astype(np.uint64)
        except (OSError, ValueError) as err:
            raise StateError(
                f"{local(path)}: expected the rows of an earlier question; got {local(err)}. Restore the "
                "file: without it, it is unknown what this node has answered"
            ) from None
        if self._sha(found) != sha:
            raise StateError(f"{local(path)}: expected rows of this digest; got others. Restore the file")
        return found
