"""Replies made to harm: each is one line in its sender's name, and the others' result is what it was.

At the fold for every form of a reply; over the whole loop for what takes a message's own data.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from client_app.stages.merge import FoldPlan, Merge
from strategies import STRATEGIES, FedAvg
from strategies.engine.fold import Fold, Folded
from strategies.engine.reply_size import most_bytes
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.entry import Algorithm
from task.catalogue.record import SHARED, Record
from task.numerics.arrays import Arrays
from task.numerics.reduce import REDUCTIONS
from task.wire import messages as wire
from tests.strategies.test_base import AMOUNTS, COUNTS, model, named_grid
from tests.strategies.test_fold import Reply
from tests.support.apps import adds, named_app, spread
from tests.support.federation import Keep
from tests.support.grid import LocalGrid
from tests.task.test_npy import BYTES, saved

LIKE: Arrays = {"w": np.zeros((2, 3), np.float32), "seen": np.zeros((), np.int64)}
MEAN = ALGORITHMS["fedavg"]
STACK = replace(MEAN, up=(Record("arrays", SHARED, "model", "collect"),))
HOSTILE, HONEST = ("eve", "mallory"), ("anna", "ben", "cleo")


def upload(value: float, n: int) -> wire.ClientUpdate:
    arrays = {"w": np.full((2, 3), value, np.float32), "seen": np.array(n, np.int64)}
    return wire.ClientUpdate({"arrays": arrays}, {"num-examples": n, "train-loss": 0.5})


def plain(client: str = "eve", value: float = 9.0, n: int = 5) -> RecordDict:
    return wire.reply_content(wire.NodeReply([client], {}, upload=upload(value, n)))


def merged(
    entry: Algorithm, clients: tuple[str, ...] = HOSTILE, value: float = 9.0, n: int = 5
) -> RecordDict:
    reduction = REDUCTIONS[entry.up[0].reduce](LIKE)
    for client in clients:
        reduction.add(upload(9.0, n).arrays["arrays"], n, client)
    scalars = {"num-examples": [n] * len(clients), "train-loss": [0.5] * len(clients)}
    return wire.reply_content(wire.NodeReply(list(clients), scalars, {"arrays": reduction.partial()}))


def folded(
    entry: Algorithm, bad: RecordDict, asked: tuple[str, ...], last: bool = False
) -> tuple[Folded, Fold]:
    """Fold three honest replies and a bad one."""
    honest = [(f"m-{c}", plain(c, float(i), 10)) for i, c in enumerate(HONEST)]
    replies = [*honest, ("bad", bad)] if last else [("bad", bad), *honest]
    fold = Fold(entry, {"arrays": LIKE}, {"bad": asked} | {f"m-{c}": [c] for c in HONEST}, 4)
    for message_id, content in replies:
        fold.take(Reply(content, message_id))  # type: ignore[arg-type]
    return fold.finish(late="", lr=0.1, trainable=("w",))


def check_harmless(entry: Algorithm, bad: RecordDict, asked: tuple[str, ...]) -> list[wire.RejectedReply]:
    """Check that a bad reply changes nothing; return the lines on it."""
    for last in (False, True):
        done = folded(entry, bad, asked, last)
        assert done.reduced is not None
        assert done.reduced.clients == HONEST
        if entry is MEAN:
            assert (done.reduced.arrays["arrays"]["w"] == 1.0).all()  # (0 + 1 + 2) / 3
        assert sorted(q.client for q in done.quarantined) == sorted(asked)
        assert all(len(str(q)) < 1500 and str(q).isprintable() for q in done.quarantined)
        json.dumps([q.as_dict() for q in done.quarantined])
    return done.quarantined


def with_array(content: RecordDict, record: str, array: Array, name: str = "w") -> RecordDict:
    held = dict(content[record])  # type: ignore[arg-type]
    content[record] = ArrayRecord({**held, name: array})  # type: ignore[dict-item]
    return content


def in_plain(array: np.ndarray) -> RecordDict:
    return with_array(plain(), "arrays", Array(np.asarray(array)))


NUMBERS = {
    "nan": np.full((2, 3), np.nan, np.float32),
    "one nan": np.array([[0, 0, 0], [0, 0, np.nan]], np.float32),
    "infinite": np.full((2, 3), -np.inf, np.float32),
    "1e38": np.full((2, 3), 1e38, np.float32),
    "just too large": np.full((2, 3), 2.0**31, np.float32),
    "another shape": np.zeros((3, 2), np.float32),
    "broadcastable": np.zeros((1, 3), np.float32),
    "zero-length": np.zeros((0, 3), np.float32),
    "a number": np.float32(3),
    "another dtype": np.zeros((2, 3), np.float64),
    "half": np.zeros((2, 3), np.float16),
    "truth": np.zeros((2, 3), bool),
    "complex": np.zeros((2, 3), np.complex64),
    "text": np.full((2, 3), "x"),
    "another byte order": np.zeros((2, 3), ">f4"),
}


@pytest.mark.parametrize("kind", sorted(NUMBERS))
def test_numbers_that_do_not_fit(kind: str) -> None:
    (line,) = check_harmless(MEAN, in_plain(NUMBERS[kind]), ("eve",))
    assert "w" in line.field


def test_fortran_order_is_only_another_order() -> None:
    mine = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    done = folded(
        MEAN,
        with_array(plain(n=10), "arrays", Array("float32", (2, 3), "numpy.ndarray", saved(mine))),
        ("eve",),
    )
    assert done.quarantined == []
    assert done.reduced is not None
    assert done.reduced.arrays["arrays"]["w"].tolist() == ((mine + 3) / 4).tolist()


@pytest.mark.parametrize("where", ["plain", "high", "low", "stack"])
@pytest.mark.parametrize("kind", sorted(BYTES))
def test_bytes_that_lie_in_any_record(kind: str, where: str) -> None:
    lie = Array("float32" if where in ("plain", "stack") else "int32", (2, 3), "numpy.ndarray", BYTES[kind])
    content, record, entry, asked = {
        "plain": (plain(), "arrays", MEAN, ("eve",)),
        "high": (merged(MEAN), "arrays.high", MEAN, HOSTILE),
        "low": (merged(MEAN), "arrays.low", MEAN, HOSTILE),
        "stack": (merged(STACK), "arrays.eve", STACK, HOSTILE),
    }[where]
    tracemalloc.start()
    lines = check_harmless(entry, with_array(content, record, lie), asked)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000
    assert {line.field for line in lines} == {"w"}


def metrics(content: RecordDict, **values: Any) -> RecordDict:
    before = dict(content["metrics"])
    content["metrics"] = MetricRecord({**before, **{k.replace("_", "-"): v for k, v in values.items()}})  # type: ignore[arg-type]
    return content


NAN, INF = float("nan"), float("inf")
COUNTS_THAT_LIE = [0, -1, -(2**62), 2**29, 2**62, 1.5, NAN, INF, -INF, 1e300, [1], [1] * 10**5]


@pytest.mark.parametrize("n", COUNTS_THAT_LIE, ids=lambda n: str(n)[:12])
def test_counts_that_are_none(n: Any) -> None:
    (line,) = check_harmless(MEAN, metrics(plain(), num_examples=n), ("eve",))
    assert line.field == "num-examples"
    if not isinstance(n, list):
        check_harmless(MEAN, metrics(merged(MEAN), num_examples=[n, type(n)(3)]), HOSTILE)


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 1e308, -1e300])
def test_scalars_that_no_mean_survives(loss: float) -> None:
    (line,) = check_harmless(MEAN, metrics(plain(), train_loss=loss), ("eve",))
    assert line.field == "train-loss"


def records(content: RecordDict, **changes: Any) -> RecordDict:
    for name, record in changes.items():
        if record is None:
            del content[name]
        else:
            content[name] = record
    return content


def named(clients: Any, **more: Any) -> RecordDict:
    return records(merged(MEAN), answered=ConfigRecord({"clients": clients}), **more)


COLUMNS = ("client", "field", "expected", "got")


def failed(**columns: Any) -> ConfigRecord:
    whole = {k: ["x"] for k in COLUMNS}
    return ConfigRecord({**whole, **columns})


MANY = [f"c{i}" for i in range(20_000)]
Form = tuple[Callable[[], RecordDict], Algorithm, tuple[str, ...]]


def alone(make: Callable[[], RecordDict]) -> Form:
    return make, MEAN, ("eve",)


def both(make: Callable[[], RecordDict], entry: Algorithm = MEAN) -> Form:
    return make, entry, HOSTILE


def in_row(array: Any, name: str = "w") -> RecordDict:
    return with_array(merged(STACK), "arrays.eve", Array(array), name)


def in_sums(array: Any, name: str = "w") -> RecordDict:
    return with_array(merged(MEAN), "arrays.high", Array(array), name)


def holding(names: list[str]) -> ArrayRecord:
    return ArrayRecord({n: Array(LIKE["w"]) for n in names})


def part(name: str, record: Any, entry: Algorithm = MEAN) -> RecordDict:
    return records(merged(entry), **{name: record})


FORMS: Mapping[str, Form] = {
    "nothing": alone(RecordDict),
    "no metrics": alone(lambda: records(plain(), metrics=None)),
    "metrics twice": alone(lambda: records(plain(), more=MetricRecord({"num-examples": 1}))),
    "no arrays": alone(lambda: records(plain(), arrays=None)),
    "more arrays": alone(lambda: records(plain(), control=wire.pack_arrays(LIKE))),
    "a thousand records": alone(lambda: records(plain(), **{f"r{i}": ArrayRecord() for i in range(1000)})),
    "a missing array": alone(lambda: records(plain(), arrays=holding(["w"]))),
    "names that do not print": alone(lambda: records(plain(), arrays=holding(["w\x1b[2J\n" * 500]))),
    "thousands of arrays": alone(lambda: records(plain(), arrays=holding(MANY[:3000]))),
    "thousands of scalars": alone(lambda: metrics(plain(), **dict.fromkeys(MANY, 1.0))),
    "a scalar of no name": alone(lambda: metrics(plain(), **{"": 1.0})),
    "a scalar that does not print": alone(lambda: metrics(plain(), **{"\x1b[2J": 1.0})),
    "a list for a scalar": alone(lambda: metrics(plain(), train_loss=[0.5] * 10**5)),
    "another's name": both(lambda: named(["anna", "ben"])),
    "one of another's": both(lambda: named(["eve", "anna"])),
    "one name twice": both(lambda: named(["eve", "eve"])),
    "too few names": both(lambda: named(["eve"])),
    "no names": both(lambda: named([])),
    "thousands of names": both(lambda: named(MANY)),
    "names that are bytes": both(lambda: named([b"eve", b"mallory"])),
    "names that are numbers": both(lambda: named([1, 2])),
    "a name for names": both(lambda: named("eve")),
    "answered without names": both(lambda: records(merged(MEAN), answered=ConfigRecord({}))),
    "failures in another's name": both(lambda: named(["eve", "mallory"], failed=failed(client=["anna"]))),
    "failures that are bytes": both(lambda: named(["eve"], failed=failed(client=["mallory"], got=[b"x"]))),
    "failures without columns": both(lambda: named(["eve"], failed=ConfigRecord({"client": ["mallory"]}))),
    "failures of many": both(lambda: named(["eve"], failed=failed(**dict.fromkeys(COLUMNS, MANY)))),
    "high alone": both(lambda: part("arrays.low", None)),
    "low alone": both(lambda: part("arrays.high", None)),
    "a third part": both(lambda: part("arrays.mid", ArrayRecord())),
    "a part of nothing": both(lambda: part("more.high", ArrayRecord())),
    "a row of another": both(lambda: part("arrays.anna", merged(STACK)["arrays.eve"], STACK), STACK),
    "a row too few": both(lambda: part("arrays.eve", None, STACK), STACK),
    "a weight of its own": both(lambda: in_row(np.array(10**6, np.int64), ""), STACK),
    "a negative weight": both(lambda: in_row(np.array(-5, np.int64), ""), STACK),
    "nan in a row": both(lambda: in_row(NUMBERS["nan"]), STACK),
    "sums out of range": both(lambda: in_sums(np.full((2, 3), 2**62, np.int64))),
    "counters out of range": both(lambda: in_sums(np.array(-(2**63), np.int64), "seen")),
}


@pytest.mark.parametrize("kind", sorted(FORMS))
def test_forms_that_are_none(kind: str) -> None:
    make, entry, asked = FORMS[kind]
    check_harmless(entry, make(), asked)


def test_reasons_of_failures_are_cut_and_printable() -> None:
    line = ["\x1b[31mred\n" * 10**3]
    content = records(
        merged(MEAN, ("eve",)), failed=failed(client=["mallory"], field=line, expected=line, got=line)
    )
    done = folded(MEAN, content, HOSTILE)
    (found,) = done.quarantined
    assert found.client == "mallory"
    assert str(found).isprintable()
    assert len(str(found)) < 1500


def test_a_failure_without_a_field_names_none() -> None:
    content = records(merged(MEAN, ("eve",)), failed=failed(client=["mallory"], field=[""]))
    (found,) = folded(MEAN, content, HOSTILE).quarantined
    assert found.field == ""
    assert str(found) == "round 4: client mallory: expected x; got x"


def test_a_reply_that_is_far_too_large_is_not_even_read() -> None:
    big = wire.pack_arrays({"w": np.zeros(10**6, np.float32)})
    (line,) = check_harmless(MEAN, records(plain(), arrays=big), ("eve",))
    assert "bytes" in line.expected


@pytest.mark.parametrize("clients", [1, 7])
@pytest.mark.parametrize("entry", [MEAN, STACK], ids=["mean", "stack"])
def test_what_honest_nodes_send_is_within_the_limit(entry: Algorithm, clients: int) -> None:
    like: Arrays = {f"layer-{i}.weight": np.zeros((300, 70), np.float16) for i in range(30)} | {
        "n": np.array(0)
    }
    merged = Merge(FoldPlan(entry, {"arrays": like}, alone=clients == 1))
    scalars = {f"metric-{i}": 0.5 for i in range(20)} | {wire.NUM_EXAMPLES: 2**20}
    for i in range(clients):
        arrays = {k: np.ones_like(a) for k, a in like.items()}
        merged.add(f"client-{i}", wire.ClientUpdate({"arrays": arrays}, scalars))
    content = wire.reply_content(merged.reply())
    limit = most_bytes(entry, {"arrays": like}, clients)
    assert (
        wire.payload_bytes(content)
        <= limit
        < 4 * sum(a.nbytes for a in like.values()) * max(clients, 3) + 3 * 10**6
    )


# ------------------------------------------------------------------------------- the whole loop


def test_an_update_of_the_rule_that_is_not_finite_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    update = FedAvg.update

    def spoils(state: Any, reduced: Any, config: Any) -> Any:
        state, told = update(state, reduced, config)
        if reduced.round == 1:
            return replace(state, arrays={"w": state.arrays["w"] * np.float32(np.nan)}), told
        if reduced.round == 2:
            raise OverflowError("math range error")
        return state, told

    monkeypatch.setattr(FedAvg.rule_type, "update", staticmethod(spoils))
    keep = Keep()
    FedAvg().start(named_grid(2), model(), num_rounds=3, journal=keep)
    assert [row["skipped"] for row in keep.rows[1:]] == [True, True, False]
    assert len({row["model_sha256"] for row in keep.rows[:3]}) == 1


HUGE = 1e38


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "name", ["median", "krum", "multi-krum", "trimmed-mean", "geometric-median", "bulyan", "fedatt", "fedavg"]
)
def test_finite_but_huge_values_leave_a_finite_model(name: str) -> None:
    """Two of nine clients send 1e38, which is finite, and so passes where replies are kept one by one."""
    counts = {f"client-{i}": 10 for i in range(9)}
    amounts = {c: HUGE if c in ("client-1", "client-4") else 0.1 for c in counts}
    grid = named_grid_of(counts, amounts, name)
    keep = Keep()
    rule = STRATEGIES[name]()
    rule.start(grid, model(), num_rounds=2, journal=keep)
    for snapshot in keep.snapshots:
        assert np.isfinite(snapshot.arrays["arrays/w"]).all()


def named_grid_of(counts: Mapping[str, int], amounts: Mapping[str, float], algorithm: str) -> Any:
    configs, hosted = spread(counts, 3)
    return LocalGrid(named_app(hosted, adds(amounts, counts), algorithm), configs)


def test_a_reply_of_an_earlier_round_and_a_second_answer_change_nothing() -> None:
    kept: list[Any] = []
    wanted, keep = Keep(), Keep()
    FedAvg().start(named_grid(3), model(), num_rounds=3, journal=wanted)
    grid = named_grid(3)
    pull = grid.pull_messages

    def replays(ids: Any) -> Any:
        replies = list(pull(ids))
        kept.extend(r for r in replies if r.metadata.message_type == "train")
        return [*replies, *kept] if any(r.metadata.message_type == "train" for r in replies) else replies

    grid.pull_messages = replays  # type: ignore[method-assign]
    FedAvg().start(grid, model(), num_rounds=3, journal=keep)
    assert [r["model_sha256"] for r in keep.rows] == [r["model_sha256"] for r in wanted.rows]


def test_an_answer_in_another_nodes_name_is_refused() -> None:
    """The sender that a reply states is its own word: what counts is which message it is the answer to."""
    keep = Keep()
    victim = 1

    def tamper(node: int, reply: Any) -> Any:
        if node == 0:
            reply.metadata.__dict__["_src_node_id"] = next(n for n, i in grid.index.items() if i == victim)
            reply.metadata.__dict__["_reply_to_message_id"] = grid.sent[-1].metadata.message_id + "9"
        return reply

    grid = named_grid(3, tamper=tamper)
    FedAvg().start(grid, model(), num_rounds=1, journal=keep)
    assert {q["client"] for q in keep.rows[1]["quarantined"]} == {"client-0", "client-3"}
    assert "a reply of node" in keep.rows[1]["quarantined"][0]["got"]
    amounts = {c: a for c, a in AMOUNTS.items() if c not in ("client-0", "client-3")}
    step = sum(COUNTS[c] * a for c, a in amounts.items()) / sum(COUNTS[c] for c in amounts)
    assert keep.snapshots[1].arrays["arrays/w"] == pytest.approx([step, 1 + step], rel=1e-6)
