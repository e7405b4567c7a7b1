"""The secret and the ledger of a run with differential privacy, below ``RUN/privacy/``.

``secret`` has 32 bytes of the operating system's, from which the cohorts and the noise follow: whoever has it
and the sums could take the noise away again. ``ledger.jsonl`` has a line for each release, whole and on the
disk before the release is made. ``released/`` holds, with their noise, the sums of the rounds after the last
checkpoint, so that a resumed run releases the same again. All are readable by their owner only, and a resumed
run needs them.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load_file

from task.errors import StateError
from task.numerics.arrays import Arrays
from task.privacy import noise
from task.storage.files import make_folder, private, sync_folder, write_bytes, write_safetensors

FOLDER = "privacy"


class Ledger:
    """What a run released; `resume` says whether it goes on with what is there, or begins anew."""

    def __init__(self, run: Path, *, resume: bool) -> None:
        self.folder = run / FOLDER
        self.secret_file, self.file = self.folder / "secret", self.folder / "ledger.jsonl"
        self.resume = resume
        self.sums = self.folder / "released"

    def secret(self) -> bytes:
        """Return the secret, drawn by the first call of a run.

        Raises:
            StateError: The run has a ledger and no secret, or one of another length.
        """
        if not self.resume:
            for old in (self.secret_file, self.file, *self.sums.glob("*")):
                old.unlink(missing_ok=True)
        self.resume = True
        if not self.secret_file.exists():
            if self.file.exists():
                raise StateError(f"{self.secret_file}: expected the secret of the run; got none. Put it back")
            make_folder(self.folder)
            write_bytes(self.secret_file, noise.draw_secret())
            sync_folder(self.folder)
        found = self.secret_file.read_bytes()
        if len(found) != noise.SECRET_BYTES:
            raise StateError(f"{self.secret_file}: expected {noise.SECRET_BYTES} bytes; got {len(found)}")
        return found

    def lines(self) -> list[dict[str, Any]]:
        """Return the releases; a last line that is not whole is of one that was not made, and is cut off.

        Raises:
            StateError: Another line is damaged.
        """
        if not self.file.exists():
            return []
        whole, _, rest = self.file.read_bytes().rpartition(b"\n")
        if rest:
            with self.file.open("r+b") as file:
                file.truncate(len(whole) + 1 if whole else 0)
                os.fsync(file.fileno())
        found = []
        for i, line in enumerate(whole.splitlines(), start=1):
            try:
                found.append(dict(json.loads(line)))
            except ValueError as err:
                raise StateError(f"{self.file}, line {i}: expected a JSON object; got {err}") from None
        return found

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line; it is on the disk when this returns."""
        new = not self.file.exists()
        with open(self.file, "ab", opener=private) as file:
            file.write((json.dumps(line, allow_nan=False) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync_folder(self.folder)

    def made(self, server_round: int, question: str) -> Arrays | None:
        """Return what `make` was given, if no checkpoint covers the round.

        Raises:
            StateError: The file is damaged.
        """
        path = self._of(server_round, question)
        if not path.exists():
            return None
        try:
            return load_file(path)
        except (SafetensorError, ValueError) as err:
            raise StateError(
                f"{path}: expected the sums that were released in round {server_round}; got {err}. Put the "
                "file back, or delete it: the round is then released again, and paid for if its clients' sum "
                "is another one"
            ) from None

    def make(self, server_round: int, question: str, arrays: Arrays) -> None:
        """Keep what is released; it is on the disk when this returns."""
        write_safetensors(self._of(server_round, question), arrays)

    def forget(self, server_round: int) -> None:
        """Delete what was released up to a round that a checkpoint covers."""
        for path in self.sums.glob("*-*.safetensors"):
            if int(path.name.partition("-")[0]) <= server_round:
                path.unlink(missing_ok=True)

    def _of(self, server_round: int, question: str) -> Path:
        return self.sums / f"{server_round}-{question}.safetensors"
