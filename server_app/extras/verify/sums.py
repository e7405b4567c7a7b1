"""Restore a rule's inputs from a transcript's sums, and recompute the sums if uploads were stored."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import Message, RecordDict
from safetensors import SafetensorError
from safetensors.numpy import load_file

from server_app.extras.verify.chain import Row
from server_app.extras.verify.findings import Findings
from server_app.run.logs.transcript import UPLOADS
from strategies.engine.fold import Fold
from strategies.engine.rule import Phase
from strategies.engine.state import AggregatedReplies
from strategies.stages.transcript import PLAIN
from task.catalogue.entry import Algorithm
from task.config.knobs import Config
from task.errors import BouquetError
from task.numerics.arrays import Arrays, sha256
from task.secagg.protocol import PublicKeys, Rules, Session
from task.secagg.server import Aggregation
from task.wire import commitments, secure
from task.wire.commitments import Stored
from task.wire.encoding import Encoding
from task.wire.folding import reduced

SUMS = "published sums with the SHA-256 in the transcript"
ADDED = "published sums that equal the sum of the stored uploads"
FORMS = Callable[[Algorithm], Mapping[str, Arrays]]


@dataclass(frozen=True)
class Summed:
    """One phase of a transcript, and what its sums are of."""

    folder: Path
    run: str
    round: int
    phase: Phase
    line: Row
    config: Config
    like: FORMS
    encoding: Encoding

    @property
    def full(self) -> bool:
        """Whether uploads were kept."""
        return self.config.server.transcript == "full"

    def uploads(self, findings: Findings) -> dict[str, tuple[Row, RecordDict]]:
        """Return the uploads that were counted, by SHA-256, with their lines."""
        found = {}
        for upload in self.line["uploads"]:
            name = str(upload["upload"])
            path = self.folder / UPLOADS / f"{name}.safetensors"
            if not upload["counted"]:
                continue
            try:
                content = Stored.read(path).content()
            except (OSError, SafetensorError, ValueError, KeyError, TypeError) as err:
                findings.fault(self.round, f"{path.name}: expected an upload; got {err}", upload["node"])
                continue
            if (got := commitments.digest(content)) != name:
                text = f"expected the upload {name[:12]} that it committed to; got {got[:12]}"
                findings.fault(self.round, text, upload["node"])
            found[name] = upload, content
        return found


def read_replies(phase: Summed, findings: Findings) -> AggregatedReplies | None:
    """Return what the rule was given; None if there were no good replies."""
    said, sums = phase.line["replies"], _sums(phase, findings)
    if said is None:
        return None
    if phase.config.server.secagg and phase.full:
        _compare(phase, sums, _unmasked(phase, findings), findings)
    if "sealed" in phase.line:
        return _replies(said, _by_record(sums))
    if phase.config.server.secagg:
        return _of_vector(phase, said, sums, findings)
    if phase.full:
        return _folded(phase, said, sums, findings)
    partials: dict[str, dict[str, Arrays]] = {}
    for record, arrays in _by_record(sums).items():
        name, _, part = record.rpartition(".")
        partials.setdefault(name, {})[part] = arrays
    contract, weight = phase.phase.contract, sum(said["weights"])
    for r in contract.up:
        partials.setdefault(r.name, {"high": {}, "low": {}})
    return _replies(said, reduced(contract, phase.like(contract), partials, weight, len(said["clients"])))


def _sums(phase: Summed, findings: Findings) -> Arrays:
    if "file" not in phase.line:
        return {}
    path = phase.folder / str(phase.line["file"])
    try:
        found = load_file(path)
    except (OSError, SafetensorError, ValueError) as err:
        findings.fault(phase.round, f"{path.name}: expected the sums of phase {phase.phase.name}; got {err}")
        return {}
    if (got := sha256(found)) != phase.line["sums"]:
        text = f"{path.name}: expected the sums {phase.line['sums'][:12]}; got {got[:12]}"
        findings.fault(phase.round, text)
    findings.checked(SUMS)
    return found


def _by_record(sums: Arrays) -> dict[str, Arrays]:
    found: dict[str, Arrays] = {}
    for name, a in sums.items():
        record, _, array = name.partition("/")
        found.setdefault(record, {})[array] = a
    return found


def _replies(said: Row, arrays: dict[str, Arrays], **more: Any) -> AggregatedReplies:
    plain = {name: tuple(v) if isinstance(v := said[name], list) else v for name in PLAIN}
    scalars = {k: [np.nan if v is None else v for v in values] for k, values in said["scalars"].items()}
    weights = said.get("weights")
    plain["weights"] = None if weights is None else np.array(weights, np.int64)
    counts = np.array(said["num_examples"], np.int64)
    return AggregatedReplies(arrays, tuple(said["clients"]), counts, scalars, **{**plain, **more})


def _of_vector(phase: Summed, said: Row, sums: Arrays, findings: Findings) -> AggregatedReplies:
    """Return the unmasked sum of masked uploads."""
    contract = secure.as_summed(phase.phase.contract)
    like = phase.like(contract)
    found, totals = secure.partials_of(contract, like, secure.vector_in(sums))
    if (totals.clients, [totals.examples]) != (len(said["clients"]), said["num_examples"]):
        text = f"expected a sum over the {len(said['clients'])} named clients; got {totals.clients}"
        findings.fault(phase.round, text)
    arrays = reduced(contract, like, found, totals.weight, totals.clients)
    return _replies(said, arrays, sums=totals.scalars)


def _folded(phase: Summed, said: Row, sums: Arrays, findings: Findings) -> AggregatedReplies:
    """Return the sum of the stored uploads, and compare it with the published one."""
    contract, uploads = phase.phase.contract, phase.uploads(findings)
    asked = {name: tuple(upload["clients"]) for name, (upload, _) in uploads.items()}
    fold = Fold(contract, phase.like(contract), asked, phase.round, encoding=phase.encoding)
    for name, (_, content) in uploads.items():
        fold.take(cast(Message, _Reply(name, content)))
    for bad in fold.quarantined:
        if bad.client in said["clients"]:
            findings.fault(phase.round, f"an upload that was counted is invalid: {bad}")
    made = fold.finish(late="", lr=said["lr"], trainable=tuple(said["trainable"])).reduced
    _compare(phase, sums, fold.sums(), findings)
    given = _replies(said, made.arrays if made else {})
    if made is not None and not _alike(made, given):
        findings.fault(phase.round, "the clients' numbers differ from those in their uploads")
    return given if made is None else replace(given, arrays=made.arrays)


def _alike(made: AggregatedReplies, given: AggregatedReplies) -> bool:
    same = made.clients == given.clients and made.scalars.keys() == given.scalars.keys()
    return same and all(
        np.array_equal(np.asarray(a, np.float64), np.asarray(b, np.float64), equal_nan=True)
        for a, b in [
            (made.num_examples, given.num_examples), (made.counts, given.counts),
            *((made.scalars[k], given.scalars[k]) for k in made.scalars),
        ]
    )  # fmt: skip


class _Reply:
    """An upload as `Fold.take` reads messages."""

    def __init__(self, name: str, content: RecordDict) -> None:
        self.content = content
        self.metadata = self
        self.reply_to_message_id = name

    def has_error(self) -> bool:
        return False


def _unmasked(phase: Summed, findings: Findings) -> Arrays:
    """Return the sum of masked uploads without its masks, which the shares give."""
    line, server = phase.line, phase.config.server
    contract = secure.as_summed(phase.phase.contract)
    form = secure.form_of(contract, phase.like(contract))
    try:
        masks = line["masks"]
        session = Session(phase.run, phase.round, line["kind"], line["attempt"], masks["order"])
        made = Aggregation(session, Rules(server.secagg_min_nodes, server.secagg_threshold))
        roster = made.take_keys(
            {n: PublicKeys(*(bytes.fromhex(k) for k in keys)) for n, keys in masks["keys"].items()}
        )
        made.take_shares({u: dict.fromkeys(roster.keys.keys() - {u}, b"") for u in masks["senders"]})
        for upload, content in phase.uploads(findings).values():
            vector, _ = secure.read_masked(content, upload["clients"], phase.round, form)
            made.add(upload["node"], vector)
        return secure.vector_arrays(made.take_unmask(masks["shares"]))
    except (BouquetError, KeyError, ValueError, TypeError, AssertionError) as err:
        findings.fault(phase.round, f"the masked uploads cannot be added up: {err}")
        return {}


def _compare(phase: Summed, published: Arrays, added: Arrays, findings: Findings) -> None:
    if sha256(published) != sha256(added):
        text = f"phase {phase.phase.name}: expected the sum of the stored uploads; got a different one"
        findings.fault(phase.round, text)
    else:
        findings.checked(ADDED)
