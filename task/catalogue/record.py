"""What a record is: one named thing that travels in a message or that a client keeps between rounds.

A record says which arrays it has (its *layout*), what its numbers are relative to (its *base*), what becomes
of many clients' records (its *reduction*) and whether a node merges its own clients' (how they are
*carried*). A scalar is a record of one number with a range. Compression, masks and checks ask the record and
nothing else.

`task.wire.layouts` gives the arrays of a layout under a model, and those that a record is relative to.
"""

import math
from dataclasses import dataclass
from typing import Literal

Reduce = Literal["mean", "sum", "collect"]
Scope = Literal["run", "round", "start", "node"]
Of = Literal["steps", "halves", "batch", "all", "class", "validation", "row"]


@dataclass(frozen=True)
class Layout:
    """Which arrays a record has."""

    # ``part``, tensors of the model with their names, shapes and dtypes; ``vector``, one float32 for each of
    # something; ``table``, integers for each column of a table; ``classes``, numbers for each class;
    # ``public``, numbers for each public example; ``rows``, numbers for each of the phase's rows, how many
    # and how wide is for the phase to say; ``free``, arrays that only the client knows.
    kind: Literal["part", "vector", "table", "classes", "public", "rows", "free"]
    # The part of the model; what the vector has a number for; what the integers are; or the rows' dtype.
    of: str = ""


# The model as the server knows it: parameters and buffers, without what stays at the clients.
SHARED = Layout("part", "shared")
PARAMETERS = Layout("part", "parameters")  # the parameters of the shared part
BUFFERS = Layout("part", "buffers")  # its buffers; empty for most models
# The parameters of its last layers, those that adaptive local aggregation has weights for.
TOP = Layout("part", "top")
# The part of the shared part that one client trains (`task.models.family`), of the same size for all.
SUB_MODEL = Layout("part", "sub-model")
PRIVATE = Layout("part", "private")  # the part of the model that stays at the client
WHOLE = Layout("part", "whole")  # both parts
# One number for each input of a first layer that is linear; empty for another first layer.
COLUMNS = Layout("vector", "columns")
# One number for each input of the last layer, which turns features into outputs.
FEATURES = Layout("vector", "features")
ONE = Layout("vector", "one")  # one number
CLIENTS = Layout("vector", "clients")  # one number for each client of the run, in the order of names
# Mean features by class and what stands behind them (`task.numerics.prototypes`).
PROTOTYPES = Layout("classes", "shared-table")
# Logits of public examples and how many clients' they are (`task.datasets.public`).
LOGITS = Layout("public", "shared-table")
FREE = Layout("free")  # arrays of any names and shapes; only for what a client keeps


@dataclass(frozen=True)
class Record:
    """Named arrays."""

    name: str  # name of the record on the wire or in the client's state
    layout: Layout  # which arrays it has
    meaning: str  # what it is, with the paper's symbol. Dtypes are those of the model
    # What becomes of many clients' records: ``mean`` and ``sum`` are weighted by `Algorithm.weight`;
    # ``collect`` keeps every client's.
    reduce: Reduce = "mean"
    # Whether a node sends one ``partial`` reduction of its clients' records, or ``each`` of them as it is.
    # The reduced arrays are the same, to the bit. What is collected is always carried so.
    carry: Literal["partial", "each"] = "partial"
    # Name of the downward record that the arrays are relative to, as a local model is to the global one; "" =
    # they are changes or gradients themselves.
    base: str = ""
    # Scalar of the reply by which the client has divided its change of the parameters; these are then changes
    # whatever the base says, which holds for the buffers.
    per: str = ""
    # Of a downward record, whether ``all`` clients get the same or ``each`` gets records of its own, by name.
    to: Literal["all", "each"] = "all"
    # Of an upward record, which training examples it is computed from: those of the local ``steps``, the
    # second ``halves`` of their batches, one ``batch``, ``all`` in one pass, each row of it from those of one
    # ``class``, a ``validation`` share that is kept out of the training, or each ``row`` from one example.
    # `client_app.data.owner` counts them.
    of: Of = "steps"
    # Whether the numbers travel as they are under any codec, as the client keeps what follows from them.
    exact: bool = False
    # Whether the parameters of an upward record travel as a code (`task.wire.coding`); the stage sets it.
    coded: bool = False
    code: str = ""  # the codec by which it always travels, whatever ``codec.up`` says; "" = that one
    # Whether it travels as integers, the change from its base clipped to a norm
    # (`task.privacy.bounded_integers`), which are summed before noise is added; the stage sets it.
    clipped: bool = False
    # Whether a node sends the sum over its clients as a ciphertext (`task.encryption`), which the server adds
    # to the others' without opening it.
    encrypted: bool = False
    # Whether it travels as integers, the change from its base times the client's weight rounded to a grid
    # (`task.secagg.fixed_point`), which are summed as they are; the stage sets it.
    rounded: bool = False
    # Of an upward record with weights of its own, their array: ``counts`` are of the client's examples, and
    # ``clients`` is 1. A larger one would let a client outweigh the others.
    weights: Literal["", "counts", "clients"] = ""
    scope: Scope = "run"  # of a record that is kept, how long and whose it is: `client_app.memory.memory`
    # Of a record that is kept, the field of the server's state that is the mean of it over all clients that
    # the run has known, and whether each of them counts alike there or by its examples.
    mean: str = ""
    mean_by: Literal["clients", "examples"] = "clients"

    def __post_init__(self) -> None:
        """Carry what is collected one by one."""
        if self.reduce == "collect":
            object.__setattr__(self, "carry", "each")

    @property
    def integers(self) -> bool:
        """Whether it travels as integers on a grid, and is summed without weights."""
        return self.clipped or self.rounded

    @property
    def folded(self) -> Reduce:
        """What the fold makes of many clients' records, before anything else."""
        return "sum" if self.integers else self.reduce


@dataclass(frozen=True)
class Scalar:
    """One number of a message."""

    name: str  # name on the wire
    meaning: str  # what the number is, with its unit
    required: bool = True  # whether a message without it is refused
    low: float = -math.inf  # smallest value that an honest client can send
    high: float = math.inf  # largest such value
    whole: bool = False  # whether it is an integer
    # What a rule gets of many clients' numbers (`AggregatedReplies.number`): their ``mean``, weighted as the
    # arrays are, ``sum`` or ``max``, of those that sent it; or ``collect``, each.
    reduce: Literal["mean", "sum", "max", "collect"] = "mean"
    # Of an upward scalar that is the squared norm of the change of an upward record's parameters, the record.
    # What a stage makes of the record is measured again, so that the two go together.
    square_of: str = ""


MODEL_DOWN = Record("arrays", SHARED, "global model w^t")
MODEL_UP = Record("arrays", SHARED, "local model w_k after local training", base=MODEL_DOWN.name)
