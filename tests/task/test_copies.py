"""How many copies of a model are there where it is received, summed and sent: tracemalloc counts bytes."""

from __future__ import annotations

import gc
import hashlib
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import Pipe
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from server_app.deploy.flower.client_task import _write
from server_app.deploy.node.message_loop import _freeing
from task.numerics import pages
from task.numerics.reduce import Mean
from task.wire import messages as wire
from task.wire.in_place import InPlace, give_bytes

TENSORS, NUMBERS = 8, 1 << 17
MODEL = TENSORS * NUMBERS * 4  # bytes
TENSOR, SMALL = NUMBERS * 4, 1 << 16


def model(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {f"{i}.weight": rng.standard_normal(NUMBERS).astype(np.float32) for i in range(TENSORS)}


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


@contextmanager
def most(more: int) -> Iterator[None]:
    """Fail if the block needs more bytes, above those that are there when it begins."""
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    yield
    assert tracemalloc.get_traced_memory()[1] - before <= more + SMALL


def test_an_order_that_a_node_reads_is_there_once() -> None:
    record = ArrayRecord({name: Array(a) for name, a in model().items()})
    before = tracemalloc.get_traced_memory()[0]
    with most(TENSOR):  # the copy of one tensor, until its bytes are gone
        arrays = wire.taken(record)
    assert tracemalloc.get_traced_memory()[0] - before <= SMALL
    assert {n: a.tobytes() for n, a in arrays.items()} == {n: a.tobytes() for n, a in model().items()}
    assert all(a.flags.writeable for a in arrays.values())
    assert {n: a.data for n, a in record.items()} == {n: Array(a).data for n, a in model().items()}


def test_the_sums_of_a_node_become_its_reply_array_by_array() -> None:
    sums = Mean(model())
    for seed in range(3):
        sums.add(model(seed), 10 + seed, str(seed))
    expected = {part: {n: a.tobytes() for n, a in of.items()} for part, of in sums.partial().items()}
    with most(2 * TENSOR):  # 8 bytes of a number, and the two parts of one array besides
        found = sums.partial(last=True)
    assert {part: {n: a.tobytes() for n, a in of.items()} for part, of in found.items()} == expected
    del sums
    content = RecordDict({f"arrays.{part}": wire.pack_arrays(of) for part, of in found.items()})
    del found
    with most(TENSOR):
        give_bytes(content)
    records = content.array_records
    sent = {part: {n: a.numpy().tobytes() for n, a in records[f"arrays.{part}"].items()} for part in expected}
    assert sent == expected
    assert not any(isinstance(a, InPlace) for record in records.values() for a in record.values())


def test_a_reply_is_hashed_once_and_gone_from_its_task_as_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    order = Message(RecordDict(), 1, "train", ttl=60.0, group_id="1")
    order.metadata.__dict__["_message_id"] = "order"
    expected, content = Array(model()["0.weight"]).data, RecordDict({"arrays": wire.pack_arrays(model())})
    reply, hashed, left, pieces = Message(content, reply_to=order), [], [], dict[str, bytes]()
    del content
    sha256 = hashlib.sha256

    def counting(data: bytes = b"") -> Any:
        hashed.append(len(data))
        return sha256(data)

    monkeypatch.setattr(hashlib, "sha256", counting)
    ours, theirs = Pipe()

    def read() -> None:
        for _ in range(4):
            ours.recv_bytes()  # head, tree, state and remarks
        while piece := ours.recv_bytes():
            left.append(tracemalloc.get_traced_memory()[0] - before)
            if expected in piece or len(piece) < 1000:
                pieces[piece[:64].decode()] = piece[64:]

    with ThreadPoolExecutor(1) as pool:
        before = tracemalloc.get_traced_memory()[0]
        reading = pool.submit(read)
        _write(theirs, reply, b"", b"")
        reading.result()
    assert sum(size for size in hashed if size > 1000) <= MODEL + TENSORS * 1000
    assert min(left) <= -MODEL + 3 * TENSOR  # one tensor, and the copies of it on the way
    assert any(expected in piece for piece in pieces.values())
    assert all(sha256(piece).hexdigest() == name for name, piece in pieces.items())


def test_what_a_task_has_read_is_gone_from_its_node() -> None:
    objects = [(f"{i:064}", bytes(TENSOR)) for i in range(TENSORS)]
    names = [name for name, _ in objects]
    with most(2 * TENSOR):  # a piece, and the object that it is made of
        reader = _freeing(objects)
        sizes = [(piece[:64].decode(), len(piece)) for piece in reader]
    assert sizes == [(name, 64 + TENSOR) for name in names]
    assert objects == []


def test_what_a_large_transfer_left_in_cycles_is_free() -> None:
    def transfer() -> None:
        response: list[object] = [bytes(MODEL)]
        response.append(response)  # as that of an HTTP client

    gc.disable()
    try:
        before = tracemalloc.get_traced_memory()[0]
        transfer()
        pages.reclaim(pages.LARGE - 1)
        assert tracemalloc.get_traced_memory()[0] - before >= MODEL
        pages.reclaim(pages.LARGE)
        assert tracemalloc.get_traced_memory()[0] - before <= SMALL
    finally:
        gc.enable()
