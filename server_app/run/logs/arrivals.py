"""``RUN/arrivals.jsonl``: the order in which updates arrived, written to disk before they count.

Its first line names the run; the others are those of `strategies.channels.arrival_log`. The file only grows:
a resumed run follows the recorded order and then appends to it. An incomplete last line is an event without
consequences; a resume removes it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server_app.results.folder import RunFolder
from strategies.channels.arrival_log import ArrivalLog
from task.errors import StateError
from task.storage.durable_lines import DurableLines

FILE = "arrivals.jsonl"


class ArrivalFile(ArrivalLog):
    """A run's order of arrival, to begin or continue it.

    Raises:
        StateError: The file is damaged, or of another run.
    """

    def __init__(self, folder: RunFolder, *, resume: bool) -> None:
        self._folder, self._file = folder, DurableLines(folder.path / FILE)
        if not resume:
            self._file.path.unlink(missing_ok=True)
        self._run = str(folder.config()["id"])
        path = self._file.path
        super().__init__(_events(path, self._file.lines(), self._run), self._append, str(path))

    def _append(self, line: Mapping[str, Any]) -> None:
        if not self._file.path.exists():
            self._file.append({"event": "run", "id": self._run})
        self._file.append(line)

    def restore(self, server_round: int, mark: int) -> None:
        """Refuse to go on from a checkpoint whose round the file does not reach.

        Raises:
            StateError: It does not.
        """
        real = self._folder.config()["run"].get("order-of-arrival") == "real"
        if real and (steps := self.steps()) < server_round:
            raise StateError(
                f"{self._file.path}: expected the order of arrival up to the checkpoint's round "
                f"{server_round}; got it up to round {steps}. Restore both from one backup."
            )


def finished_order_of(folder: RunFolder) -> ArrivalLog:
    """Return a finished run's order of arrival.

    Raises:
        StateError: The file is missing, damaged, or of another run; or its last line is not whole.
    """
    path = folder.path / FILE
    data = path.read_bytes() if path.exists() else b""
    if not data:
        raise StateError(f"{path}: expected the order in which updates arrived; got none. Restore the file")
    if not data.endswith(b"\n"):
        raise StateError(
            f"{path}: expected whole lines; got {len(data)} bytes, the last incomplete. If the run's "
            "server was killed, resume the run, which removes that line; else restore the file"
        )
    events = _events(path, DurableLines(path).lines(), str(folder.config()["id"]))
    return ArrivalLog(events, where=str(path), closed=True)


def _events(path: Path, lines: list[dict[str, Any]], run_id: str) -> list[dict[str, Any]]:
    if not lines:
        return []
    first = lines[0]
    if first.get("event") != "run" or first.get("id") != run_id:
        got = first.get("id") if first.get("event") == "run" else first
        raise StateError(f"{path}: expected the order of arrival of run {run_id}; got that of {got}")
    return lines[1:]
