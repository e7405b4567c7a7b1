"""The secret and the ledger of a run with differential privacy, below ``RUN/privacy/``.

``secret`` has 32 bytes of the operating system's, from which the cohorts and the noise are derived: with it
and the sums, the noise could be removed. ``ledger.jsonl`` has a line for each release, whole and on the disk
before the release is made. ``released/`` holds, with their noise, the sums of the rounds after the last
checkpoint, so that a resumed run releases the same again. All are readable by their owner only, and a resumed
run needs them.
"""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load_file

from server_app.results.folder import RunFolder
from strategies.stages.privacy import ReleaseLog
from task.errors import StateError
from task.numerics.arrays import Arrays
from task.privacy.secret import secret_in
from task.storage.durable_lines import DurableLines
from task.storage.files import write_safetensors

FOLDER = "privacy"


def ledger_of(run: Path) -> DurableLines:
    """Return the ledger of a run in its folder."""
    return DurableLines(run / FOLDER / "ledger.jsonl")


class ReleaseFiles(ReleaseLog):
    """What a run has released; unless it is to `resume`, files of an earlier run are deleted."""

    def __init__(self, folder: RunFolder, *, resume: bool) -> None:
        super().__init__()
        self.folder = folder.path / FOLDER
        self.secret_file, self.releases = self.folder / "secret", ledger_of(folder.path)
        self.sums = self.folder / "released"
        if not resume:
            for old in (self.secret_file, self.releases.path, *self.sums.glob("*")):
                old.unlink(missing_ok=True)

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of the ledger."""
        return self.releases.lines()

    def append(self, line: dict[str, Any]) -> None:
        """Add a line to the ledger; it is on the disk when this returns."""
        self.releases.append(line)

    def secret(self) -> bytes:
        """Return the secret, drawn by the first call of a run.

        Raises:
            StateError: The run has a ledger and no secret, or one of another length.
        """
        if not self.secret_file.exists() and self.releases.path.exists():
            raise StateError(f"{self.secret_file}: expected the secret of the run; got none. Put it back")
        return secret_in(self.secret_file)

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
                "file back, or delete it: the round is then released again, which costs epsilon if "
                "its clients' sum is different"
            ) from None

    def make(self, server_round: int, question: str, arrays: Arrays) -> None:
        """Store what is released; it is on the disk when this returns."""
        write_safetensors(self._of(server_round, question), arrays)

    def covered(self, server_round: int) -> None:
        """Delete what was released up to a round that a checkpoint covers."""
        for path in self.sums.glob("*-*.safetensors"):
            if int(path.name.partition("-")[0]) <= server_round:
                path.unlink(missing_ok=True)

    def _of(self, server_round: int, question: str) -> Path:
        return self.sums / f"{server_round}-{question}.safetensors"
