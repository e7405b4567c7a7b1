"""What a phase leaves for its transcript: who committed to which upload, and what the uploads came to.

The commitment is taken out of each answer before anything else reads it, and an answer without a valid one
is refused: so that what is published can be checked whoever the nodes are.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from flwr.app import Message, RecordDict

from strategies.engine.state import dump_state
from task.config.read import as_run_config
from task.config.run_name import terms
from task.errors import BouquetError, FieldError
from task.numerics.arrays import Arrays, sha256
from task.wire import commitments
from task.wire import messages as wire
from task.wire.commitments import Commitment, Statement

if TYPE_CHECKING:
    from strategies.engine.cohort import RoundPlan
    from strategies.engine.fold import Folded
    from strategies.engine.phases import PhaseEngine
    from strategies.engine.rule import Phase
    from strategies.engine.rule_round import RuleRound
    from strategies.engine.state import AggregatedReplies, ServerState


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
    """What one phase leaves."""

    phase: "Phase"
    run: str
    terms: str  # SHA-256 of the run's keys
    round: int
    full: bool = False  # whether uploads are kept
    authority: bytes = b""  # certificate of the federation's authority, PEM; b"" = not known here
    sealed: int = 0  # nodes online, among which those that answered are hidden; 0 = they are named
    attempt: str = field(default_factory=lambda: secrets.token_hex(16))
    sent: Mapping[str, float] = field(default_factory=dict)  # numbers of its orders
    uploads: list[CommittedUpload] = field(default_factory=list)
    sums: Arrays = field(default_factory=dict)
    masks: Mapping[str, Any] = field(default_factory=dict)  # what opens a sum of masked uploads
    folded: "Folded | None" = None

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

    def close(self, folded: "Folded") -> None:
        """Take what the phase came to; where noise was added, no other sums than with it."""
        self.folded = folded
        if self.sealed:
            given = folded.reduced.arrays if folded.reduced else {}
            self.sums = {f"{r}/{n}": a for r, arrays in given.items() for n, a in arrays.items()}

    def record(self) -> dict[str, Any]:
        """Return what the round's line says of the phase, but for its files."""
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


def replies_record(replies: "AggregatedReplies | None", *, hidden: bool = False) -> dict[str, Any] | None:
    """Return what a rule was given beside arrays; if `hidden`, nothing of who took part or how many."""
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
    """What a round leaves for its transcript."""

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


def evidence_for(engine: "PhaseEngine", phase: "Phase") -> Evidence | None:
    """Return what is to be gathered of a phase; None if the run has no transcript or needs none of it."""
    mode = engine.config.server.transcript
    if not commitments.covers(mode, phase.name):
        return None
    online = len(engine.registry.membership.present()) if engine.privacy else 0
    mine = terms(as_run_config(engine.config))
    return Evidence(
        phase, engine.run_id, mine, engine.round, mode == "full", engine.journal.authority, online
    )


def witness(engine: "PhaseEngine", evidence: Evidence | None) -> Callable[[Message, Sequence[str]], None]:
    """Return what takes the commitment out of a reply to a phase, given the clients that were asked."""

    def take(reply: Message, clients: Sequence[str]) -> None:
        if evidence is not None:
            node = engine.registry.membership.present().get(reply.metadata.src_node_id)
            evidence.take(node.name if node else "", clients, reply.content)

    return take


def round_evidence(
    engine: "PhaseEngine", done: "RuleRound | None", plan: "RoundPlan", state: "ServerState", back: int | None
) -> RoundEvidence | None:
    """Return what a round leaves that is done and not yet settled; None if the run has no transcript.

    `state` is the rule's after it; `back` the round that the run went back to.
    """
    if engine.config.server.transcript == "none":
        return None
    if done is None:  # round 0
        phases, digest = phases_of(engine.done), state_digest(state)
        return RoundEvidence(0, "begun", phases, trainable=engine.trainable, state=digest)
    outcome = "rolled-back" if back is not None else "skipped" if done.result is None else "updated"
    names = ("population", "seconds", "bytes", "asked") if done.spent else ()
    spent = {name: getattr(done.spent, name) for name in names}
    return RoundEvidence(
        engine.round, outcome, phases_of(engine.done), done.why if outcome == "skipped" else "", back,
        plan.cohort, plan.groups, engine.lr, spent, engine.trainable,
        state_digest(state), engine.privacy is not None,
    )  # fmt: skip


def phases_of(done: Iterable[tuple["Phase", "Folded"]]) -> tuple[Evidence, ...]:
    """Return what phases leave."""
    return tuple(folded.evidence for _, folded in done if folded.evidence)


def state_digest(state: "ServerState") -> str:
    """Return the SHA-256 of a rule's state."""
    arrays, numbers = dump_state(state)
    return hashlib.sha256(f"{sha256(arrays)} {sorted(numbers.items())!r}".encode()).hexdigest()
