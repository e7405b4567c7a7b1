"""The journal: reports of the round loop, and snapshots to restore it from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from strategies.engine.state import Number, S, ServerState, dump_state, load_state
from task.errors import BouquetError
from task.numerics.arrays import Arrays
from task.text import logger
from task.wire.messages import RejectedReply

if TYPE_CHECKING:
    from strategies.engine.rounds import Clock


@dataclass(frozen=True)
class Snapshot:
    """Everything that the next round depends on.

    All random numbers come from (seed, round), so there is no generator state to keep.
    """

    round: int
    arrays: Arrays
    numbers: dict[str, Number]
    # The rollback target if clients diverge from this state (`strategies.engine.recovery`).
    good: Snapshot | None = None

    @staticmethod
    def of(
        server_round: int, state: ServerState, memory: Arrays | None = None, good: Snapshot | None = None
    ) -> Snapshot:
        """Take a snapshot after a round; arrays are shared, not copied (states are never written to).

        `memory` has arrays that are not part of the state, with prefixes (``selection/...``,
        ``recovery/...``); `good` is the rollback target.
        """
        arrays, numbers = dump_state(state)
        return Snapshot(server_round, arrays | (memory or {}), numbers, good)

    @property
    def model(self) -> Arrays:
        """The global model's arrays."""
        return {k.removeprefix("arrays/"): a for k, a in self.arrays.items() if k.startswith("arrays/")}

    def state(self, cls: type[S]) -> S:
        """Rebuild the rule's state."""
        return load_state(cls, self.arrays, self.numbers)


class FeatureLog:
    """What one feature writes down while a run goes on; this one, in memory, ends with the process.

    A stage asks for its kind of log by `Journal.log`. A class of `server_app.run.logs` that derives from that
    kind writes it into the result folder.
    """

    name: ClassVar[str] = ""  # of its feature, under which a checkpoint has its mark

    def mark(self) -> int | None:
        """Return what a checkpoint stores of it; None = nothing."""
        return None

    def restore(self, server_round: int, mark: int) -> None:
        """Go back to a checkpoint of a round, which had this mark; 0 and 0 = to the beginning.

        Raises:
            StateError: It lacks what it had then.
        """

    def covered(self, server_round: int) -> None:
        """Delete what serves only to repeat rounds, up to one that a checkpoint covers now."""


L = TypeVar("L", bound=FeatureLog)


class Journal:
    """Logs a line per round and stores nothing; the ServerApp's subclass writes the result folder."""

    run_id: str = ""  # identity of the run, the same after a resume; "" = each start is a run of its own
    authority: bytes = b""  # certificate of the federation's authority, PEM; b"" = not known

    @cached_property
    def logs(self) -> list[FeatureLog]:
        """What features write down of the run, one of a kind."""
        return []

    def log(self, kind: type[L]) -> L:
        """Return the run's log of a kind, for the feature's own files."""
        found = next((log for log in self.logs if isinstance(log, kind)), None)
        if found is None:
            found = kind()
            self.logs.append(found)
        return found

    def participants(self, nodes: list[dict[str, Any]], left_out: list[dict[str, Any]]) -> None:
        """Registration is over: `nodes` take part; those of `left_out` are online and do not."""

    def replies(self, server_round: int, answered: int, asked: int) -> None:
        """A reply came in."""

    def quarantined(self, lines: Sequence[RejectedReply]) -> None:
        """Replies were dropped; `lines` say whose and why."""
        for line in lines:
            logger.warning("quarantined: %s", line)

    def round_done(
        self, row: dict[str, Any], clients: list[dict[str, Any]], snapshot: Snapshot, clock: Clock
    ) -> None:
        """A round is over; the time spent here counts as the phase ``checkpoint``."""
        logger.info(
            "round %d: loss %s, accuracy %s, %d of %d clients",
            row["round"], row["loss"], row["accuracy"], row["answered"], row["asked"],
        )  # fmt: skip

    def restore(self) -> Snapshot | None:
        """Return the snapshot to resume from, or None to start."""
        return None

    def stored(self, server_round: int, state: S) -> S:
        """Return the state after a round with the arrays of its checkpoint, if there is one.

        They are in a file, which takes no memory until it is read.
        """
        taken = Snapshot.of(server_round, state)
        arrays = self.mapped(server_round, taken.arrays)
        return state if arrays is None else replace(taken, arrays=arrays).state(type(state))

    def mapped(self, server_round: int, like: Arrays) -> Arrays | None:
        """Return some arrays of a round in the file of its checkpoint; None if there is none."""
        return None

    def remark(self, line: str) -> None:
        """Show a remark to the user who watches the run."""
        logger.warning("%s", line)

    def trained(self) -> bool:
        """Return whether the restored run had trained in any of its rounds."""
        return False

    def nothing_trained(self, error: BouquetError) -> None:
        """No round had enough valid replies, nor will any; the run continues if an override returns."""
        raise error

    def stuck(self, why: str) -> None:
        """Later rounds could not train, so that the run, which has trained, ends before its last round."""
        self.remark(f"warning: the run ends {why}")

    def reached(self, target: float) -> bool:
        """Return whether the restored run had reached the target accuracy (0 = no target)."""
        return False

    def measured_last(self, server_round: int, lines: list[dict[str, Any]]) -> None:
        """Clients were evaluated after the last round; `lines` are like those of `round_done`."""
        logger.info("round %d: %d evaluations after the last round", server_round, len(lines))

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the restored run so far."""
        return []
