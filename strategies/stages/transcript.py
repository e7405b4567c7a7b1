"""Server half of the transcript: commitments to uploads, and the phases' sums.

The commitment is taken out of each answer before anything else reads it, and an answer without a valid one
is refused: so that what is published can be checked without trusting the nodes.
"""

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from flwr.app import RecordDict

from strategies.engine.channel import Opened
from strategies.engine.fold import Folded
from strategies.engine.journal import FeatureLog
from strategies.engine.rule import Phase
from strategies.engine.stage import Leave, Outgoing, RoundEnd, ServerStage
from strategies.engine.state import AggregatedReplies, ServerState, dump_state
from task.config.read import as_run_config
from task.config.run_name import terms
from task.errors import BouquetError, FieldError
from task.numerics.arrays import Arrays, flattened, sha256
from task.wire import commitments
from task.wire import messages as wire
from task.wire.commitments import ATTEMPT, Commitment, Statement
from task.wire.entries import scalars_in


@dataclass
class CommittedUpload:
    """An answer that its node has committed to."""

    node: str  # name that it is enrolled under; "" = none
    clients: tuple[str, ...]  # that it was asked for
    epochs: tuple[int, ...]  # parallel to them; 0 = as configured
    upload: str  # SHA-256 of the answer
    commitment: Commitment
    content: RecordDict | None  # the answer, where transcripts keep it


@dataclass
class Evidence:
    """The evidence of one phase."""

    phase: Phase
    run: str
    terms: str  # SHA-256 of the run's keys
    round: int
    full: bool = False  # whether uploads are kept
    authority: bytes = b""  # certificate of the federation's authority, PEM; b"" = not known here
    sealed: int = 0  # nodes online, among which those that answered are hidden; 0 = they are named
    attempt: str = ""  # of the phase
    sent: Mapping[str, float] = field(default_factory=dict)  # numbers of its orders
    uploads: list[CommittedUpload] = field(default_factory=list)
    sums: Arrays = field(default_factory=dict)
    masks: Mapping[str, Any] = field(default_factory=dict)  # what opens a sum of masked uploads
    folded: Folded | None = None

    @cached_property
    def model(self) -> str:
        """SHA-256 of the model that all clients get; "" if they get none."""
        arrays = self.phase.records.get(wire.ARRAYS)
        return "" if arrays is None else sha256(arrays)

    def take(self, node: str, clients: Iterable[str], content: RecordDict) -> None:
        """Take the commitment out of an answer; check it.

        Raises:
            FieldError: There is none, or it is not one to this answer.
        """
        commitment, asked = commitments.detach(content), tuple(clients)
        for what, want, got in (
            ("model", self.model, commitment.model),
            ("run config", self.terms, commitment.terms),
        ):
            if want != got:
                raise FieldError(commitments.COMMITMENT, f"the {what} {want[:12]}", got[:12])
        epochs = tuple(self.phase.epochs.get(c, 0) for c in asked)
        order = asked, epochs, self.sent, self.model
        mine = (self.run, self.terms, self.round, self.phase.kind, self.attempt, *order)
        statement = Statement(*mine, commitments.digest(content))
        commitment.check(statement)
        if commitment.endorsement and self.authority:
            try:
                commitment.endorsement.check(self.authority, node, commitment.key)
            except BouquetError as err:
                raise FieldError(commitments.COMMITMENT, commitments.WANTED, str(err)) from None
        kept = content if self.full else None
        self.uploads.append(CommittedUpload(node, asked, epochs, statement.upload, commitment, kept))

    def close(self, folded: Folded) -> None:
        """Take what the phase came to; where noise was added, no other sums than with it."""
        self.folded = folded
        if self.sealed:
            given = folded.reduced.arrays if folded.reduced else {}
            self.sums = flattened(given)

    def record(self) -> dict[str, Any]:
        """Return the phase's part of the round's line, without its files."""
        assert self.folded is not None
        folded, phase = self.folded, self.phase
        about = {"phase": phase.name, "kind": phase.kind, "attempt": self.attempt, "model": self.model}
        if self.sealed:
            return {**about, "sealed": self._sealed(), "replies": replies_record(folded.reduced, hidden=True)}
        why = {q.client: str(q) for q in folded.quarantined}
        uploads = [
            {
                "node": u.node, "clients": list(u.clients), "epochs": list(u.epochs),
                "counted": [c for c in u.clients if c in folded.metrics],
                "refused": {c: why[c] for c in u.clients if c in why}, "upload": u.upload,
                **u.commitment.fields(),
            }
            for u in sorted(self.uploads, key=lambda u: u.clients)
        ]  # fmt: skip
        committed = {c for u in self.uploads for c in u.clients}
        missing = {c: why[c] for c in phase.to if c in why and c not in committed}
        more = {"uploads": uploads, "missing": missing, "masks": dict(self.masks)}
        more |= {"sent": dict(self.sent)}
        return {**about, "asked": list(phase.to), **more, "replies": replies_record(folded.reduced)}

    def _sealed(self) -> list[str]:
        """Return a word for each node online, in an order that says nothing.

        Of those that answered it is the SHA-256 of their signature, which they alone recognise; of the
        others it is random, so that not even their number shows.
        """
        found = [seal(u.commitment.signature) for u in self.uploads]
        found += [secrets.token_hex(32) for _ in range(self.sealed - len(found))]
        return sorted(found)


def seal(signature: bytes) -> str:
    """Return by what a node alone recognises its signature."""
    return hashlib.sha256(signature).hexdigest()


# Of `AggregatedReplies`, what is written down as it is.
PLAIN = ("round", "lr", "trainable", "population", "seconds", "bytes", "asked", "names", "expected", "reduce")


def replies_record(replies: AggregatedReplies | None, *, hidden: bool = False) -> dict[str, Any] | None:
    """Return a rule's inputs other than arrays; if `hidden`, without who took part or how many."""
    if replies is None:
        return None
    found = {name: getattr(replies, name) for name in PLAIN}
    if hidden:
        nobody: dict[str, Any] = {"clients": [], "num_examples": [], "scalars": {}}
        return found | {"seconds": 0.0, "bytes": 0, "asked": 0} | nobody
    weights = None if replies.weights is None else replies.weights.tolist()
    found |= {"clients": list(replies.clients), "num_examples": replies.num_examples.tolist()}
    return found | {"scalars": replies.scalars, "weights": weights}


@dataclass(frozen=True)
class RoundEvidence:
    """The evidence of a round."""

    round: int
    outcome: str  # ``updated``, ``skipped`` or ``rolled-back``; ``begun`` of round 0
    phases: tuple[Evidence, ...] = ()
    why: str = ""  # why the round was skipped
    back: int | None = None  # the round whose state it went back to
    cohort: tuple[str, ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()
    lr: float = 0.0
    spent: Mapping[str, Any] = field(default_factory=dict)  # what a skipped round cost
    trainable: tuple[str, ...] = ()
    state: str = ""  # SHA-256 of the rule's state after it
    hidden: bool = False  # whether who took part must not show


class TranscriptLog(FeatureLog):
    """The run's transcript; without a result folder there is none."""

    name: ClassVar[str] = "transcript"

    def append(self, evidence: RoundEvidence, model: Arrays) -> None:
        """Publish the evidence of a round that ended in this model; called before `Journal.round_done`."""


def state_digest(state: ServerState) -> str:
    """Return the SHA-256 of a rule's state."""
    arrays, numbers = dump_state(state)
    return hashlib.sha256(f"{sha256(arrays)} {sorted(numbers.items())!r}".encode()).hexdigest()


class TranscriptStage(ServerStage):
    """Gathers the evidence of each round."""

    name = "transcript"
    replayed = False

    def opened(self, opened: Opened) -> None:
        """Begin to gather what a phase leaves, if the transcript needs it."""
        engine, phase = self.engine, opened.phase
        mode = engine.config.server.transcript
        if not commitments.covers(mode, phase.name):
            return
        hidden = any(stage.hides for stage in engine.stages)
        online = len(engine.registry.membership.present()) if hidden else 0
        mine, authority = terms(as_run_config(engine.config)), engine.journal.authority
        opened.of[self.name] = Evidence(
            phase, engine.run_id, mine, engine.round, mode == "full", authority, online, opened.attempt
        )

    def attach(self, opened: Opened, out: Outgoing) -> None:
        """Ask for a commitment."""
        if self.name in opened.of:
            out.entries[ATTEMPT] = opened.attempt

    def written(self, opened: Opened, content: RecordDict) -> None:
        """Take note of the numbers of the orders."""
        if evidence := opened.of.get(self.name):
            evidence.sent = scalars_in(content)

    def check_reply(self, opened: Opened, node: str, clients: Sequence[str], content: RecordDict) -> None:
        """Take the commitment out of a reply.

        Raises:
            FieldError: There is none, or it is not one to this reply.
        """
        if evidence := opened.of.get(self.name):
            evidence.take(node, clients, content)

    def after_fold(self, opened: Opened, folded: Folded) -> None:
        """Take what the phase came to."""
        if evidence := opened.of.get(self.name):
            evidence.sums = opened.sums()
            evidence.masks = opened.masks if evidence.full else {}
            evidence.close(folded)
            folded.left[self.name] = evidence

    def leaves(self, end: RoundEnd) -> Leave:
        """Return what publishes what a round leaves that is done and not yet written."""
        engine, done = self.engine, end.round
        found = (folded.left.get(self.name) for _, folded in engine.done)
        phases, digest = tuple(evidence for evidence in found if evidence), state_digest(end.state)
        if done is None:  # round 0
            left = RoundEvidence(0, "begun", phases, trainable=engine.trainable, state=digest)
        else:
            back, plan = end.back, end.plan
            outcome = "rolled-back" if back is not None else "skipped" if done.result is None else "updated"
            names = ("population", "seconds", "bytes", "asked") if done.spent else ()
            spent = {name: getattr(done.spent, name) for name in names}
            hidden = any(stage.hides for stage in engine.stages)
            left = RoundEvidence(
                engine.round, outcome, phases, done.why if outcome == "skipped" else "", back,
                plan.cohort, plan.groups, engine.lr, spent, engine.trainable, digest, hidden,
            )  # fmt: skip
        return lambda journal, model: journal.log(TranscriptLog).append(left, model)
