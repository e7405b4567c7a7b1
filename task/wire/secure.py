"""The messages of a secure round (`task.secagg`) as records.

Each has a record ``secagg`` with the session and what the stage needs. The stages ``keys``, ``shares`` and
``unmask`` are queries of their own; the masked numbers are the answer to the phase's usual message, which has
the record besides its own, and go up as

=================  ==========================================================================================
record             what it holds
=================  ==========================================================================================
``masked``         the words of all arrays one after the other, in the order of the contract and of names
``secagg``         ``numbers``, the masked scalars; names of clients that failed, with nothing but whether
                   they diverged
=================  ==========================================================================================

A node whose clients all failed sends neither words nor ``numbers``: a sum to which it adds nothing would be
over one node less than it claims.

Where the contract's records are integers (`Record.integers`) the words have ``secagg-bits`` each, else 96.

The numbers are 1, the clients, the sum of their weights and of their examples, and six sums of each scalar.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from task.catalogue.entry import COMMON, NUM_EXAMPLES, Algorithm
from task.errors import FieldError, SecureAggregationError
from task.numerics.arrays import Arrays, NamedArrays
from task.numerics.scalar_sums import ScalarSums
from task.numerics.terms import FINITE
from task.secagg.fixed_point import EXACT, MOST
from task.secagg.protocol import PublicKeys, Roster, Session
from task.secagg.shamir import SHARE_BYTES
from task.secagg.sums import Sums
from task.secagg.vector import (
    CARRY,
    Vector,
    as_fraction,
    as_limbs,
    as_number,
    as_residues,
    as_sums,
    as_words,
    joined,
    numbers_from,
    total,
    words_like,
)
from task.wire import messages as wire

SECAGG, MASKED, NUMBERS = "secagg", "masked", "numbers"
KEYS, SHARES, UNMASK = "secagg_keys", "secagg_shares", "secagg_unmask"  # actions of queries
FAILED, DIVERGED = "failed", "diverged"
PARTS = 6  # sums of a scalar, see `ScalarSums`
HEAD = 4  # numbers before those of the scalars
MOST_LIMB = 2**62  # |high| of the sum over all nodes


# ------------------------------------------------------------------------------------------ both


def as_summed(entry: Algorithm) -> Algorithm:
    """Return a contract whose records a node sends summed: as arrays, one partial of its clients."""
    return replace(entry, up=tuple(replace(r, carry="partial", coded=False) for r in entry.up))


def bits_of(entry: Algorithm, secagg_bits: int) -> int:
    """Return the bits of a sum under a contract."""
    return secagg_bits if entry.up and all(r.integers for r in entry.up) else EXACT


def scalar_names(entry: Algorithm) -> list[str]:
    """Return the scalars that ride in the masked vector, in its order."""
    return sorted({s.name for s in (*COMMON, *entry.up_scalars)} - {NUM_EXAMPLES.name})


def order_record(session: Session, **more: object) -> ConfigRecord:
    """Return the record ``secagg`` of an order."""
    named = {"run": session.run, "round": session.round, "phase": session.phase}
    named |= {"attempt": session.attempt, "order": session.order}
    return ConfigRecord({**named, **more})  # type: ignore[dict-item]


def roster_fields(roster: Roster) -> dict[str, object]:
    """Return a roster as fields of a record."""
    keys = [roster.keys[name] for name in roster.names]
    return {
        "names": list(roster.names),
        "sealing": [k.sealing for k in keys],
        "masking": [k.masking for k in keys],
        "proofs": [k.proof for k in keys],
    }


def record_in(content: RecordDict) -> ConfigRecord | None:
    """Return the record ``secagg`` of a message; None if it has none."""
    return wire.records_of(content, ConfigRecord).get(SECAGG)


def session_in(record: ConfigRecord) -> Session:
    """Return the session that an order names; raises what `text` does."""
    number = record.get("round")
    if type(number) is not int or number < 0:
        raise SecureAggregationError(f"field 'round': expected a round; got {str(number)[:40]}")
    run, phase, attempt, order = (text(record, key) for key in ("run", "phase", "attempt", "order"))
    return Session(run, number, phase, attempt, order)


def roster_in(record: ConfigRecord) -> Roster:
    """Return the roster that an order lists; raises what `texts` does."""
    names = texts(record, "names")
    columns = [blobs(record, k, len(names)) for k in ("sealing", "masking", "proofs")]
    if len(set(names)) != len(names):
        raise SecureAggregationError("field 'names': expected each node once")
    return Roster({n: PublicKeys(*keys) for n, *keys in zip(names, *columns, strict=True)})


def text(record: ConfigRecord, key: str) -> str:
    """Return a text of a record.

    Raises:
        SecureAggregationError: It is none.
    """
    value = record.get(key)
    if not isinstance(value, str) or len(value) > wire.LONGEST_LINE:
        raise SecureAggregationError(f"field {key!r}: expected a text; got {str(value)[:40]!r}")
    return value


def texts(record: ConfigRecord, key: str) -> list[str]:
    """Return a list of texts; raises what `text` does."""
    values = record.get(key)
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise SecureAggregationError(f"field {key!r}: expected a list of texts; got {str(values)[:40]!r}")
    return cast("list[str]", values)


def blobs(record: ConfigRecord, key: str, count: int) -> list[bytes]:
    """Return a list of bytes; raises what `text` does."""
    values = record.get(key)
    if not isinstance(values, list) or len(values) != count or not all(isinstance(v, bytes) for v in values):
        raise SecureAggregationError(f"field {key!r}: expected {count} pieces of bytes")
    return cast("list[bytes]", values)


def by_name(record: ConfigRecord, names: str, values: str) -> dict[str, bytes]:
    """Return two lists of a record as a mapping; raises what `text` does."""
    keys = texts(record, names)
    return dict(zip(keys, blobs(record, values, len(keys)), strict=True))


# -------------------------------------------------------------------------------------------- up


def vector_of(
    entry: Algorithm,
    partials: Mapping[str, Mapping[str, NamedArrays]],
    rows: Sequence[Mapping[str, float]],
    weights: Sequence[int],
    nodes: int,
    bits: int = EXACT,
) -> Vector:
    """Return the vector that a node masks: its clients' reductions and the sums of their scalars.

    `partials` are as `Folding.partials`, by upward record; `rows` the clients' scalars, `weights` their
    weights; `nodes` is the number of summed nodes, modulo 2^bits.

    Raises:
        FieldError: A sum would not fit with those of the other nodes.
    """
    parts = []
    for r in entry.up:
        highs, lows = partials[r.name]["high"], partials[r.name].get("low", {})
        for name in sorted(highs):
            if bits < EXACT:
                parts.append(_residues(name, highs[name], bits))
                continue
            high = highs[name].astype(np.int64)
            low = lows[name].astype(np.int64) if name in lows else high & ((1 << CARRY) - 1)
            high = high if name in lows else high >> CARRY
            if high.size and max(int(high.max()), -int(high.min())) >= MOST_LIMB // nodes:
                raise FieldError(name, f"{FINITE}s whose sum over {nodes} nodes fits", "larger ones")
            parts.append(as_words(high, low))
    numbers = [Fraction(1), Fraction(len(rows)), Fraction(sum(weights))]
    examples = [int(row[NUM_EXAMPLES.name]) for row in rows]
    numbers.append(Fraction(sum(examples)))
    for name in scalar_names(entry):
        sent = [
            (float(row[name]), w, n) for row, w, n in zip(rows, weights, examples, strict=True) if name in row
        ]
        numbers += [
            total(v * w for v, w, _ in sent),
            Fraction(sum(w for _, w, _ in sent)),
            total(v * n for v, _, n in sent),
            Fraction(sum(n for _, _, n in sent)),
            Fraction(len(sent)),
            total(v for v, _, _ in sent),
        ]
    return Vector(*joined(bits, parts), [as_number(n) for n in numbers])


def _residues(name: str, sums: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    if sums.size and (most := max(int(sums.max()), -int(sums.min()))) > MOST[bits]:
        raise FieldError(name, f"{FINITE}s whose sum fits {bits} bits", f"{most} units")
    return as_residues(sums, bits)


def read_keys(content: RecordDict, node: str) -> PublicKeys:
    """Read a node's answer to the stage ``keys``.

    Raises:
        FieldError: It is not in this form.
        SecureAggregationError: The keys are none.
    """
    record = _alone(content)
    parts = [record.get(k) for k in ("sealing", "masking", "proof")]
    if not all(isinstance(p, bytes) for p in parts):
        raise FieldError(SECAGG, "two public keys and their proof", "something else")
    keys = PublicKeys(*parts)  # type: ignore[arg-type]
    keys.check(node)
    return keys


def read_shares(content: RecordDict) -> dict[str, bytes]:
    """Read an answer to the stage ``shares``: by node that they are for, encrypted ones.

    Raises:
        FieldError: It is not in this form.
    """
    return by_name(_alone(content), "to", "sealed")


def read_unmask(content: RecordDict) -> dict[str, int]:
    """Read an answer to the stage ``unmask``: by node whose they are, shares of secrets.

    Raises:
        FieldError: It is not in this form.
    """
    shares = by_name(_alone(content), "of", "shares")
    if any(len(raw) != SHARE_BYTES for raw in shares.values()):
        raise FieldError("shares", f"shares of {SHARE_BYTES} bytes", "others")
    return {whose: int.from_bytes(raw, "big") for whose, raw in shares.items()}


def _alone(content: RecordDict) -> ConfigRecord:
    """Return the only record of an answer to a query."""
    record = record_in(content)
    if record is None or len(content) != 1:
        raise FieldError(SECAGG, "one record of the stage", f"{sorted(content)[:9]}")
    return record


def failed_content(failed: Iterable[wire.RejectedReply]) -> RecordDict:
    """Return the answer of a node whose clients all failed: of each that it did, and whether it diverged."""
    bad = list(failed)
    names = {
        FAILED: [q.client for q in bad if not q.diverged],
        DIVERGED: [q.client for q in bad if q.diverged],
    }
    return RecordDict({SECAGG: ConfigRecord(names)})  # type: ignore[arg-type]


def masked_content(vector: Vector, failed: Iterable[wire.RejectedReply]) -> RecordDict:
    """Return the answer with masked numbers; of clients that failed it says that, and no more."""
    content = failed_content(failed)
    words = {"low": vector.low, "high": vector.high} if vector.form[0] == EXACT else {"low": vector.low}
    content[MASKED] = wire.pack_arrays(words)
    cast("ConfigRecord", content[SECAGG])[NUMBERS] = vector.number_bytes()
    return content


def read_masked(
    content: RecordDict, clients: Collection[str], server_round: int, form: tuple[int, int, int]
) -> tuple[Vector, list[wire.RejectedReply]]:
    """Read an answer with masked numbers, of the form of the contract (`form_of`), and who failed.

    Raises:
        FieldError: It is not in this form.
    """
    bits, size, numbers = form
    record = record_in(content)
    arrays = wire.records_of(content, ArrayRecord).get(MASKED)
    if record is None or arrays is None or wire.records_of(content, MetricRecord):
        raise FieldError(SECAGG, "masked numbers, and nothing else", f"the records {sorted(content)[:9]}")
    found = wire.read_arrays(arrays)
    words = words_like(bits, size)
    want = {k: (a.dtype, a.shape) for k, a in words.items() if k == "low" or bits == EXACT}
    if {k: (a.dtype, a.shape) for k, a in found.items()} != want:
        got = {k: f"{a.dtype}{list(a.shape)}" for k, a in list(found.items())[:4]}
        raise FieldError(MASKED, f"words of {size} sums of {bits} bits", f"{got}")
    raw = record.get(NUMBERS)
    scalars = numbers_from(raw) if isinstance(raw, bytes) else []
    if len(scalars) != numbers:
        raise FieldError(NUMBERS, f"{numbers} masked scalars", f"{len(scalars)}")
    vector = Vector(found["low"], found.get("high", words["high"]), scalars)
    return vector, read_failed(content, clients, server_round)


def adds_nothing(content: RecordDict) -> bool:
    """Return whether an answer is that of a node whose clients all failed."""
    record = record_in(content)
    return record is not None and FAILED in record and NUMBERS not in record and MASKED not in content


def read_failed(content: RecordDict, clients: Collection[str], server_round: int) -> list[wire.RejectedReply]:
    """Return the clients that failed at a node, by its answer.

    Raises:
        FieldError: They are not among those that were asked.
    """
    record, failed = record_in(content) or ConfigRecord(), []
    for key, expected in ((FAILED, "a trained client"), (DIVERGED, f"{FINITE}s that fit an exact sum")):
        for client in texts(record, key):
            failed.append(
                wire.RejectedReply(
                    client, server_round, "", expected, "a failure, which its node does not describe"
                )
            )
    names = [q.client for q in failed]
    if len(set(names)) != len(names) or set(names) - set(clients):
        raise FieldError(FAILED, "clients that were asked, each once", f"{len(names)} names")
    return failed


def form_of(
    entry: Algorithm, like: Mapping[str, NamedArrays], secagg_bits: int = EXACT
) -> tuple[int, int, int]:
    """Return the bits of a masked vector's sums, and how many sums and scalars it has."""
    size = sum(a.size for r in entry.up for a in like[r.name].values())
    return bits_of(entry, secagg_bits), size, HEAD + PARTS * len(scalar_names(entry))


def vector_arrays(vector: Vector) -> Arrays:
    """Return a vector as arrays."""
    numbers = np.frombuffer(vector.number_bytes(), np.uint8).copy()
    return {"low": vector.low.copy(), "high": vector.high.copy(), NUMBERS: numbers}


def vector_in(arrays: NamedArrays) -> Vector:
    """Return the vector of `vector_arrays`."""
    return Vector(arrays["low"], arrays["high"], numbers_from(arrays[NUMBERS].tobytes()))


def partials_of(
    entry: Algorithm, like: Mapping[str, NamedArrays], vector: Vector
) -> tuple[dict[str, dict[str, Arrays]], Sums]:
    """Return the content of an unmasked sum: the reductions' partials by record, and the scalars' sums.

    Raises:
        SecureAggregationError: A mask is left.
    """
    narrow = vector.form[0] < EXACT
    high, low = (as_sums(vector.low), vector.low) if narrow else as_limbs(vector.low, vector.high)
    found: dict[str, dict[str, Arrays]] = {}
    at = 0
    for r in entry.up:
        record: dict[str, Arrays] = {"high": {}, "low": {}}
        for name in sorted(like[r.name]):
            a = like[r.name][name]
            mine = slice(at, at + a.size)
            at += a.size
            if narrow:
                record["high"][name] = high[mine].reshape(a.shape)
            elif a.dtype.kind == "f":
                record["high"][name], record["low"][name] = (
                    high[mine].reshape(a.shape),
                    low[mine].reshape(a.shape),
                )
            else:
                record["high"][name] = ((high[mine] << CARRY) | low[mine]).reshape(a.shape)
        found[r.name] = record
    values = [as_fraction(n) for n in vector.numbers]
    nodes, clients, weight, examples = (_whole(v) for v in values[:HEAD])
    scalars = {}
    for i, name in enumerate(scalar_names(entry)):
        weighted, w, by_n, n, count, plain = values[HEAD + PARTS * i : HEAD + PARTS * (i + 1)]
        scalars[name] = ScalarSums(weighted, _whole(w), by_n, _whole(n), _whole(count), plain)
    return found, Sums(nodes, clients, weight, examples, scalars)


def _whole(value: Fraction) -> int:
    if value.denominator != 1:
        raise SecureAggregationError("expected whole numbers of nodes, clients and examples: a mask is left")
    return value.numerator
