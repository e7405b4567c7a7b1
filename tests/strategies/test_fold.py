"""Replies with several array records: of one client all count or none, at the server and on the node."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from flwr.app import RecordDict

from client_app.stages.merge import FoldPlan, Merge
from strategies.engine.fold import Fold
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.record import SHARED, Record
from task.errors import FieldError
from task.numerics.arrays import sha256
from task.wire import messages as wire

FIELDS = (Record("arrays", SHARED, "model"), Record("control", SHARED, "variate"))
ENTRY = replace(ALGORITHMS["fedavg"], up=FIELDS)
LIKE = {"w": np.zeros(1, np.float32)}
# The second record of "b" is finite, but out of the range of exact sums.
VALUES = {"a": (2.0, 3.0), "b": (9.0, 1e30), "c": (4.0, 5.0)}


def upload(client: str) -> wire.ClientUpdate:
    model, control = VALUES[client]
    arrays = {
        "arrays": {"w": np.array([model], np.float32)},
        "control": {"w": np.array([control], np.float32)},
    }
    return wire.ClientUpdate(arrays, {"num-examples": 1})


class Reply:
    """As much of a message as a fold reads."""

    def __init__(self, content: RecordDict, message_id: str) -> None:
        self.content = content
        self.metadata = type("Metadata", (), {"reply_to_message_id": message_id})

    def has_error(self) -> bool:
        return False


@pytest.mark.parametrize("order", ["abc", "bac", "acb"])
def test_at_the_server(order: str) -> None:
    fold = Fold(ENTRY, {"arrays": LIKE, "control": LIKE}, {c: [c] for c in order}, 1)
    for client in order:
        content = wire.reply_content(wire.NodeReply([client], {}, upload=upload(client)))
        fold.take(Reply(content, client))  # type: ignore[arg-type]
    done = fold.finish(late="", lr=0.1, trainable=("w",))
    assert [q.client for q in done.quarantined] == ["b"]
    assert done.reduced is not None
    assert done.reduced.clients == ("a", "c")
    assert done.reduced.arrays["arrays"]["w"].tolist() == [3.0]  # (2 + 4) / 2
    assert done.reduced.arrays["control"]["w"].tolist() == [4.0]  # (3 + 5) / 2


@pytest.mark.parametrize(
    ("reason", "got"),
    [
        (" \n\t ", "error code 4"),
        ("", "error code 4"),
        (None, "error code 4"),
        (" why\n", "why"),
        ("\x00", "?"),
    ],
)
def test_a_blank_reason_of_an_error_is_no_empty_word(reason: str | None, got: str) -> None:
    reply = Reply(RecordDict(), "a")
    reply.has_error = lambda: True  # type: ignore[method-assign]
    reply.error = type("Error", (), {"code": 4, "reason": reason})  # type: ignore[attr-defined]
    fold = Fold(ENTRY, {"arrays": LIKE, "control": LIKE}, {"a": ["a"]}, 1)
    fold.take(reply)  # type: ignore[arg-type]
    assert [q.got for q in fold.quarantined] == [got]


@pytest.mark.parametrize("error", [ValueError(), ValueError("  \n")])
def test_a_blank_exception_is_named_by_its_kind(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Fold, *args: object) -> None:
        raise error

    monkeypatch.setattr(Fold, "_checked", fail)
    fold = Fold(ENTRY, {"arrays": LIKE, "control": LIKE}, {"a": ["a"]}, 1)
    fold.take(Reply(RecordDict(), "a"))  # type: ignore[arg-type]
    assert [q.got for q in fold.quarantined] == ["ValueError"]


@pytest.mark.parametrize("carry", ["partial", "each"])
@pytest.mark.parametrize("order", ["abc", "acb"])
def test_on_the_node(order: str, carry: Literal["partial", "each"]) -> None:
    entry = replace(ENTRY, up=tuple(replace(r, carry=carry) for r in FIELDS))
    merge = Merge(FoldPlan(entry, {"arrays": LIKE, "control": LIKE}))
    for client in order:
        if client == "b":
            with pytest.raises(FieldError, match="diverged") as caught:
                merge.add(client, upload(client))
            merge.fail(client, 1, caught.value)
        else:
            merge.add(client, upload(client))
    reply = wire.read_reply(wire.reply_content(merge.reply()), list(order), 1)
    parts = {"arrays": {"high", "low"} if carry == "partial" else {"a", "c"}}
    assert {n: set(p) for n, p in reply.partials.items()} == parts | {"control": parts["arrays"]}
    fold = Fold(entry, {"arrays": LIKE, "control": LIKE}, {"1": list(order)}, 1)
    fold.take(Reply(wire.reply_content(reply), "1"))  # type: ignore[arg-type]
    done = fold.finish(late="", lr=0.1, trainable=("w",))
    assert done.reduced is not None
    assert done.reduced.arrays["arrays"]["w"].tolist() == [3.0]
    assert done.reduced.arrays["control"]["w"].tolist() == [4.0]


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_how_a_record_is_carried_changes_no_bit(reduce: Literal["mean", "sum"]) -> None:
    rng = np.random.default_rng(1)
    like = {"w": np.zeros(50, np.float32), "seen": np.zeros((), np.int64)}
    models = {
        c: {"w": rng.normal(0, 10.0**k, 50).astype(np.float32), "seen": np.array(k)}
        for k, c in enumerate("abcd")
    }
    results = []
    for carry in ("partial", "each"):
        entry = replace(ENTRY, up=(replace(FIELDS[0], reduce=reduce, carry=carry),))
        fold = Fold(entry, {"arrays": like}, {"1": ["a", "b", "c"], "2": ["d"]}, 1)
        for message_id, clients in (("1", "abc"), ("2", "d")):
            merge = Merge(FoldPlan(entry, {"arrays": like}, alone=len(clients) == 1))
            for k, c in enumerate(clients):
                merge.add(c, wire.ClientUpdate({"arrays": models[c]}, {"num-examples": 3 + k}))
            fold.take(Reply(wire.reply_content(merge.reply()), message_id))  # type: ignore[arg-type]
        done = fold.finish(late="", lr=0.1, trainable=("w",))
        assert done.quarantined == []
        assert done.reduced is not None
        results.append(sha256(done.reduced.arrays["arrays"]))
    assert results[0] == results[1]


def test_a_node_reduces_what_it_carries_one_by_one_when_it_is_one_client() -> None:
    entry = replace(ENTRY, up=(replace(FIELDS[0], carry="each"),))
    merge = Merge(FoldPlan(entry, {"arrays": LIKE}))
    for client in "ac":
        merge.add(
            client,
            wire.ClientUpdate(
                {"arrays": {"w": np.array([VALUES[client][0]], np.float32)}}, {"num-examples": 1}
            ),
        )
    upload = merge.as_one_client().upload
    assert upload is not None
    assert upload.arrays["arrays"]["w"].tolist() == [3.0]
