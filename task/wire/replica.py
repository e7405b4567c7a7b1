"""A model that is sent as codes to a node that has an earlier one: the form on the wire.

In the place of the model's parameters the record ``arrays`` has codes ``:code:0``, ``:code:1``, … of the
rounds since then, in their order, and with them the buffers. ``config`` says which model they go on from and
which they come to, each by the SHA-256 of its arrays (`task.numerics.arrays.sha256`). A whole model that is
to be gone on from has its own SHA-256 alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from task.codecs import codec_by
from task.config.sections import CodecConfig
from task.errors import WireError
from task.numerics.arrays import Arrays, NamedArrays, sha256
from task.numerics.held import dense
from task.wire import messages as wire
from task.wire.coding import CODE

MODEL, BASE = "model-sha256", "base-sha256"  # config entries
LOST = "expected the model that the codes go on from"  # in the error of a node that lacks it


@dataclass(frozen=True)
class Step:
    """One round's code: which model it goes on from and which it comes to."""

    before: str
    after: str
    code: bytes


@dataclass(frozen=True)
class Steps:
    """The codes that update a node's model."""

    model: str  # SHA-256 of the model that they come to
    base: str  # of the model that they go on from
    codes: tuple[bytes, ...]


def codable(model: NamedArrays, trainable: Sequence[str]) -> list[str]:
    """Return the names of the parameters that a code stands for, in the model's order."""
    return [n for n in trainable if n in model and model[n].dtype == np.float32]


def steps_record(steps: Steps, model: NamedArrays, trainable: Sequence[str]) -> ArrayRecord:
    """Return the record ``arrays`` with codes in the place of the parameters."""
    codes = {f"{CODE}:{i}": np.frombuffer(code, np.uint8) for i, code in enumerate(steps.codes)}
    coded = frozenset(codable(model, trainable))
    return wire.pack_arrays({**codes, **{n: a for n, a in model.items() if n not in coded}})


def model_in(content: RecordDict, config: CodecConfig, mine: Arrays, trainable: Sequence[str]) -> Arrays:
    """Return the model that a message brings, `mine` itself if that is it.

    `mine` is the model that this node has, empty if it has none; `trainable` are the model's parameters.

    Raises:
        WireError: The codes go on from another model, or do not come to the one that they should.
    """
    entries = wire.records_of(content, ConfigRecord)[wire.CONFIG]
    goal, base = str(entries[MODEL]), str(entries.get(BASE, ""))
    arrays = wire.read_arrays(wire.records_of(content, ArrayRecord)[wire.ARRAYS])
    if not base:
        return arrays
    have = sha256(mine)
    if have != base:
        raise WireError(f"{LOST}, {base[:12]}; got {have[:12] if mine else 'none'}", wire.ARRAYS)
    codes = [arrays.pop(f"{CODE}:{i}") for i in range(sum(n.startswith(CODE) for n in arrays))]
    if goal == base:
        return mine
    codec = codec_by(config.down, config)
    if codec is None:
        raise WireError('expected a whole model, by codec.down = "none"; got codes', wire.ARRAYS)
    coded = {n: mine[n] for n in trainable if n not in arrays}
    for code in codes:
        coded = {n: dense(a) for n, a in codec.decode(code.data, coded, wire.ARRAYS).items()}
    arrays |= coded
    if sha256(arrays) != goal:
        raise WireError(f"{LOST} to {goal[:12]}; they come to {sha256(arrays)[:12]}", wire.ARRAYS)
    return arrays
