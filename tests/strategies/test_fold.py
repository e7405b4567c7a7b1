"""Replies with several array records: of one client all count or none, at the server and on the node."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import RecordDict

from client_app.app import _Merge
from strategies.engine.fold import Fold
from task.errors import FieldError
from task.spec.algorithms import ALGORITHMS
from task.spec.entry import ArrayField
from task.wire import messages as wire

FIELDS = (ArrayField("arrays", "state", "model"), ArrayField("control", "state", "variate"))
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
    """As much of a message as a fold looks at."""

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


@pytest.mark.parametrize("order", ["abc", "acb"])
def test_on_the_node(order: str) -> None:
    merge = _Merge(ENTRY, {"state": LIKE, "trainable": LIKE})
    for client in order:
        if client == "b":
            with pytest.raises(FieldError, match="diverged") as caught:
                merge.add(client, upload(client))
            merge.fail(client, 1, caught.value)
        else:
            merge.add(client, upload(client))
    reply = wire.read_reply(wire.reply_content(merge.reply()), list(order), 1)
    fold = Fold(ENTRY, {"arrays": LIKE, "control": LIKE}, {"1": list(order)}, 1)
    fold.take(Reply(wire.reply_content(reply), "1"))  # type: ignore[arg-type]
    done = fold.finish(late="", lr=0.1, trainable=("w",))
    assert done.reduced is not None
    assert done.reduced.arrays["arrays"]["w"].tolist() == [3.0]
    assert done.reduced.arrays["control"]["w"].tolist() == [4.0]
