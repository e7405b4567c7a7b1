"""A node's signed commitments to its uploads, by which anyone can check later what it sent.

A node of a run with a transcript adds a record ``commitment`` to each answer that counts for the model: a
signature (Ed25519) of the statement

    run, the run's keys, round, phase, attempt, the clients it was asked for and the epochs of each, all
    numbers that came with the order (the learning rate among them), SHA-256 of the model that it received,
    SHA-256 of the answer

The SHA-256 of an answer is that of its records without the commitment, by sorted names: of arrays name,
dtype, shape and bytes; of numbers and texts their JSON. It is that of the numbers and not of how they travel,
so it does not depend on packing.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from safetensors import safe_open

from task.catalogue.selections import CANDIDATES
from task.errors import FieldError
from task.numerics.arrays import Arrays, NamedArrays
from task.secagg.identity import Endorsement
from task.secagg.primitives import encode
from task.storage.files import write_safetensors
from task.wire import messages as wire

COMMITMENT, ATTEMPT = "commitment", "attempt"  # records' names; ``attempt`` is an entry of a message's config
PROTOCOL = "bouquet transcript 2"
WANTED = "a commitment to this upload, signed by its node, as transcript asks for"
KINDS: Mapping[str, type[ArrayRecord | ConfigRecord | MetricRecord]] = {
    "arrays": ArrayRecord,
    "config": ConfigRecord,
    "metrics": MetricRecord,
}


def covers(transcript: str, phase: str) -> bool:
    """Return whether nodes commit to their answers in a phase, given the run-config key.

    Models that are measured, and losses that a policy asks for, change no model but by who trains.
    """
    return transcript != "none" and phase not in ("evaluate", "adapt", CANDIDATES)


@dataclass(frozen=True)
class Statement:
    """What a node signs."""

    run: str  # identity of the run
    terms: str  # SHA-256 of its keys, `task.config.run_name.terms`
    round: int
    phase: str  # message type
    attempt: str  # never used before: a repeated round has another one
    clients: tuple[str, ...]  # that the node was asked for
    epochs: tuple[int, ...]  # parallel to them; 0 = as configured
    sent: Mapping[str, float]  # numbers of the order, by name
    model: str  # SHA-256 of the model that it received; "" = it received none
    upload: str  # SHA-256 of what it sends

    def encoded(self) -> bytes:
        """Return it as bytes that no other statement gives."""
        about: tuple[str | int, ...] = (
            PROTOCOL,
            self.run,
            self.terms,
            self.round,
            self.phase,
            self.attempt,
            len(self.clients),
            *self.clients,
        )
        numbers = json.dumps({name: float(value) for name, value in self.sent.items()}, sort_keys=True)
        epochs = ",".join(str(epochs) for epochs in self.epochs)
        return encode(*about, epochs, numbers, self.model, self.upload)


@dataclass(frozen=True)
class Commitment:
    """A statement's signature, and whose key it is by."""

    terms: str
    model: str
    key: bytes  # public Ed25519 key
    signature: bytes
    endorsement: Endorsement | None = None  # the proof that the key belongs to a node of the federation

    def check(self, statement: Statement) -> None:
        """Refuse a signature that is not of a statement.

        Raises:
            FieldError: It is not valid.
        """
        try:
            Ed25519PublicKey.from_public_bytes(self.key).verify(self.signature, statement.encoded())
        except (InvalidSignature, ValueError):
            raise FieldError(COMMITMENT, WANTED, "a signature that is not valid") from None

    def fields(self) -> dict[str, str]:
        """Return it as texts."""
        own = {"terms": self.terms, "model": self.model}
        own |= {"key": self.key.hex(), "signature": self.signature.hex()}
        return own | (self.endorsement.fields() if self.endorsement else {})


def commitment_in(fields: Mapping[str, object]) -> Commitment:
    """Return the commitment of `Commitment.fields`.

    Raises:
        FieldError: A field is missing or unusable.
    """
    names = ("terms", "model", "key", "signature")
    texts = {k: v for k, v in fields.items() if isinstance(v, str)}
    try:
        terms, model, key, signature = (texts[name] for name in names)
        return Commitment(terms, model, bytes.fromhex(key), bytes.fromhex(signature), Endorsement.read(texts))
    except (KeyError, ValueError) as err:
        raise FieldError(COMMITMENT, WANTED, f"one without {wire.one_line(str(err))}") from None


def sign(key: Ed25519PrivateKey, statement: Statement, endorsement: Endorsement | None) -> Commitment:
    """Return a commitment to a statement."""
    public = key.public_key().public_bytes_raw()
    return Commitment(statement.terms, statement.model, public, key.sign(statement.encoded()), endorsement)


def attach(content: RecordDict, commitment: Commitment) -> None:
    """Add a commitment to an answer."""
    content[COMMITMENT] = ConfigRecord(dict(commitment.fields()))


def detach(content: RecordDict) -> Commitment:
    """Take the commitment out of an answer and return it.

    Raises:
        FieldError: It has none, or one that is none.
    """
    record = content.pop(COMMITMENT, None)
    if not isinstance(record, ConfigRecord):
        raise FieldError(COMMITMENT, WANTED, "none")
    return commitment_in(record)


def digest(content: RecordDict) -> str:
    """Return the SHA-256 of an answer."""
    made = hashlib.sha256()
    for name in sorted(content):
        kind = _kind(content[name])
        made.update(encode(name, kind))
        if kind == "arrays":
            arrays = _arrays(content[name])
            made.update(encode(len(arrays)))
            for key in sorted(arrays):
                a = np.asarray(arrays[key], order="C")
                made.update(encode(key, a.dtype.str, str(a.shape), a.nbytes))
                made.update(a.data if a.ndim else a.tobytes())
        else:
            made.update(encode(_json(content[name])))
    return made.hexdigest()


@dataclass(frozen=True)
class Stored:
    """An answer as a file holds it: arrays by number, and what they and the other records are."""

    arrays: Arrays = field(default_factory=dict)
    records: Sequence[Any] = ()

    @classmethod
    def of(cls, content: RecordDict) -> "Stored":
        """Return what to store of an answer."""
        arrays: Arrays = {}
        records = []
        for name in sorted(content):
            kind, record = _kind(content[name]), content[name]
            if kind != "arrays":
                records.append([name, kind, json.loads(_json(record))])
                continue
            mine = sorted(_arrays(record).items())
            records.append([name, kind, [[key, str(len(arrays) + i)] for i, (key, _) in enumerate(mine)]])
            arrays |= {str(len(arrays) + i): a for i, (_, a) in enumerate(mine)}
        return cls(arrays, records)

    def content(self) -> RecordDict:
        """Return the answer."""
        made = RecordDict()
        for name, kind, rest in self.records:
            if kind == "arrays":
                made[name] = wire.pack_arrays({key: self.arrays[number] for key, number in rest})
            else:
                made[name] = KINDS[kind]({key: _value(value) for key, value in rest})
        return made

    def write(self, path: Path) -> None:
        """Replace a file, atomically."""
        write_safetensors(path, self.arrays, {"records": json.dumps(self.records)})

    @classmethod
    def read(cls, path: Path) -> "Stored":
        """Return what a file holds; raises what safetensors and JSON do of one that is damaged."""
        with safe_open(path, framework="np") as file:
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
            return cls(arrays, json.loads((file.metadata() or {})["records"]))


def _kind(record: object) -> str:
    return next(kind for kind, made in KINDS.items() if isinstance(record, made))


def _arrays(record: object) -> NamedArrays:
    assert isinstance(record, ArrayRecord)
    return wire.views(record)


def _json(record: object) -> str:
    assert isinstance(record, ConfigRecord | MetricRecord)
    return json.dumps(sorted(record.items()), default=_hex)


def _hex(value: bytes) -> dict[str, str]:
    return {"hex": value.hex()}


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return [_value(v) for v in value]
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value
