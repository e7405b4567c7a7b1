"""The transcript of a run, below ``RUN/transcript/``, by which anyone can check its rounds.

``rounds.jsonl`` has a line for each round, the first one for round 0. Each line names the SHA-256 of the line
before it, that of round 0 the SHA-256 of the run's keys, which it holds. ``initial.safetensors`` has the
initial model; ``ROUND-PHASE.safetensors`` the sums of a round's phase, where noise was added with it; and
``uploads/SHA256.safetensors`` the uploads, where the run keeps them. A line comes after its files, and a
resumed run cuts lines back to its checkpoint, like those of the result folder's own ``rounds.jsonl``. The
next line names those that were cut off, so that an earlier copy of the transcript can be recognised as this
run's.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server_app.results.folder import to_json
from server_app.results.lines import split
from strategies.stages.transcript import Evidence, RoundEvidence
from task.errors import StateError
from task.numerics.arrays import Arrays, sha256
from task.privacy.releases import Releases
from task.storage.files import make_folder, naming, private, write_safetensors
from task.wire.commitments import Stored

OF_TRANSCRIPT = ("id", "run", "columns", "code", "frozen")  # what a transcript says of config.json
FOLDER, LINES, INITIAL, UPLOADS = "transcript", "rounds.jsonl", "initial.safetensors", "uploads"
FORMAT = 2  # 1 had neither the epochs of uploads nor all numbers of orders


class Transcript:
    """The transcript that one run writes; unless it is to `resume`, that of an earlier run is deleted.

    `about` says what config.json has of the run.
    """

    def __init__(self, run: Path, about: Mapping[str, Any], ledger: Releases, *, resume: bool) -> None:
        self.folder, self.about, self.ledger = run / FOLDER, about, ledger
        self._resumed: list[str] | None = None  # lines that a resume has cut off; None = it was not resumed
        self._previous = ""  # SHA-256 of the last line
        if not resume:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def path(self) -> Path:
        """The file of lines."""
        return self.folder / LINES

    def offset(self) -> int:
        """Return the length of the lines in bytes; they are on the disk."""
        return self.path.stat().st_size if self.path.exists() else 0

    def truncate(self, length: int) -> None:
        """Cut the lines back to what they were at a checkpoint.

        Raises:
            StateError: They are fewer than they were then.
        """
        if self.offset() < length:
            raise StateError(
                f"{self.path}: expected at least the {length} bytes that the checkpoint refers to; got "
                f"{self.offset()}. Restore the file, or start again under another --run-name"
            )
        for rest in self.folder.glob(".*"):  # of a write that was killed
            shutil.rmtree(rest, ignore_errors=True)
        if not self.path.exists():
            return
        with self.path.open("r+b") as file:
            kept, cut = (split(part)[0] for part in (file.read(length), file.read()))
            self._resumed = [digest(line) for line in cut]
            self._previous = digest(kept[-1]) if kept else ""
            file.truncate(length)
            os.fsync(file.fileno())

    def append(self, evidence: RoundEvidence, model: Arrays) -> None:
        """Write what a round leaves, then its line; all of it is on the disk when this returns."""
        number = evidence.round
        line: dict[str, Any] = {"round": number, "previous": self._previous}
        if not self._previous:
            line |= {"previous": keys_digest(self.about["run"]), "format": FORMAT}
            line["trainable"] = list(evidence.trainable)
            make_folder(self.folder)
            write_safetensors(self.folder / INITIAL, model)
        if not self._previous or self._resumed is not None:
            line["about"] = dict(self.about)
        if self._resumed is not None:
            line["dropped"] = self._resumed
        line |= {"outcome": evidence.outcome, "why": evidence.why, "back": evidence.back, "lr": evidence.lr}
        if not evidence.hidden:
            line |= {"cohort": list(evidence.cohort), "groups": [list(g) for g in evidence.groups]}
            line["spent"] = dict(evidence.spent)
        line["phases"] = [self._phase(number, i, phase) for i, phase in enumerate(evidence.phases)]
        line |= {"model": sha256(model), "state": evidence.state, "ledger": self._ledger(number)}
        data = to_json(line)
        with naming(self.path), open(self.path, "ab", opener=private) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._resumed, self._previous = None, digest(data.rstrip(b"\n"))

    def _phase(self, number: int, place: int, evidence: Evidence) -> dict[str, Any]:
        line = evidence.record()
        if evidence.sums:
            name = f"{number}-{place}-{evidence.phase.name}.safetensors"
            write_safetensors(self.folder / name, evidence.sums)
            line |= {"file": name, "sums": sha256(evidence.sums)}
        for upload in evidence.uploads:
            if upload.content is not None:
                Stored.of(upload.content).write(self.folder / UPLOADS / f"{upload.upload}.safetensors")
        return line

    def _ledger(self, number: int) -> list[str]:
        """Return the SHA-256 of each line of the ledger of releases on a round."""
        found = self.ledger.lines() if self.ledger.path.exists() else []
        return [line_digest(line) for line in found if line["round"] == number]


def digest(line: bytes) -> str:
    """Return the SHA-256 of a line without its newline."""
    return hashlib.sha256(line).hexdigest()


def line_digest(line: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a line of the ledger."""
    return digest(json.dumps(line, allow_nan=False).encode())


def keys_digest(keys: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a run's keys, whatever their order."""
    return digest(json.dumps(keys, sort_keys=True).encode())
