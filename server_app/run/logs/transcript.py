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

from server_app.results.folder import RunFolder, to_json
from server_app.results.lines import split
from server_app.run.logs.privacy import ledger_of
from strategies.stages.transcript import Evidence, RoundEvidence, TranscriptLog
from task.errors import StateError
from task.numerics.arrays import Arrays, sha256
from task.storage.files import make_folder, naming, private, write_safetensors
from task.wire.commitments import Stored

OF_TRANSCRIPT = ("id", "run", "columns", "code", "frozen")  # what a transcript says of config.json
FOLDER, LINES, INITIAL, UPLOADS = "transcript", "rounds.jsonl", "initial.safetensors", "uploads"
FORMAT = 2  # 1 had neither the epochs of uploads nor all numbers of orders


class Transcript(TranscriptLog):
    """The transcript that one run writes; unless it is to `resume`, that of an earlier run is deleted."""

    def __init__(self, folder: RunFolder, *, resume: bool) -> None:
        self.folder, self.ledger = folder.path / FOLDER, ledger_of(folder.path)
        config = folder.config()
        self.about: Mapping[str, Any] = {k: config[k] for k in OF_TRANSCRIPT if k in config}
        self._resumed: list[str] | None = None  # lines that a resume has cut off; None = it was not resumed
        self._previous = ""  # SHA-256 of the last line
        if not resume:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def path(self) -> Path:
        """The file of lines."""
        return self.folder / LINES

    def mark(self) -> int:
        """Return the length of the lines in bytes; they are on the disk."""
        return self.path.stat().st_size if self.path.exists() else 0

    def restore(self, server_round: int, mark: int) -> None:
        """Cut the lines back to what they were at a checkpoint, when they had this length.

        Raises:
            StateError: They are fewer than they were then.
        """
        if self.mark() < mark:
            raise StateError(
                f"{self.path}: expected at least the {mark} bytes that the checkpoint refers to; got "
                f"{self.mark()}. Restore the file, or start again under another --run-name"
            )
        for rest in self.folder.glob(".*"):  # of a write that was killed
            shutil.rmtree(rest, ignore_errors=True)
        if not self.path.exists():
            return
        with self.path.open("r+b") as file:
            kept, cut = (split(part)[0] for part in (file.read(mark), file.read()))
            self._resumed = [digest(line) for line in cut]
            self._previous = digest(kept[-1]) if kept else ""
            file.truncate(mark)
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
