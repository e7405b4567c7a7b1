"""Client half of codes: sends codes instead of parameters, run-config keys ``codec.*``.

With Delta_k = w_k - w^t, or the record itself if that is a change (`Record.base`), and a codec C:

stateless codecs     C(Delta_k) goes up
biased codecs        A_k += Delta_k;  C(A_k) goes up;  A_k -= C(A_k): error feedback, Sattler et al., IEEE
                     TNNLS 2020, arXiv 1903.02891, Algorithm 2

===============  ==================  ===========================================================  ========
symbol           variable            meaning                                                      where
===============  ==================  ===========================================================  ========
A_k              ``residual-*``      what the client's codes have left out so far, by record      kept
                 ``last-code``       entries and values of its last code, and the round           kept
===============  ==================  ===========================================================  ========

A reply that the server did not use, because it was late or its round was skipped, returns its mass: the order
names those rounds, and A_k += C(A_k) of the last code before anything else.

With a bound on updates (``max-update-norm``), C(s A_k) goes up in the place of a C(A_k) beyond it, with s < 1
such that it keeps the bound; A_k -= C(s A_k) as usual, so the rest is sent later. If it were refused, its
mass would be returned, and A_k would grow until each of its codes is refused. But a client whose C(Delta_k)
is beyond the bound sends that and is refused, as without a codec, and A_k stays what it was: no such update
goes up later.

What a client falsifies under ``attack.*`` is coded without a residual. Random draws come from the training
seed, the round and the client's name.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from client_app.data.node import Node
from client_app.solvers.sgd import Finished
from client_app.stages.merge import FoldPlan
from client_app.stages.node_stage import NodeStage
from client_app.stages.stage import Outcome, Stage, changed
from client_app.training.loop import LocalTask
from task.catalogue.entry import Algorithm
from task.catalogue.record import Record
from task.catalogue.stages import LAST_CODE, residual_of
from task.codecs.codec import Left
from task.errors import FieldError
from task.numerics.arrays import Arrays, only
from task.numerics.held import Base, Held
from task.wire import messages as wire
from task.wire.coding import Coder, coder_of

MARGIN = 0.99  # tolerance for rounding of a code that is scaled down to the bound


class Coding(Stage):
    """Codes the clients' uploads; the decoded codes are folded."""

    names = ("codec", "codec-with-feedback")

    def __init__(self, node: Node, entry: Algorithm, order: wire.TrainOrder) -> None:
        super().__init__(node, entry, order)
        self.coded = [r for r in entry.up if r.coded]
        self.feedback = LAST_CODE in entry.keeps
        self._decoded: dict[str, dict[str, Arrays]] = {}  # by client and record, what its code decodes to

    @cached_property
    def coder(self) -> Coder:
        """What codes the records of the message's contract."""
        node, order = self.node, self.order
        like = node.forms().of(self.coded)
        own = order.received if self.entry.parted else None
        trainable = node.parts().trainable
        coder = coder_of(node.config, self.entry, like, order.arrays, trainable, order.round, own)
        assert coder is not None  # else the stage would not be in the contract
        return coder

    def start(
        self, task: LocalTask, cohort: Sequence[str], kept: Sequence[Mapping[str, Arrays]], server_round: int
    ) -> None:
        """Hold what each client kept."""
        self._kept = dict(zip(cohort, kept, strict=True))

    def finish(self, cohort: Sequence[str], finished: Finished) -> Finished:
        """Code what goes up of codecs with error feedback, and keep what the codes leave out."""
        if not self.feedback:
            return finished
        return [self._fed_back(c, *made) for c, made in zip(cohort, finished, strict=True)]

    def _fed_back(
        self, client: str, upload: wire.ClientUpdate, keep: dict[str, Arrays]
    ) -> tuple[wire.ClientUpdate, dict[str, Arrays]]:
        codes: dict[str, bytes] = {}
        decoded: dict[str, Arrays] = {}
        kept: dict[str, Arrays] = {LAST_CODE.name: {"round": np.array(self.order.round, np.int64)}}
        for r in self.coded:
            try:
                codes[r.name], left, known = self._within_bound(client, r, upload)
            except FieldError:  # `Memory.keep` refuses the upload, and what it keeps stays as it was
                return upload, keep
            decoded[r.name] = self.coder.known(client, r, replace(upload, codes=codes), known)
            entries, values = _taken_off(left)
            kept[residual_of(r).name] = {n: _settled(a) for n, a in left.items()}
            kept[LAST_CODE.name] |= {f"{r.name}/entries": entries, f"{r.name}/values": values}
        self._decoded[client] = decoded
        return replace(upload, codes=codes), keep | kept

    def _within_bound(
        self, client: str, record: Record, upload: wire.ClientUpdate
    ) -> tuple[bytes, Mapping[str, Held], Mapping[str, Left]]:
        """Return a code, what the client will owe, and what the code itself leaves out.

        The code is within the bound, unless the update itself is refused.

        Raises:
            FieldError: A number is not finite.
        """
        arrays, owed = upload.arrays[record.name], self._residual(client, record)
        code, x, left = self.coder.encode(client, record, arrays, owed)
        excess = self._excess(client, record, upload, code)
        if excess <= 1:
            return code, left, left
        alone, own, without = self.coder.encode(client, record, arrays, {})
        if not owed or self._excess(client, record, upload, alone) > 1:
            owed = owed or {n: np.zeros_like(a) for n, a in own.items()}
            nothing = np.empty(0, np.int64), np.empty(0, np.float32)
            return alone, {n: Held(Base(a), *nothing) for n, a in owed.items()}, without
        scale = 1.0
        while excess > 1:
            scale *= MARGIN / excess
            less = {n: owed[n] + np.float32(scale - 1) * a for n, a in x.items()}
            code, _, rest = self.coder.encode(client, record, arrays, less)
            excess = self._excess(client, record, upload, code)
        held = {}
        for n, a in rest.items():
            start = Base(x[n])
            held[n] = Held(start, a.index, start.flat.take(a.index) - (a.start.flat.take(a.index) - a.values))
        return code, held, rest

    def _excess(self, client: str, record: Record, upload: wire.ClientUpdate, code: bytes) -> float:
        """Return the norm of a code's update together with the uncoded parameters, in units of the bound."""
        if not self.bound.most:
            return 0.0
        sent = self.coder.on_wire(record, replace(upload, codes={record.name: code}))
        try:
            decoded = self.coder.decode(client, record, sent)
        except FieldError:
            return math.inf
        of = {n: a for n, a in decoded.items() if n in self.bound.trainable}
        return self.bound.excess(record, of, upload.scalars)

    def _residual(self, client: str, record: Record) -> Arrays:
        """Return A_k of a record, with the mass of a last code that the server did not use."""
        kept = self._kept[client]
        residual, last = kept.get(residual_of(record).name), kept.get(LAST_CODE.name)
        if not residual or not last:
            return {}
        residual = only(residual, self.coder.bases[record.name])  # a file has an order of its own
        if int(last["round"]) not in self.order.lost.get(client, ()):
            return residual
        flat = _flat(residual)
        flat[last[f"{record.name}/entries"]] += last[f"{record.name}/values"]
        ends = np.cumsum([a.size for a in residual.values()])
        parts = np.split(flat, ends[:-1])
        return {n: part.reshape(a.shape) for (n, a), part in zip(residual.items(), parts, strict=True)}

    def send(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """Pass on the uploads as the server will read them, coded where they are not yet."""
        return changed(outcomes, self._read_back)

    def _read_back(self, client: str, upload: wire.ClientUpdate) -> wire.ClientUpdate:
        if upload.codes:
            decoded = self._decoded.pop(client)
            return self.remeasured(client, replace(upload, arrays={**upload.arrays, **decoded}))
        coder = self.coder
        codes = {r.name: coder.encode(client, r, upload.arrays[r.name], {})[0] for r in self.coded}
        upload = replace(upload, codes=codes)
        decoded = {r.name: coder.decode(client, r, coder.on_wire(r, upload)) for r in self.coded}
        return self.remeasured(client, replace(upload, arrays={**upload.arrays, **decoded}))


def _taken_off(left: Mapping[str, Held]) -> tuple[np.ndarray, np.ndarray]:
    """Return where a code takes something off, counted through all arrays in order, and what it takes."""
    entries, values, at = [np.empty(0, np.int64)], [np.empty(0, np.float32)], 0
    for a in left.values():
        values.append(a.start.flat.take(a.index) - a.values)
        entries.append(a.index + at)
        at += a.size
    index, taken = np.concatenate(entries), np.concatenate(values)
    return index[taken != 0], taken[taken != 0]


def _settled(left: Held) -> np.ndarray:
    """Return an array as it is after its code, in the place of what it was."""
    left.base.reshape(-1)[left.index] = left.values
    return left.base


def _flat(arrays: Arrays) -> np.ndarray:
    """Return all numbers of some arrays as one vector, a copy."""
    return np.concatenate([a.reshape(-1) for a in arrays.values()])


class CodingNode(NodeStage):
    """Reads and writes the records that travel as codes."""

    name = "coding"

    def plan(self, node: Node, plan: FoldPlan, order: wire.TrainOrder) -> None:
        """Forward the codes if each client is answered for separately."""
        contract, trainable = self.asked.contract, node.parts().trainable
        own = order.received if contract.parted else None
        coder = coder_of(node.config, contract, plan.like, order.arrays, trainable, order.round, own)
        if coder:
            plan.encoding = coder
        if coder and plan.named:
            plan.contract = coder.forwarding(plan.contract, len(order.clients))
