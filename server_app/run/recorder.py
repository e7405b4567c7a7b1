"""The journal of a deployed run: result folder, checkpoint, best model and progress."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from server_app.results.folder import RunFolder
from server_app.results.summary import score
from server_app.run.arrival_file import FILE, order_of
from server_app.run.checkpoint import Checkpoint
from server_app.run.confined import authority
from server_app.run.encryption import in_clear
from server_app.run.frozen import write_best
from server_app.run.kept import KeptSync
from server_app.run.privacy_ledger import Ledger
from server_app.run.progress import Progress
from server_app.run.transcript import OF_TRANSCRIPT, Transcript
from strategies.engine.arrival_log import ArrivalLog
from strategies.engine.journal import Journal, Snapshot
from strategies.engine.rounds import Clock
from strategies.stages.transcript import RoundEvidence
from task.config.read import read_checked
from task.encryption.ckks import sealed
from task.errors import StateError
from task.numerics.arrays import Arrays
from task.wire.messages import RejectedReply


class Recorder(Journal):
    """Writes a run's journal into its result folder, and shows it as live progress.

    There are `every` rounds between checkpoints; 0 = only one after the last. `resume` continues from the
    folder's checkpoint. `card` is the metadata of the model's file, for a run that is stopped. `kept` puts on
    the disk what clients on this machine keep. `tell` gets the line of each finished round. `order` is
    the order of arrival of a run that is replayed.
    """

    def __init__(
        self,
        folder: RunFolder,
        progress: Progress,
        *,
        every: int,
        resume: bool,
        card: Mapping[str, str] | None = None,
        kept: KeptSync | None = None,
        tell: Callable[[dict[str, Any]], object] = lambda row: None,
        order: ArrivalLog | None = None,
    ) -> None:
        self._tell = tell
        self.folder = folder
        self.progress = progress
        self.every = every
        self.resume = resume
        self.card = dict(card or {})
        self.kept = kept
        self.run_id = str(folder.config()["id"])
        self.checkpoint = Checkpoint(folder.path / "checkpoint")
        self.ledger = Ledger(folder.path, resume=resume)
        config = folder.config()
        self._run = read_checked(config["run"])
        about: dict[str, Any] = {k: config[k] for k in OF_TRANSCRIPT if k in config}
        self.transcript = Transcript(folder.path, about, self.ledger.releases, resume=resume)
        self.authority = authority()
        if not resume:
            (folder.path / FILE).unlink(missing_ok=True)
        self.order = order
        self.snapshot: Snapshot | None = None
        self.best = -math.inf
        self.central = False  # whether the server measures; else the clients' evaluations tell the best round
        self.last_lines: list[dict[str, Any]] = []  # of clients.jsonl, from after the last round
        self.nodes: list[list[dict[str, Any]]] = [[], []]

    def restore(self) -> Snapshot | None:
        """Return the last checkpoint, the journal files cut back to it.

        Raises:
            StateError: The checkpoint or a journal file is damaged.
        """
        found = self.checkpoint.read() if self.resume else None
        if found is None:
            if self.resume:
                self.folder.truncate({"rounds": 0, "clients": 0})
                self.transcript.truncate(0)
            return None
        snapshot, extra = found
        self.folder.truncate(extra["offsets"])
        self.transcript.truncate(extra.get("transcript", 0))
        rounds = self.folder.rounds()
        if not rounds or rounds[-1]["round"] != snapshot.round:
            got = rounds[-1]["round"] if rounds else "none"
            raise StateError(
                f"{self.folder.path}: expected rounds.jsonl to end with round {snapshot.round}, as the "
                f"checkpoint does; got {got}. Restore both from one backup."
            )
        if (
            self.folder.config()["run"].get("order-of-arrival") == "real"
            and (steps := self.arrivals().steps()) < snapshot.round
        ):
            raise StateError(
                f"{self.folder.path / FILE}: expected the order of arrival up to the checkpoint's "
                f"round {snapshot.round}; got it up to round {steps}. Restore both from one backup."
            )
        self.central = any(row["loss"] is not None for row in rounds)
        self.best = max(map(self._score, rounds))
        self.snapshot = snapshot
        self.progress.message(f"continuing after round {snapshot.round} of {self.folder.path}")
        self.progress.round_done(rounds[-1])
        return snapshot

    def mapped(self, server_round: int, like: Arrays) -> Arrays | None:
        """Return arrays of a round in the file of its checkpoint; None if there is none."""
        return self.checkpoint.mapped(server_round, like)

    def remark(self, line: str) -> None:
        """Show the line above the bar."""
        self.progress.message(line)

    def secret(self) -> bytes:
        """Return the run's secret, from its folder."""
        return self.ledger.secret()

    def released(self) -> list[dict[str, Any]]:
        """Return the lines of the run's ledger."""
        return self.ledger.releases.lines()

    def release(self, line: dict[str, Any]) -> None:
        """Add a line to the run's ledger, on the disk."""
        self.ledger.releases.append(line)

    def made(self, server_round: int, question: str) -> Arrays | None:
        """Return what the run has already released of a repeated round."""
        return self.ledger.made(server_round, question)

    def make(self, server_round: int, question: str, arrays: Arrays) -> None:
        """Store what is released next to the ledger, on the disk."""
        self.ledger.make(server_round, question, arrays)

    def arrivals(self) -> ArrivalLog:
        """Return the order of arrival in the result folder, or that of the run that is replayed."""
        self.order = self.order or order_of(self.folder)
        return self.order

    def reached(self, target: float) -> bool:
        """Return whether the rounds so far reached the target accuracy, on the clients if nowhere else."""
        best = self.best
        if best < 0:
            seen = (row["client_accuracy"] for row in self.folder.rounds())
            best = max((a for a in seen if a is not None), default=best)
        return 0 < target <= best

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the run so far."""
        return self.folder.rounds()

    def trained(self) -> bool:
        """Return whether any round so far was not skipped."""
        return any(row["round"] and not row["skipped"] for row in self.folder.rounds())

    def participants(self, nodes: list[dict[str, Any]], left_out: list[dict[str, Any]]) -> None:
        """Write down who takes part and who does not, when that has changed."""
        if [nodes, left_out] != self.nodes:
            self.folder.write_nodes(nodes, left_out)
            self.nodes = [nodes, left_out]

    def replies(self, server_round: int, answered: int, asked: int) -> None:
        """Move the progress bar."""
        self.progress.replies(server_round, answered, asked)

    def quarantined(self, lines: Sequence[RejectedReply]) -> None:
        """Say who was dropped and why, above the bar; the row holds the same."""
        for line in lines:
            self.progress.message(f"quarantined: {line}")

    def transcribe(self, evidence: RoundEvidence, model: Arrays) -> None:
        """Write what anyone can check the round by."""
        self.transcript.append(evidence, model)

    def round_done(
        self, row: dict[str, Any], clients: list[dict[str, Any]], snapshot: Snapshot, clock: Clock
    ) -> None:
        """Write the clients' lines, the arrays, the round's line and then the checkpoint, in this order.

        A crash anywhere leaves the former checkpoint and lines after it, which a resume cuts off.
        """
        self.folder.append_clients(clients)
        self.snapshot = snapshot
        if row["loss"] is not None and not self.central:
            self.central, self.best = True, -math.inf
        model = {k.removeprefix("arrays/"): a for k, a in snapshot.arrays.items() if k.startswith("arrays/")}
        if (now := self._score(row)) > self.best:
            self.best = now
            model = in_clear(self._run, model)
            if model and not sealed(model):  # else all of it stays at the clients
                write_best(self.folder, model, self.card)
        due = self.every and row["round"] % self.every == 0
        path = self.checkpoint.write_arrays(snapshot) if due else None
        clock.lap("checkpoint")
        self.folder.append_round(row)
        if path is not None:
            self._commit(snapshot, path)
        self.progress.round_done(row)
        self._tell(row)

    def held_out(self, server_round: int, lines: list[dict[str, Any]]) -> None:
        """Keep the lines until the run is closed."""
        self.last_lines = lines

    def cross_evaluated(self, rows: list[dict[str, Any]]) -> None:
        """Write the table."""
        self.folder.write_cross_evaluation(rows)

    def close(self) -> None:
        """Write a checkpoint of the last round, whatever the interval, so that a run can be lengthened.

        What was measured at the end comes after it, so that a longer run leaves it out.
        """
        if self.snapshot is not None:
            self._commit(self.snapshot, self.checkpoint.write_arrays(self.snapshot))
        self.folder.append_clients(self.last_lines)

    def _commit(self, snapshot: Snapshot, path: Path) -> None:
        """Make a checkpoint count, once what the clients kept by then is on the disk."""
        if self.kept:
            self.kept.sync()
        lengths = {"offsets": self.folder.offsets(), "transcript": self.transcript.offset()}
        self.checkpoint.commit(snapshot, path, {**lengths, "card": self.card})
        self.ledger.forget(snapshot.round)

    def _score(self, row: Mapping[str, Any]) -> float:
        found = score(row, "server" if self.central else "clients")
        return -math.inf if found is None else found
