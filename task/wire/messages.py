"""The contract on the wire: pack, read and check the messages of training and evaluation.

A training message carries, as named records:

====================  =====================================================================
down                  up
====================  =====================================================================
one ArrayRecord per   one ArrayRecord per upward field of the catalogue entry;
downward field        ``metrics``: ``num-examples``, ``train-loss`` and the entry's scalars
``config``: round,
lr, scalars
====================  =====================================================================

That is plain Flower, and any Flower app speaks it. A node that is asked for several clients gets their
names in ``config`` (``clients``, ``epochs``) and answers with the *merged* reduction: each upward field
as the records of its partial (``arrays.high``, ``arrays.low``), ``metrics`` as lists parallel to
``answered``/``clients``, and ``failed`` with the clients that could not be used and why.

Between our own nodes and our own ServerApp records travel packed, see `task.wire.packing`; here they are as
above. What a node says of itself is in `task.wire.registration`. Only `task.wire` touches a RecordDict.

`task.wire.checks` is the one gate: the node runs it on each client before folding,
the server on each reply. What fails is quarantined, see `RejectedReply`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TypeVar, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from task.catalogue.columns import COLUMNS
from task.catalogue.entry import Algorithm
from task.catalogue.record import Record
from task.errors import FieldError, WireError
from task.numerics import pages
from task.numerics.arrays import Arrays, NamedArrays
from task.numerics.reduce import UNITS
from task.population import LONGEST_NAME
from task.wire import npy
from task.wire.checks import check_arrays, check_columns, diverged, short
from task.wire.entries import CONFIG as CONFIG
from task.wire.entries import config_of, epochs_in, scalars_in
from task.wire.in_place import HeldSum, InPlace, record_bytes, record_of
from task.wire.layouts import Forms, row_entries, rows_in

LOCAL_STEPS = "local-steps"  # downward scalar: local steps in this round, instead of the configured work
TRAINING = "training"  # the same: the number by which clients draw their batches, instead of the round's
POLICY = "policy: "  # prefix of a node's error if its owner forbids the request
WHOLE = "whole-node"  # entry of a training message: the node is one client, see `TrainOrder.whole`
METRICS, ANSWERED, FAILED = "metrics", "answered", "failed"
ARRAYS, NUM_EXAMPLES, TRAIN_LOSS = "arrays", "num-examples", "train-loss"
ConfigValue = int | float | str | bool | list[int]
LONGEST_LINE = 400  # letters of a reason


@dataclass(frozen=True)
class RejectedReply:
    """One client's reply that was not used: who, when, which field, and why."""

    client: str
    round: int
    field: str
    expected: str
    got: str

    def __str__(self) -> str:
        where = f" field {self.field!r}:" if self.field else ""
        return f"round {self.round}: client {self.client}:{where} expected {self.expected}; got {self.got}"

    @property
    def diverged(self) -> bool:
        """Whether the reply was refused for the size of its numbers."""
        return diverged(self.expected)

    def as_dict(self) -> dict[str, str | int]:
        """Return the JSON object of ``rounds.jsonl``."""
        return asdict(self) | {"reason": str(self)}


@dataclass(frozen=True)
class TrainOrder:
    """A training order for a node."""

    round: int  # server round, from 1
    arrays: dict[str, Arrays]  # downward array records by field name
    scalars: Mapping[str, float] = field(default_factory=dict)  # ``lr`` and the entry's downward scalars
    clients: tuple[str, ...] = ()  # to train; empty from another strategy, which means all
    epochs: tuple[int, ...] = ()  # parallel to `clients`; 0 = as configured. Stragglers have fewer.
    run: str = ""  # identity of the run: client state of another run is not used
    # Of the records that differ by client: by record and client, what it gets, by name.
    per_client: Mapping[str, Mapping[str, Mapping[str, Arrays]]] = field(default_factory=dict)
    population: tuple[str, ...] = ()  # all clients, in the order of records with a number for each
    void: tuple[int, ...] = ()  # rolled-back rounds: client state from them is not used
    lost: Mapping[str, Sequence[int]] = field(default_factory=dict)  # by client, rounds of unused replies
    # Whether the node is one client: it trains its share of the clients, and `clients` and `epochs` have one
    # entry, the node's.
    whole: bool = False
    rows: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # as of `Forms.rows`
    oldest: int | None = None  # the oldest round whose client state may still be needed; None = unknown

    def received(self, client: str) -> Mapping[str, Arrays]:
        """Return a client's downward records by field: those that all get, and the one of its own name."""
        mine = {f: given.get(client, {}) for f, given in self.per_client.items()}
        return {**self.arrays, **{f: records[client] for f, records in mine.items() if client in records}}


@dataclass(frozen=True)
class ClientUpdate:
    """What one client sends up: its array records by field name, its scalars."""

    arrays: dict[str, Arrays]
    scalars: dict[str, float]
    codes: Mapping[str, bytes] = field(default_factory=dict)  # by coded record

    @property
    def num_examples(self) -> int:
        """n_k."""
        return int(self.scalars[NUM_EXAMPLES])


@dataclass
class NodeReply:
    """A node's answer: plain (`upload` of its one client) or merged (`partials` of several)."""

    clients: list[str]  # names that are in the answer, parallel to the lists of `scalars`
    scalars: dict[str, list[float]]  # per scalar name, one value per client
    # Per upward field, the records of its merged reduction; empty if plain.
    partials: dict[str, dict[str, Arrays]] = field(default_factory=dict)
    upload: ClientUpdate | None = None  # the one client's upload if plain
    failed: list[RejectedReply] = field(default_factory=list)  # clients that the node could not use


# ---------------------------------------------------------------------------------------- arrays


def pack_arrays(arrays: NamedArrays) -> ArrayRecord:
    """Return the arrays as a Flower record, where they are: they must not change while it is there."""
    return record_of({name: InPlace(a) for name, a in arrays.items()})


def pack_sums(arrays: NamedArrays) -> ArrayRecord:
    """Return sums as `task.numerics.reduce.Sum.held` does as a record that stays on this machine."""
    return record_of({name: HeldSum(a) for name, a in arrays.items()})


def read_arrays(record: ArrayRecord) -> Arrays:
    """Return copies of a record's arrays.

    Raises:
        WireError: An array cannot be decoded; its name is the error's field.
    """
    return {name: a.copy() for name, a in views(record).items()}


def taken(record: ArrayRecord) -> Arrays:
    """Return a record's arrays for this process alone: copies, but of pages that are mapped for it.

    A copy takes the place of the bytes in the record, so that there is no second model in memory.

    Raises:
        WireError: As from `read_arrays`.
    """
    found = {}
    for name in record:
        view = _view(name, record[name])
        here = pages.alias(view)
        found[name] = view.copy() if here is None else here
        if not isinstance(record[name], InPlace):
            record[name] = InPlace(found[name])
    return found


def views(record: ArrayRecord) -> Arrays:
    """Return a record's arrays in place, read-only; raises what `read_arrays` does."""
    return {name: _view(name, a) for name, a in record.items()}


def _view(name: str, a: Array) -> np.ndarray:
    if isinstance(a, InPlace):
        return a.view()
    return npy.view(name[:LONGEST_NAME], a.stype, a.dtype, a.shape, a.data)


# ------------------------------------------------------------------------------------------ down


# Downward records that differ by client: by field, client and name.
PerClient = Mapping[str, Mapping[str, Mapping[str, ArrayRecord]]]


def train_content(
    order: TrainOrder,
    arrays: Mapping[str, ArrayRecord],
    extra: Mapping[str, ConfigValue],
    per_client: PerClient | None = None,
) -> RecordDict:
    """Return the content of a training message.

    The `arrays` by downward field and `per_client`, what each client gets of a record that differs by client,
    stand for the order's own, packed once: what several get under one name is one record, and travels once.
    `extra` are further config entries, as given to Flower's ``start(train_config=...)``.
    """
    config = ConfigRecord({**extra, "server-round": order.round, **order.scalars, **row_entries(order.rows)})
    if order.run:
        config["run"] = order.run
    if order.population:
        config["population"] = list(order.population)
    if order.void:
        config["void-rounds"] = list(order.void)
    if order.oldest is not None:
        config["oldest-round"] = order.oldest
    for name, by_client in (per_client or {}).items():
        for client, records in by_client.items():
            config[f"{name}:{client}"] = list(records)
            arrays = {**arrays, **{f"{name}.{key}": record for key, record in records.items()}}
    if order.clients:
        config["clients"], config["epochs"] = list(order.clients), list(order.epochs)
    if lost := {c: list(order.lost[c]) for c in order.clients if order.lost.get(c)}:
        config["lost-clients"] = [c for c, rounds in lost.items() for _ in rounds]
        config["lost-rounds"] = [r for rounds in lost.values() for r in rounds]
    if order.whole:
        config[WHOLE] = True
    return RecordDict({**arrays, CONFIG: config})


def read_order(entry: Algorithm, content: RecordDict, forms: Forms) -> TrainOrder:
    """Read and check a training message on the node.

    `forms` is what records look like under this node's model.

    Raises:
        WireError: A record or scalar of the entry is missing or does not fit this node's model.
    """
    config, records = config_of(content), records_of(content, ArrayRecord)
    population = tuple(str(c) for c in cast(list[str], config.get("population", [])))
    forms = replace(forms, clients=len(population), rows=rows_in(config))

    def read(f: Record, name: str, client: str = "") -> Arrays:
        if name not in records:
            raise WireError(f"training message: expected record {name!r} ({f.meaning}); got none", f.name)
        expected = forms.of_record(f, client)
        arrays = as_ours(taken(records[name]), expected)
        check_arrays(name, arrays, expected)
        return arrays

    arrays = {f.name: read(f, f.name) for f in entry.down if f.to == "all"}
    scalars = scalars_in(content)
    for s in entry.down_scalars:
        if s.name not in scalars:
            raise WireError(f"training message: expected {s.name!r} ({s.meaning}); got none", s.name)
    clients = tuple(str(c) for c in cast(list[str], config.get("clients", [])))
    epochs = epochs_in(content)
    server_round, run = int(cast(int, config.get("server-round", 0))), str(config.get("run", ""))
    each: dict[str, dict[str, dict[str, Arrays]]] = {}
    for f in (f for f in entry.down if f.to == "each"):
        wanted = {c: cast(list[str], config.get(f"{f.name}:{c}", [])) for c in clients}
        named = {n: read(f, f"{f.name}.{n}", n) for n in sorted({n for w in wanted.values() for n in w})}
        each[f.name] = {c: {n: named[n] for n in w} for c, w in wanted.items()}
    void = tuple(int(r) for r in cast(list[int], config.get("void-rounds", [])))
    names, rounds = (cast("list[str]", config.get(f"lost-{k}", [])) for k in ("clients", "rounds"))
    lost: dict[str, list[int]] = {}
    for client, lost_round in zip(names, rounds, strict=True):
        lost.setdefault(client, []).append(int(lost_round))
    oldest = int(cast(int, config.get("oldest-round", max(server_round - 2, 0))))
    rest = each, population, void, lost, bool(config.get(WHOLE, False)), forms.rows, oldest
    return TrainOrder(server_round, arrays, scalars, clients, epochs, run, *rest)


def read_columns(content: RecordDict, columns: int) -> Arrays | None:
    """Return the moments that a message brings (`task.numerics.moments.Moments.arrays`); None if none.

    Raises:
        FieldError: Their number of columns is different.
    """
    record = records_of(content, ArrayRecord).get(COLUMNS)
    if record is None:
        return None
    arrays, floats = read_arrays(record), np.zeros(columns)
    check_arrays(COLUMNS, arrays, {"count": np.zeros(columns, np.int64), "mean": floats, "std": floats})
    return arrays


def as_ours(arrays: Arrays, like: NamedArrays) -> Arrays:
    """Return a model that was sent to this node with the dtypes of this node's model.

    Flower's server optimisers compute in float64, and its means make floats of counters; PyTorch loads both.
    Numbers that do not fit become infinite or stay as they are; the check that follows refuses both.
    """
    out = dict(arrays)
    with np.errstate(over="ignore"):
        for name, a in arrays.items():
            want = like[name].dtype if name in like else a.dtype
            if a.dtype.kind != "f" or a.dtype == want:
                continue
            if want.kind == "f" or (want.kind == "i" and np.isfinite(a).all() and (np.abs(a) < 2**53).all()):
                out[name] = np.asarray(a if want.kind == "f" else np.rint(a)).astype(want)
    return out


R = TypeVar("R", ArrayRecord, ConfigRecord, MetricRecord)


def records_of(content: RecordDict, kind: type[R]) -> dict[str, R]:
    """Return the records of one kind.

    Flower's own views (``content.array_records``) tie the content into a reference cycle, so that a reply's
    arrays stay until the garbage collector comes by.
    """
    return {name: record for name, record in content.items() if isinstance(record, kind)}


def entry_of(content: RecordDict, name: str) -> object:
    """Return an entry of a message's ``config``; None if it has none of that name."""
    return config_of(content).get(name)


# -------------------------------------------------------------------------------------------- up


def reply_content(reply: NodeReply) -> RecordDict:
    """Return the content of a node's answer to a training or evaluation message."""
    content = RecordDict()
    if reply.upload is not None:
        for name, arrays in reply.upload.arrays.items():
            content[name] = pack_arrays(arrays)
        content[METRICS] = MetricRecord({k: _number(v) for k, v in reply.upload.scalars.items()})
        return content
    for name, records in reply.partials.items():
        for part, arrays in records.items():
            packed = pack_arrays if part != UNITS else pack_sums
            content[f"{name}.{part}"] = packed(arrays)
    content[METRICS] = MetricRecord({k: [_number(x) for x in v] for k, v in reply.scalars.items()})
    content[ANSWERED] = ConfigRecord({"clients": list(reply.clients)})
    if reply.failed:
        columns = {
            k: [str(asdict(q)[k]) for q in reply.failed] for k in ("client", "field", "expected", "got")
        }
        content[FAILED] = ConfigRecord(columns)  # type: ignore[arg-type]
    return content


def _number(value: float) -> int | float:
    return int(value) if isinstance(value, np.integer | int) else float(value)


def read_reply(content: RecordDict, asked: Sequence[str], server_round: int) -> NodeReply:
    """Read a node's answer, without checking the arrays yet; they are read-only and keep its bytes alive.

    Raises:
        WireError: The answer is not in either form.
    """
    if ANSWERED not in records_of(content, ConfigRecord):
        metrics = records_of(content, MetricRecord)
        if len(metrics) != 1:
            raise FieldError(METRICS, "one MetricRecord", f"{len(metrics)}")
        scalars = cast(dict[str, float], dict(next(iter(metrics.values()))))
        check_columns(scalars)
        arrays = {name: views(record) for name, record in records_of(content, ArrayRecord).items()}
        return NodeReply(
            list(asked), {k: [v] for k, v in scalars.items()}, upload=ClientUpdate(arrays, scalars)
        )
    clients = _names(records_of(content, ConfigRecord)[ANSWERED].get("clients"), "clients", len(asked))
    columns = records_of(content, MetricRecord).get(METRICS, MetricRecord())
    check_columns(columns)
    lists: dict[str, list[float]] = {}
    for name, values in columns.items():
        if not isinstance(values, list) or len(values) != len(clients):
            raise FieldError(name, f"{len(clients)} values, one a client", short(values))
        lists[name] = cast(list[float], values)
    partials: dict[str, dict[str, Arrays]] = {}
    for name, record in records_of(content, ArrayRecord).items():
        field_name, _, part = name.partition(".")
        if part == UNITS and not all(isinstance(a, HeldSum) for a in record.values()):
            raise FieldError(field_name, "a sum in two parts, as it travels", f"the record {part!r}")
        partials.setdefault(field_name, {})[part] = views(record)
    return NodeReply(clients, lists, partials=partials, failed=_failures(content, len(asked), server_round))


def _failures(content: RecordDict, most: int, server_round: int) -> list[RejectedReply]:
    columns = records_of(content, ConfigRecord).get(FAILED)
    if columns is None:
        return []
    lists = (_names(columns.get(k), k, most) for k in ("client", "field", "expected", "got"))
    rows = zip(*lists, strict=True)
    return [RejectedReply(c, server_round, one_line(f, ""), one_line(e), one_line(g)) for c, f, e, g in rows]


def _names(values: object, what: str, most: int) -> list[str]:
    """Return a list of texts, or refuse it."""
    if not isinstance(values, list) or len(values) > most or not all(isinstance(v, str) for v in values):
        raise FieldError(what, f"a list of at most {most} texts", short(values))
    return values


def one_line(text: str | None, otherwise: str = "nothing") -> str:
    """Return a text from outside as one printable line that is not too long; `otherwise` if it is blank."""
    words = " ".join((text or "")[: 4 * LONGEST_LINE].split())
    return "".join(c if c.isprintable() else "?" for c in words)[:LONGEST_LINE] or otherwise


# ------------------------------------------------------------------------------------- messages


def message(content: RecordDict, node_id: int, kind: str, server_round: int, ttl_s: float) -> Message:
    """Return a message to a node; it expires with the round that it belongs to."""
    return Message(content, node_id, kind, ttl=ttl_s, group_id=str(server_round))


def clients_of(request: Message) -> list[str]:
    """Return the clients that a message is for; empty if it names none."""
    return clients_in(request.content)


def clients_in(content: RecordDict) -> list[str]:
    """Return the clients that a message's content names."""
    return list(cast("list[str]", config_of(content).get("clients", [])))


def payload_bytes(content: RecordDict) -> int:
    """Return the serialised size of a content's records in bytes (transport framing not counted)."""
    scalars: list[Mapping[str, object]] = [
        *records_of(content, ConfigRecord).values(),
        *records_of(content, MetricRecord).values(),
    ]
    arrays = sum(record_bytes(record) for record in records_of(content, ArrayRecord).values())
    return arrays + sum(len(k) + _value_bytes(v) for record in scalars for k, v in record.items())


def _value_bytes(value: object) -> int:
    # ConfigRecord.count_bytes refuses empty strings and lists, which are fine on the wire.
    if isinstance(value, list):
        return sum(_value_bytes(v) for v in value)
    size = len(value) if isinstance(value, str | bytes) else 8  # numbers travel as 64 bits
    return 1 if isinstance(value, bool) else size
