"""Records of many arrays as one: what comes out is what went in, and a lie is refused by name."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from task.errors import FieldError
from task.wire import messages as wire
from task.wire import packing
from task.wire.packing import FORM, is_packed, pack, packed, unpack, unpacked
from tests.support.records import MODEL, through


def same(a: ArrayRecord, b: ArrayRecord) -> bool:
    """Return whether names, order, dtypes, shapes, forms and bytes are the same."""
    each = [[(name, x.dtype, x.shape, x.stype, x.data) for name, x in record.items()] for record in (a, b)]
    return each[0] == each[1]


def test_what_comes_out_is_what_went_in() -> None:
    record = wire.pack_arrays(MODEL | {"": np.zeros((0, 3)), "z/\n": np.array(True), "a": np.arange(3)})
    once = pack(record)
    assert len(once) == 1
    content = through(RecordDict({"arrays": once}))
    assert same(unpack("arrays", content["arrays"]), record)  # type: ignore[arg-type]


def test_it_does_not_judge_the_arrays_whose_check_comes_later() -> None:
    lies = ArrayRecord({"a": Array("float33", (-1,), "pickle", b"x"), "b": Array("", (), "", b"")})
    assert same(unpack("arrays", pack(lies)), lies)


@pytest.mark.parametrize("names", [[], ["a"]])
def test_few_arrays_go_as_they_are(names: list[str]) -> None:
    record = wire.pack_arrays({n: np.zeros(3) for n in names})
    assert pack(record) is record
    assert unpack("arrays", record) is record


def test_large_records_go_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    record = wire.pack_arrays({"a": np.zeros(3), "b": np.zeros(3)})
    assert pack(record) is not record
    monkeypatch.setattr(packing, "MOST_INDEX", 10)
    assert pack(record) is record
    monkeypatch.undo()
    monkeypatch.setattr(packing, "MOST_BYTES", 100)
    sent = pack(record)
    assert same(unpack("arrays", sent), record)
    assert all(np.shares_memory(sent[n].held, record[n].held) for n in record)  # type: ignore[attr-defined]


def test_what_was_sent_is_kept_with_the_copy_that_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MOST_BYTES", 100)
    record = wire.pack_arrays({"a": np.zeros(300), "b": np.ones(300)})
    sent = pack(record)
    chunks = {id(c) for a in sent.values() for c in a.children.values()}
    assert chunks == {id(c) for a in sent.values() for c in a.children.values()}  # Flower keeps them
    assert not any("_chunks" in vars(a) for a in record.values())


def test_a_content_keeps_its_other_records_and_packs_what_goes_to_many_once() -> None:
    record, done = wire.pack_arrays(MODEL), {}  # type: ignore[var-annotated]
    config, metrics = ConfigRecord({"round": 1}), MetricRecord({"n": 2})
    content = RecordDict({"arrays": record, "again": record, "config": config, "metrics": metrics})
    sent, sent_too = packed(content, done), packed(content, done)
    assert sent["arrays"] is sent["again"] is sent_too["arrays"]
    assert list(sent) == list(content)
    assert is_packed(sent)
    assert not is_packed(content)
    assert not is_packed(RecordDict({"arrays": ArrayRecord(), "config": config}))
    back = unpacked(sent)
    assert list(back) == list(content)
    assert same(back["arrays"], record)  # type: ignore[arg-type]
    assert (back["config"], back["metrics"]) == (config, metrics)


def made(index: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = index if isinstance(index, bytes) else json.dumps(index).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


ROW = ["a", "float32", [1], "numpy.ndarray", 2]
LIES = {
    "nothing": b"",
    "no index": b"\0" * 8,
    "half a length": b"\1\0",
    "an index of 16 EiB": b"\xff" * 8 + b"[]",
    "an index longer than the record": made([], length=3),
    "no JSON": made(b"[[}"),
    "no UTF-8": made(b"\xff\xfe\xff"),
    "nested": made(b"[" * 100_000),
    "a number of many digits": made(b"9" * 10_000),
    "no list": made({"a": 1}),
    "no rows": made([1, 2]),
    "a short row": made([ROW[:4]]),
    "a name of another kind": made([[1, *ROW[1:]]]),
    "sizes of another kind": made([[*ROW[:2], [1.5], *ROW[3:]]], b"xx"),
    "no sizes": made([[*ROW[:2], 7, *ROW[3:]]], b"xx"),
    "less than nothing": made([[*ROW[:4], -1]]),
    "more than there is": made([[*ROW[:4], 2**62]], b"xx"),
    "bytes of no array": made([ROW], b"xxx"),
    "a name twice": made([ROW, ROW], b"xxxx"),
}


@pytest.mark.parametrize("kind", LIES)
def test_lies_are_refused(kind: str) -> None:
    record = ArrayRecord({"": Array("uint8", (1,), FORM, LIES[kind])})
    with pytest.raises(FieldError, match=re.escape("packed record")) as refused:
        unpack("arrays", record)
    assert refused.value.field == "arrays"
    assert len(str(refused.value)) < 400


def test_a_packed_array_beside_others_is_refused() -> None:
    packed_one = next(iter(pack(wire.pack_arrays(MODEL)).values()))
    with pytest.raises(FieldError, match="2 arrays"):
        unpack("arrays", ArrayRecord({"": packed_one, "b": packed_one}))


def test_an_index_of_many_arrays_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_index", lambda *_: pytest.fail("was read"))
    text = b"[" + b"0," * packing.MOST_INDEX + b"0]"
    with pytest.raises(FieldError, match="an index of"):
        unpack("arrays", ArrayRecord({"": Array("uint8", (1,), FORM, made(text))}))
