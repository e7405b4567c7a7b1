"""The contract of every algorithm: what is declared is sent and read; what is damaged is quarantined.

Code treats fields by what they declare, never by whose they are: of all the fields in the catalogue that
declare the same, one stands for the others. A new algorithm with a field of a new kind adds its own cases.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from client_app.answer import answer
from client_app.data.node import open_node
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.entry import NUM_EXAMPLES, Algorithm
from task.catalogue.record import BUFFERS, Record, Scalar
from task.errors import WireError
from task.numerics.arrays import Arrays
from task.resolve.read import read_config
from task.wire import messages as wire
from task.wire.layouts import Forms
from task.wire.messages import ANSWERED, METRICS
from tests.support.federation import SIZES, Played, owners_config, play, write_owners
from tests.test_catalogue import ACTIVE, NAMES

CLIENTS = sorted(SIZES)


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("contract") / "owners.npz"
    write_owners(path)
    return path


def config(owners: Path, name: str, **keys: Any) -> dict[str, Any]:
    model = "mlp" if ALGORITHMS[name].personal else "logistic"
    given = {"num_server_rounds": 1, "model": model, **keys}
    return owners_config(owners, algorithm=name, **given) | ACTIVE.get(name, {})


def forms_of(owners: Path, name: str) -> Forms:
    """Return what records look like."""
    node = open_node(read_config(config(owners, name)), {})
    return replace(node.forms(), clients=len(SIZES))


def declares(entry: Algorithm, field: Record | Scalar) -> Hashable:
    """Return what a field declares, and what its algorithm says of arrays, as far as messages show it."""
    if isinstance(field, Scalar):
        return replace(field, name="", meaning="")
    relative = bool(field.base), bool(field.per)
    return field.layout, field.reduce, field.carry, field.to, *relative, entry.weight, bool(entry.private)


def distinct(fields: Iterable[tuple[str, Record | Scalar]]) -> list[tuple[str, str]]:
    """Return (algorithm, name of a field), one for all fields that declare the same."""
    found: dict[Hashable, tuple[str, str]] = {}
    for name, field in fields:
        found.setdefault(declares(ALGORITHMS[name], field), (name, field.name))
    return list(found.values())


# ------------------------------------------------------------------------------------------- down


def order(owners: Path, name: str) -> tuple[Any, RecordDict]:
    """Return a node and a whole training message for it."""
    entry, forms = ALGORITHMS[name], forms_of(owners, name)
    node = open_node(read_config(config(owners, name)), {})
    scalars = {"lr": 0.1, **{s.name: 1.0 for s in entry.down_scalars}}
    records = {f.name: wire.pack_arrays(drawn(forms.like(f.layout))) for f in entry.down if f.to == "all"}
    names = tuple(CLIENTS) if entry.individual else ()
    asked = wire.TrainOrder(1, {}, scalars, ("anna", "ben"), (0, 0), population=names)
    gifts = {
        f.name: {c: {c: wire.pack_arrays(drawn(forms.like(f.layout)))} for c in asked.clients}
        for f in entry.down
        if f.to == "each"
    }
    return node, wire.train_content(asked, records, {}, gifts)


def drawn(arrays: Arrays) -> Arrays:
    """Return arrays of the same form with numbers in place of zeros: of a model of zeros no layer learns."""
    rng = np.random.default_rng(1)
    return {
        n: rng.normal(0, 0.1, a.shape).astype(a.dtype) if a.dtype.kind == "f" else a
        for n, a in arrays.items()
    }


def records_of(content: RecordDict, field: str) -> list[str]:
    """Return the records of a downward field: one, or one for each client that it is for."""
    return [name for name in content.array_records if name.partition(".")[0] == field]


DOWN = [(n, f) for n in NAMES for f in (*ALGORITHMS[n].down, *ALGORITHMS[n].down_scalars)]


@pytest.mark.parametrize(("name", "field"), distinct(DOWN))
def test_a_declared_downward_field_that_is_missing_is_named(name: str, field: str, owners: Path) -> None:
    node, content = order(owners, name)
    assert answer(node, content).metric_records
    for record in records_of(content, field):
        del content[record]
    if field in content.config_records["config"]:
        del content.config_records["config"][field]
    with pytest.raises(WireError, match=f"'{field}") as error:
        answer(node, content)
    assert error.value.field == field


@pytest.mark.parametrize("name", NAMES)
def test_every_declared_field_is_sent_and_no_other_goes_down(name: str, owners: Path) -> None:
    entry, played = ALGORITHMS[name], play(config(owners, name, num_server_rounds=2))
    told = [set(c["metrics"]) for c in played.keep.clients]
    asked = 1 if entry.pooled else len(SIZES)
    trainings = 2 * 2 if entry.repeats else 2
    answers = sum(map(len, played.selected())) if entry.asynchronous else asked * trainings
    assert told == [{"train-loss", *(s.name for s in entry.up_scalars)}] * answers
    messages = played.messages()
    for message in messages[len(messages) // 2 :]:  # in round 1 nobody's model is known
        assert {r.partition(".")[0] for r in message.content.array_records} == {f.name for f in entry.down}
        told = message.content.config_records["config"]
        names = {s.name for s in entry.down_scalars} | ({"population"} if entry.individual else set())
        names |= {"oldest-round"} if entry.keeps else set()
        names |= {f"{f.name}:{c}" for f in entry.down if f.to == "each" for c in told["clients"]}  # type: ignore[union-attr]
        assert set(told) == {"server-round", "run", "lr", "clients", "epochs"} | names


@pytest.mark.parametrize(("name", "field"), [(n, f.name) for n, f in DOWN if f.name != "arrays"])
def test_a_downward_field_changes_what_the_client_does(name: str, field: str, owners: Path) -> None:
    """It is not only demanded: its value counts."""
    node, content = order(owners, name)
    config_record = content.config_records["config"]
    digests = set()
    signed = field == "consensus"  # of which a mean absolute error hands on the side alone
    for value in (1.0, -3.0 if signed else 3.0):  # whole, for numbers that count something
        for record in records_of(content, field):
            arrays = wire.read_arrays(content.array_records[record])
            filled = {
                k: np.full_like(a, value if a.dtype.kind == "f" else abs(value)) for k, a in arrays.items()
            }
            content[record] = wire.pack_arrays(filled)
        if field in config_record:
            config_record[field] = value
        reply = answer(node, content)
        digests.add(tuple(a.data for r in reply.array_records.values() for a in r.values()))
    assert len(digests) == 2


# --------------------------------------------------------------------------------------------- up

Damage = Callable[[ArrayRecord], ArrayRecord | None]


def first(change: Callable[[np.ndarray], np.ndarray]) -> Damage:
    """Change the first array of a record."""

    def damage(record: ArrayRecord) -> ArrayRecord:
        arrays = wire.read_arrays(record)
        name = next(iter(arrays))
        return wire.pack_arrays(arrays | {name: change(arrays[name])})

    return damage


def without_one(record: ArrayRecord) -> ArrayRecord:
    return wire.pack_arrays(dict(list(wire.read_arrays(record).items())[1:]))


DAMAGE: dict[str, Damage] = {
    "missing": lambda record: None,
    "another shape": first(lambda a: a[..., None]),
    "another dtype": first(lambda a: a.astype(np.int16)),
    "one array less": without_one,
    "one array more": lambda r: wire.pack_arrays(wire.read_arrays(r) | {"more": np.zeros(1, np.float32)}),
    "not a number": first(lambda a: np.full(a.shape, np.nan, np.float64 if a.dtype.kind == "i" else a.dtype)),
}


def trained(reply: Message) -> bool:
    """Return whether a reply is to a training message, and not to the exchange before it."""
    return reply.metadata.message_type == "train"


@cache
def without_node_0(owners: Path, name: str, nodes: int) -> Played:
    """Run with a first node whose training fails as a whole: what a quarantine must amount to."""

    def tamper(node: int, reply: Message) -> Message:
        if node == 0 and trained(reply):
            reply.content.clear()
        return reply

    return play(config(owners, name), nodes=nodes, tamper=tamper)


# The model here has no buffers: that record is empty, and there is nothing to damage.
# Of pooled data only one client answers, so that nothing is left to compare with.
SEVERAL = [name for name in NAMES if not ALGORITHMS[name].pooled]
UP = distinct((n, f) for n in SEVERAL for f in ALGORITHMS[n].up if f.layout != BUFFERS)


def parts_of(name: str, field: str, clients: list[str]) -> list[str]:
    """Return the records of an upward field in the reply of a node of these clients."""
    (reduce,) = (f.reduce for f in ALGORITHMS[name].up if f.name == field)
    if len(clients) == 1:
        return [field]
    return [f"{field}.{c}" for c in clients] if reduce == "collect" else [f"{field}.high", f"{field}.low"]


@pytest.mark.parametrize(("name", "field"), UP)
@pytest.mark.parametrize("nodes", [5, 2])
@pytest.mark.parametrize("kind", sorted(DAMAGE))
def test_a_damaged_upward_field_is_quarantined(
    name: str, field: str, nodes: int, kind: str, owners: Path
) -> None:
    want = without_node_0(owners, name, nodes).rows[1]
    parts = parts_of(name, field, [q["client"] for q in want["quarantined"]])
    for part in parts:

        def tamper(node: int, reply: Message, part: str = part) -> Message:
            if node == 0 and trained(reply):
                damaged = DAMAGE[kind](reply.content.array_records[part])
                reply.content.pop(part)
                if damaged is not None:
                    reply.content[part] = damaged
            return reply

        row = play(config(owners, name), nodes=nodes, tamper=tamper).rows[1]
        lines = row["quarantined"]
        assert [q["client"] for q in lines] == [q["client"] for q in want["quarantined"]] != []
        assert all(q["field"].startswith(field) for q in lines), lines
        assert (row["model_sha256"], row["answered"]) == (want["model_sha256"], want["answered"])


SCALARS = distinct((n, s) for n in SEVERAL for s in (NUM_EXAMPLES, *ALGORITHMS[n].up_scalars))


@pytest.mark.parametrize(("name", "scalar"), SCALARS)
@pytest.mark.parametrize("nodes", [5, 2])
@pytest.mark.parametrize("value", [None, float("nan"), "short"])
def test_a_damaged_upward_scalar_is_quarantined(
    name: str, scalar: str, nodes: int, value: Any, owners: Path
) -> None:
    required = {"num-examples", *(s.name for s in ALGORITHMS[name].up_scalars if s.required)}

    def tamper(node: int, reply: Message) -> Message:
        if node == 0 and trained(reply):
            metrics: dict[str, Any] = dict(reply.content.metric_records[METRICS])
            old = metrics.pop(scalar)
            if value == "short":
                metrics[scalar] = old[:-1] if isinstance(old, list) else [old]
            elif value is not None:
                metrics[scalar] = [value] * len(old) if isinstance(old, list) else value
            reply.content[METRICS] = MetricRecord(metrics)
        return reply

    row = play(config(owners, name), nodes=nodes, tamper=tamper).rows[1]
    if value is None and scalar not in required:
        assert row["quarantined"] == []
        return
    want = without_node_0(owners, name, nodes).rows[1]
    assert [q["client"] for q in row["quarantined"]] == [q["client"] for q in want["quarantined"]] != []
    assert {q["field"] for q in row["quarantined"]} == {scalar}
    assert row["model_sha256"] == want["model_sha256"]


@pytest.mark.parametrize("told", [["anna"], ["nobody", "else", "here"], []])
def test_a_node_that_answers_for_others_than_it_was_asked_for_is_quarantined(
    told: list[str], owners: Path
) -> None:
    def tamper(node: int, reply: Message) -> Message:
        if node == 0:
            answered = reply.content.config_records[ANSWERED]
            n = len(answered["clients"])  # type: ignore[arg-type]
            answered["clients"] = (told * n)[:n] if told else []
            if not told:
                reply.content[METRICS] = MetricRecord({})
        return reply

    row = play(config(owners, "fedavg"), nodes=2, tamper=tamper).rows[1]
    want = without_node_0(owners, "fedavg", 2).rows[1]
    assert [q["client"] for q in row["quarantined"]] == [q["client"] for q in want["quarantined"]]
    assert {q["field"] for q in row["quarantined"]} == {ANSWERED}
    assert row["model_sha256"] == want["model_sha256"]
