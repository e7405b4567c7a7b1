"""Coded records on the wire: which are coded, their encoding and decoding.

A coded record has one array of bytes under the name `CODE` in the place of its parameters; buffers, and
tensors other than float32, are sent with it unchanged. The update, and not the model, is what is coded: less
the received model where a record is relative to that (`Record.base`). `task.codecs` has the codes.

A coded record is decoded before it is folded, also on the client's own node. So the model is the same
wherever its clients train, and whether their codes travel or their node's sum does.

The random draws of a code are those of training seed, round, client and record: a code that names another
seed is refused, so that a client cannot choose which entries it moves. Of a sum the server cannot know it:
the node has decoded the codes in it, and falsifying a sum needs no seed. The bounds on a sum are what holds.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from task.catalogue.entry import Algorithm
from task.catalogue.record import SUB_MODEL, Record
from task.codecs import codec_by, codec_of
from task.codecs.codec import Codec, Left
from task.codecs.sign import Sign
from task.config.knobs import Config
from task.errors import FieldError
from task.numerics import seeds
from task.numerics.arrays import Arrays, NamedArrays
from task.numerics.held import Base
from task.numerics.terms import HIGH_UNIT, LOW_UNIT
from task.wire.checks import check_arrays
from task.wire.encoding import Encoding
from task.wire.layouts import base_of
from task.wire.messages import ClientUpdate

CODE = ":code"  # name of the code in its record
SUM_BYTES = 8  # of a number in the sum that a node sends
MOST_DECODED = 1 << 28  # limit in bytes of a message's decoded records; above it the node merges them


@dataclass(frozen=True)
class Coder(Encoding):
    """The coded records of a contract, for the replies to one phase.

    `like` has, by upward record, arrays of the expected names, shapes and dtypes; `seed` is that
    of the training.
    """

    codec: Codec
    seed: int
    round: int
    like: Mapping[str, NamedArrays]
    bases: Mapping[str, Mapping[str, Base]]  # by coded record, what its update is relative to
    # Returns a client's downward records where the model differs by client; the bases are zeros then.
    received: Callable[[str], Mapping[str, NamedArrays]] | None = None

    def _base(self, client: str, record: Record) -> Mapping[str, Base]:
        """Return what a client's update is relative to."""
        base = self.bases[record.name]
        if self.received is None:
            return base
        return _bases([record], self.like, self.received(client), tuple(base))[record.name]

    def _seed(self, client: str, record: Record) -> int:
        return seeds.seed_for(self.seed, f"{seeds.CODEC}:{record.name}", self.round, client)

    def encode(
        self, client: str, record: Record, arrays: NamedArrays, residual: NamedArrays
    ) -> tuple[bytes, Arrays, dict[str, Left]]:
        """Return the code of a client's record, the update with the residual, and what the code leaves out.

        Raises:
            FieldError: A number is not finite.
        """
        base = self._base(client, record)
        mine = {n: arrays[n] for n in base}
        check_arrays(record.name, mine, mine)
        x = {n: np.asarray(a - base[n].array, order="C") for n, a in mine.items()}
        if residual:
            for n, a in x.items():
                a += residual[n]
            if self.codec.reads_values:
                mine = {n: a + residual[n] for n, a in mine.items()}
        code, left = self.codec.encode(x, mine, self._seed(client, record))
        return code, x, left

    def decode(self, client: str, record: Record, arrays: Arrays) -> Arrays:
        """Return a record as its client meant it, given its form on the wire.

        Of a sparse code the arrays are `Held`, which the checks and the folds take as they are.

        Raises:
            FieldError: Its code is missing, or is none of this codec, these arrays, this client and round.
        """
        if not record.coded:
            return arrays
        base, code = self._base(client, record), arrays.get(CODE)
        if code is None or code.dtype != np.uint8 or code.ndim != 1:
            got = "none" if code is None else f"{code.dtype}{list(code.shape)}"
            raise FieldError(record.name, f"a code of {self.codec.name}", got)
        plain = {n: a for n, a in arrays.items() if n != CODE}
        if twice := sorted(plain.keys() & base.keys()):
            raise FieldError(record.name, "no arrays for what is coded", f"{twice[:9]}")
        decoded = self.codec.decode(code.data, base, record.name, self._seed(client, record))
        return cast(Arrays, {**decoded, **plain})

    def known(self, client: str, record: Record, upload: ClientUpdate, left: Mapping[str, Left]) -> Arrays:
        """Return what `decode` makes of a client's record, given what its code left out, without reading it.

        Raises:
            FieldError: It stands for numbers that are not finite.
        """
        sent, base = self.on_wire(record, upload), self._base(client, record)
        decoded = {n: left[n].decoded(start) for n, start in base.items()}
        if not all(math.isfinite(a.peak) for a in decoded.values()):
            return self.decode(client, record, sent)  # which reports the error
        return cast(Arrays, {**decoded, **{n: a for n, a in sent.items() if n != CODE}})

    def on_wire(self, record: Record, upload: ClientUpdate) -> Arrays:
        """Return a client's record in its form on the wire."""
        arrays = upload.arrays[record.name]
        if not record.coded:
            return arrays
        base = self.bases[record.name]
        code = np.frombuffer(upload.codes[record.name], np.uint8)
        return {CODE: code, **{n: a for n, a in arrays.items() if n not in base}}

    def check_sum(self, record: Record, partial: Mapping[str, NamedArrays], clients: int) -> None:
        """Check a node's sum of votes.

        Raises:
            FieldError: This number of clients cannot have it.
        """
        if record.code == Sign.name:
            check_votes(record, partial["high"], partial.get("low", {}), clients)

    def most_bytes(self, record: Record, like: NamedArrays) -> int:
        """Return the bytes that a client's code and what goes with it have at most."""
        base = self.bases[record.name] if record.coded else {}
        plain = super().most_bytes(record, {n: a for n, a in like.items() if n not in base})
        return plain + (self._code_bytes(record, like) if base else 0)

    def _code_bytes(self, record: Record, like: NamedArrays) -> int:
        return self.codec.most_bytes([like[name].shape for name in self.bases[record.name]])

    def forwarding(self, entry: Algorithm, clients: int) -> Algorithm:
        """Return the contract of a node's reply for this number of clients: the smaller of the two forms.

        That is each client's code as it is, or the exact sum of what they decode to. Both sides of the wire
        know the message, so none has to say which it is.
        """
        ways = []
        for r in entry.up:
            if r.coded and r.reduce != "collect":
                numbers = sum(b.flat.size for b in self.bases[r.name].values())
                small = clients * self._code_bytes(r, self.like[r.name]) < SUM_BYTES * numbers
                few = clients * 4 * numbers <= MOST_DECODED
                parted = r.layout == SUB_MODEL  # a node does not know where whose part belongs
                r = replace(r, carry="each" if parted or (small and few) else "partial")
            ways.append(r)
        return replace(entry, up=tuple(ways))


def check_votes(record: Record, high: NamedArrays, low: NamedArrays, voters: int) -> None:
    """Refuse a sum that this number of votes of 1 or -1 cannot have; `high` and `low` are its two parts.

    Raises:
        FieldError: Naming record and array.
    """
    for name, part in low.items():
        votes = high[name] * HIGH_UNIT + part * LOW_UNIT
        if (bad := votes[(np.abs(votes) > voters) | ((votes + voters) % 2 != 0)]).size:
            expected = f"sums of {voters} votes, each 1 or -1, one for each client in them"
            raise FieldError(f"{record.name}/{name}", expected, f"{bad[0]:g}")


def coder_of(
    config: Config,
    entry: Algorithm,
    like: Mapping[str, NamedArrays],
    received: Mapping[str, NamedArrays],
    parameters: tuple[str, ...],
    server_round: int,
    own: Callable[[str], Mapping[str, NamedArrays]] | None = None,
) -> Coder | None:
    """Return the coder of a contract's records; None if none is coded.

    `received` are the records that went down, `parameters` the names of the model's shared parameters; `own`
    returns what a client received, where that differs by client.
    """
    coded = [r for r in entry.up if r.coded]
    if not coded:
        return None
    codec, bases = _codec(config, coded[0]), _bases(coded, like, received, parameters)
    return Coder(codec, config.seeds.train, server_round, like, bases, own)


def _bases(
    coded: Iterable[Record],
    like: Mapping[str, NamedArrays],
    received: Mapping[str, NamedArrays],
    parameters: tuple[str, ...],
) -> dict[str, dict[str, Base]]:
    """Return, by coded record, what its update is relative to."""
    bases = {}
    for r in coded:
        known = base_of(r, received, parameters) or {}
        form = like[r.name]
        names = [n for n in parameters if n in form and form[n].dtype == np.float32]
        bases[r.name] = {
            n: Base(known[n] if n in known else np.zeros(form[n].shape, np.float32)) for n in names
        }
    return bases


def _codec(config: Config, record: Record) -> Codec:
    """Return the codec of a contract's coded records; a record with its own code is the only one."""
    if record.code:
        return codec_of(record.code)
    if (kind := config.structured.kind) != "none":
        return codec_of(kind, config.structured.keep)
    codec = codec_by(config.codec.up, config.codec)
    assert codec is not None  # else the contract has no coded records
    return codec
