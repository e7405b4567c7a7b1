"""The journal of a deployed run: result folder, checkpoint, best model and progress."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from server_app.results.folder import RunFolder
from server_app.results.summary import score
from server_app.run.best_model import write_best
from server_app.run.checkpoint import Checkpoint
from server_app.run.confined import authority
from server_app.run.kept import KeptSync
from server_app.run.logs import logs_of
from server_app.run.progress import Progress
from strategies.engine.journal import FeatureLog, Journal, Snapshot
from strategies.engine.rounds import Clock
from task.errors import StateError
from task.numerics.arrays import Arrays
from task.wire.messages import RejectedReply


class Recorder(Journal):
    """Writes a run's journal into its result folder, and shows it as live progress.

    There are `every` rounds between checkpoints; 0 = only one after the last. `resume` continues from the
    folder's checkpoint. `card` is the metadata of the model's file, for a run that is stopped. `kept` puts on
    the disk what clients on this machine keep. `tell` gets the line of each finished round. `follows`
    are features' logs of an earlier run, which this one repeats; it writes none of these kinds.
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
        follows: Sequence[FeatureLog] = (),
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
        kinds, own = tuple(map(type, follows)), logs_of(folder, resume=resume)
        self.logs = [*follows, *(log for log in own if not isinstance(log, kinds))]
        self.authority = authority()
        self.snapshot: Snapshot | None = None
        self.best = -math.inf
        self.central = False  # whether the server measures; else the clients' evaluations tell the best round
        self.last_lines: list[dict[str, Any]] = []  # of clients.jsonl, from after the last round
        self.nodes: list[list[dict[str, Any]]] = [[], []]
        self.stopped = ""  # why the run has ended before its last round

    def restore(self) -> Snapshot | None:
        """Return the last checkpoint, the journal files cut back to it.

        Raises:
            StateError: The checkpoint or a journal file is damaged.
        """
        found = self.checkpoint.read() if self.resume else None
        if found is None:
            if self.resume:
                self.folder.truncate({"rounds": 0, "clients": 0})
                for log in self.logs:
                    log.restore(0, 0)
            return None
        snapshot, extra = found
        self.folder.truncate(extra["offsets"])
        for log in self.logs:
            log.restore(snapshot.round, extra.get(log.name, 0))
        rounds = self.folder.rounds()
        if not rounds or rounds[-1]["round"] != snapshot.round:
            got = rounds[-1]["round"] if rounds else "none"
            raise StateError(
                f"{self.folder.path}: expected rounds.jsonl to end with round {snapshot.round}, as the "
                f"checkpoint does; got {got}. Restore both from one backup."
            )
        self.central = any(row["loss"] is not None for row in rounds)
        self.best = max(map(self._score, rounds))
        self.snapshot = snapshot
        if (of := self.folder.config()["run"].get("num-server-rounds")) == snapshot.round:
            self.progress.message(
                f"{self.folder.path} has all its {of} rounds: no round is left to do; more num-server-rounds "
                "lengthen it"
            )
        else:
            self.progress.message(f"continuing after round {snapshot.round} of {self.folder.path}")
        self.progress.round_done(rounds[-1])
        return snapshot

    def mapped(self, server_round: int, like: Arrays) -> Arrays | None:
        """Return arrays of a round in the file of its checkpoint; None if there is none."""
        return self.checkpoint.mapped(server_round, like)

    def remark(self, line: str) -> None:
        """Show the line above the bar."""
        self.progress.message(line)

    def stuck(self, why: str) -> None:
        """Note and show why the run ends; its result says so, and it can be resumed."""
        super().stuck(why)
        self.stopped = why

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
        if (now := self._score(row)) > self.best:
            self.best = now
            write_best(self.folder, snapshot.model, self.card)
        due = self.every and row["round"] % self.every == 0
        path = self.checkpoint.write_arrays(snapshot) if due else None
        clock.lap("checkpoint")
        self.folder.append_round(row)
        if path is not None:
            self._commit(snapshot, path)
        self.progress.round_done(row)
        self._tell(row)

    def measured_last(self, server_round: int, lines: list[dict[str, Any]]) -> None:
        """Keep the lines until the run is closed."""
        self.last_lines = lines

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
        marks = {log.name: mark for log in self.logs if (mark := log.mark()) is not None}
        extra = {"offsets": self.folder.offsets(), **marks, "card": self.card}
        self.checkpoint.commit(snapshot, path, extra)
        for log in self.logs:
            log.covered(snapshot.round)

    def _score(self, row: Mapping[str, Any]) -> float:
        found = score(row, "server" if self.central else "clients")
        return -math.inf if found is None else found
