"""Check the replies of a round and fold the good ones in as they come; quarantine the rest."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Message

from strategies.engine.reply_size import most_bytes, own_bytes, own_most
from strategies.engine.state import AggregatedReplies
from task.catalogue.entry import Algorithm
from task.catalogue.record import Record
from task.errors import UNFED, FieldError, StateError
from task.models.family import SubModels
from task.numerics.arrays import Arrays, NamedArrays
from task.numerics.reduce import UNITS, Sum
from task.wire import checks, traffic
from task.wire import messages as wire
from task.wire.encoding import PLAIN, Encoding
from task.wire.folding import Folding
from task.wire.layouts import as_integers
from task.wire.messages import NodeReply, RejectedReply
from task.wire.norms import NormBound


@dataclass
class Folded:
    """The folded replies of a round."""

    reduced: AggregatedReplies | None  # None if no reply was good
    quarantined: list[RejectedReply]
    metrics: dict[str, dict[str, float]]  # by client: its scalars, num-examples among them
    bytes_up: int
    up: dict[str, float] = field(default_factory=dict)  # by client, its share of those bytes
    down: dict[str, float] = field(default_factory=dict)  # by client, its share of the messages to its node
    # By client, the bytes of the arrays, or codes, that it gets and, with a good reply, of those that it
    # sends, as if it were its node's only one; then the most that one sends, on average.
    own_down: dict[str, int] = field(default_factory=dict)
    own_up: dict[str, int] = field(default_factory=dict)
    most_up: float = 0
    left: dict[str, Any] = field(default_factory=dict)  # what stages keep of the phase, by their names
    untested: list[str] = field(default_factory=list)  # clients that had no examples to measure on

    def set_apart(self, work: str) -> list[RejectedReply]:
        """Remove clients without test examples from the quarantined, if evaluation was the work.

        Returns:
            The replies that were not used for any other reason.
        """
        if work in ("evaluate", "adapt"):
            self.untested = [q.client for q in self.quarantined if q.field == checks.NO_TESTS]
            self.quarantined = [q for q in self.quarantined if q.field != checks.NO_TESTS]
        return self.quarantined


@dataclass
class Fold:
    """Folds the nodes' replies to one phase: it knows messages, `Folding` only uploads and their sums."""

    entry: Algorithm  # the algorithm's catalogue entry
    # Per upward field, arrays of the expected names, shapes and dtypes.
    like: Mapping[str, NamedArrays]
    asked: Mapping[str, Sequence[str]]  # by message id: the node's clients
    server_round: int  # round t
    # Called with the number of clients answered so far after each reply.
    on_reply: Callable[[int], None] = lambda answered: None
    where: Mapping[str, str] = field(default_factory=dict)  # by message id: the node, as logs call it
    # By client, upper limits of some of its scalars, below those of the catalogue.
    limits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    bound: NormBound = field(default_factory=lambda: NormBound(0.0, {}, frozenset()))  # on a client's update
    encoding: Encoding = PLAIN  # how the records travel
    models: SubModels | None = None  # the parts of the model that clients have, where they differ
    # Removes from a reply what is not for the fold, and refuses it if that is wrong.
    witness: Callable[[Message, Sequence[str]], None] = lambda reply, clients: None
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    quarantined: list[RejectedReply] = field(default_factory=list)
    bytes_up: int = 0
    up: dict[str, float] = field(default_factory=dict)  # as those of `Folded`
    own_up: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._folding = Folding(self.entry, self.like, self.bound, models=self.models, encoding=self.encoding)
        self._open = set(self.asked)  # messages without an answer

    @property
    def answered(self) -> int:
        """Clients whose replies were good."""
        return len(self.metrics)

    def run(self, replies: Iterable[Message], enough: int = 0) -> None:
        """Take replies until there are no more, or `enough` clients answered (0 = all)."""
        for reply in replies:
            self.take(reply)
            self.on_reply(self.answered)
            if enough and self.answered >= enough:
                break

    def take(self, reply: Message) -> None:
        """Check one node's reply and fold it in, or quarantine its clients."""
        message_id = reply.metadata.reply_to_message_id
        if message_id not in self._open:
            return  # a second answer to the same message, or one of an earlier round
        self._open.discard(message_id)
        clients = self.asked[message_id]
        if reply.has_error():
            reason = wire.one_line(reply.error.reason, f"error code {reply.error.code}")
            self._reject(clients, "", "a reply", reason)
            return
        try:
            add = self._checked(reply, clients)
        except FieldError as bad:
            self._reject(clients, bad.field, bad.expected, bad.got)
        except (StateError, *UNFED):  # ours
            raise
        except Exception as err:  # any error from outside bytes is the reply's fault
            reason = wire.one_line(str(err), type(err).__name__)
            self._reject(clients, getattr(err, "field", ""), "a well-formed reply", reason)
        else:
            add()

    def _checked(self, reply: Message, clients: Sequence[str]) -> Callable[[], None]:
        """Check a reply; return a function that folds it in and cannot fail because of the reply."""
        self.witness(reply, clients)
        size = wire.payload_bytes(reply.content)
        most = most_bytes(self.entry, self.like, len(clients), self.encoding)
        self.bytes_up += size
        contract = self.encoding.forwarding(self.entry, len(clients))
        self.up |= traffic.shares(reply.content, clients, traffic.senders(contract, clients))
        if size > most:
            raise FieldError("", f"at most {most} bytes, for what the catalogue says", f"{size}")
        answer = wire.read_reply(reply.content, clients, self.server_round)
        self._check_clients(answer, clients)
        rows = {c: {k: v[i] for k, v in answer.scalars.items()} for i, c in enumerate(answer.clients)}
        for client, row in rows.items():
            checks.check_scalars(self.entry, row, self.limits.get(client))
        fold: Callable[[], None] = lambda: None  # noqa: E731
        if answer.upload is not None:
            (client,) = answer.clients
            checks.check_records(self.entry, answer.upload.arrays)
            fold = self._folding.checked(client, self._decoded(client, answer.upload.arrays), rows[client])
        elif rows:
            fold = self._merged(answer, rows, contract)

        def add() -> None:
            fold()
            self.metrics |= rows
            self.own_up |= own_bytes(contract.up, self.like, answer, self.encoding)
            self.quarantined += answer.failed

        return add

    def _check_clients(self, answer: NodeReply, asked: Sequence[str]) -> None:
        named = [*answer.clients, *(q.client for q in answer.failed)]
        if sorted(named) != sorted(asked):
            odd = sorted({*named} - {*asked}) or sorted({*asked} - {*named}) or sorted(named)
            got = f"{len(named)}, which differ in {[wire.one_line(c) for c in odd[:5]]}"
            raise FieldError(wire.ANSWERED, f"each of the {len(asked)} clients that were asked once", got)

    def _decoded(self, client: str, arrays: Mapping[str, Arrays]) -> dict[str, Arrays]:
        """Return a client's records, decoded."""
        return {r.name: self.encoding.decode(client, r, arrays[r.name]) for r in self.entry.up}

    def _merged(
        self, answer: NodeReply, rows: Mapping[str, Mapping[str, float]], contract: Algorithm
    ) -> Callable[[], None]:
        checks.check_records(self.entry, answer.partials)
        weights = {client: self._folding.weight(row) for client, row in rows.items()}
        steps: list[Callable[[], None]] = []
        for r in contract.up:
            reduction = self._folding.reductions[r.name]
            records = answer.partials[r.name]
            if self.encoding.opaque:  # the node has checked its content
                known = reduction.check_merge(records, len(weights))
                steps.append(partial(reduction.merge, records, sum(weights.values()), len(weights), known))
                continue
            if r.carry == "each" and records.keys() != weights.keys():  # before any code is read
                raise FieldError(r.name, f"one record for each of {len(weights)} clients", f"{len(records)}")
            if r.carry == "each":
                records = {c: self._row(r, c, row) for c, row in records.items()}
            check_partial(r, records, self.like[r.name], weights, partial(self._folding.form, r))
            sent = {c: {k: a for k, a in records[c].items() if k} for c in rows} if r.carry == "each" else {}
            if r.carry == "each" and isinstance(reduction, Sum):
                steps.append(reduction.adding({c: (a, weights[c]) for c, a in sent.items()}))
            else:
                total, known = sum(weights.values()), reduction.check_merge(records, len(weights))
                steps.append(partial(reduction.merge, records, total, len(weights), known))
            if r.carry == "each":
                for client, row in rows.items():
                    self.bound.of(client).check(r, sent[client], [row])
            else:
                low = records.get("low", {})
                if UNITS in records:  # only where no more is to be checked, see `Folding.partials`
                    continue
                self.bound.check(r, records["high"], [*rows.values()], [*weights.values()], low)
                if r.weights:
                    checks.check_weights(r, records["high"], [*rows.values()])
                self.encoding.check_sum(r, records, sum(weights.values()))

        def fold() -> None:
            for step in steps:
                step()

        return fold

    def _row(self, record: Record, client: str, arrays: Arrays) -> Arrays:
        """Return one client's record of those that its node forwards, decoded; the weight is under ``""``."""
        decoded = self.encoding.decode(client, record, {n: a for n, a in arrays.items() if n})
        return decoded | {n: a for n, a in arrays.items() if not n}

    def _reject(self, clients: Sequence[str], field_name: str, expected: str, got: str) -> None:
        got = wire.one_line(got)
        self.quarantined += [RejectedReply(c, self.server_round, field_name, expected, got) for c in clients]

    def _most_up(self) -> float:
        if self.models is None:
            return own_most(self.entry.up, self.like, self.encoding)
        clients = [c for named in self.asked.values() for c in named]
        forms = ({r.name: self._folding.form(r, c) for r in self.entry.up} for c in clients)
        return sum(own_most(self.entry.up, form, self.encoding) for form in forms) / max(len(clients), 1)

    def sums(self) -> Arrays:
        """Return the exact sums so far, as ``record.part/name``, without records that are kept per client."""
        found: Arrays = {}
        partials = self._folding.partials()
        for r in self.entry.up:
            for part, arrays in partials[r.name].items() if r.reduce != "collect" else ():
                found |= {f"{r.name}.{part}/{n}": a for n, a in arrays.items()}
        return found

    def finish(self, *, late: str, lr: float, trainable: tuple[str, ...]) -> Folded:
        """Close the round.

        `late` is what was expected of clients that did not answer.
        """
        for message_id in sorted(self._open):
            node = self.where.get(message_id)
            self._reject(self.asked[message_id], "", late, f"none from {node}" if node else "none")
        self._open.clear()
        self.quarantined.sort(key=lambda q: (q.client, q.field))
        clients = tuple(sorted(self.metrics))
        most_up = self._most_up()
        if not clients:
            return Folded(None, self.quarantined, {}, self.bytes_up, self.up, most_up=most_up)
        names = sorted({k for row in self.metrics.values() for k in row} - {wire.NUM_EXAMPLES})
        scalars = {k: [self.metrics[c].get(k, math.nan) for c in clients] for k in names}
        counts = np.array([int(self.metrics[c][wire.NUM_EXAMPLES]) for c in clients], np.int64)
        weights = np.array([self._folding.weight(self.metrics[c]) for c in clients], np.int64)
        arrays = self._folding.results()
        ways = {s.name: s.reduce for s in self.entry.up_scalars}
        replies = AggregatedReplies(
            arrays, clients, counts, scalars, self.server_round, lr, trainable, weights=weights, reduce=ways
        )
        return Folded(
            replies,
            self.quarantined,
            self.metrics,
            self.bytes_up,
            self.up,
            own_up=self.own_up,
            most_up=most_up,
        )


def check_partial(
    record: Record,
    records: Mapping[str, Arrays],
    like: NamedArrays,
    weights: Mapping[str, int],
    form: Callable[[str], NamedArrays] | None = None,
) -> None:
    """Refuse a node's merged reduction whose records are not what `Folding.partials` writes.

    `weights` are those of the answer's clients, as their example counts say; `form` returns what a client's
    own arrays are like, where that is not `like`.

    Raises:
        FieldError: Naming record and array.
    """
    name, each = record.name, record.carry == "each"
    if each:
        want = {c: {**(form(c) if form else like), "": np.array(0, np.int64)} for c in weights}
    else:
        floats = {k: a for k, a in like.items() if a.dtype.kind == "f"}
        got = {k: np.int64 if a.dtype == np.int64 else np.int32 for k, a in records.get("high", {}).items()}
        high = {k: as_integers(a, got.get(k, np.int32) if k in floats else np.int64) for k, a in like.items()}
        want = {"high": high, "low": {k: as_integers(a, np.int32) for k, a in floats.items()}}
        if UNITS in records:  # it never left this machine
            want = {"high": {k: a for k, a in high.items() if k not in floats}}
            want[UNITS] = {k: as_integers(a, np.int64) for k, a in floats.items()}
        elif records.keys() - want.keys() or (floats and "low" not in records):
            raise FieldError(name, f"the records {sorted(want)}", f"{sorted(records)[:20]}")
    for part, arrays in want.items():
        checks.check_arrays(f"{name}.{part}", records.get(part, {}), arrays)
    if each:
        for client, weight in weights.items():
            if int(records[client][""]) != weight:
                sent = f"{int(records[client][''])}"
                raise FieldError(f"{name}.{client}", f"the weight {weight} of its example count", sent)
