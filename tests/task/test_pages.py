"""Arrays that stay where they are: shared pages, arrays of messages, models that lend and borrow memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import nn

from server_app.engines.handover import receive, send
from task.errors import FieldError
from task.numerics import pages
from task.numerics.reduce import UNITS, Mean, Sum
from task.numerics.tensors import compute_with, lent_by, load_into
from task.wire import messages as wire
from task.wire.in_place import HeldSum, InPlace, record_bytes, record_of

SIZE = pages.LEAST // 4 + 5


@pytest.fixture
def shared() -> Iterator[None]:
    if not hasattr(os, "memfd_create"):
        pytest.skip("the system has no files without a name")
    before = pages.in_use(use=True)
    yield
    pages.in_use(use=before)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(
    "a",
    [
        np.zeros(()),
        np.arange(6.0).reshape(2, 3),
        np.zeros((0, 3), np.float32),
        np.arange(12).reshape(3, 4).T,
        np.ones((3, 1, 2), np.float16),
        np.zeros(7, bool),
    ],
)
def test_an_array_in_place_is_flowers_own_to_the_byte(a: np.ndarray) -> None:
    ours, theirs = InPlace(a), Array(np.asarray(a, order="C"))
    assert (ours.data, ours.dtype, ours.shape, ours.stype) == (
        theirs.data, theirs.dtype, theirs.shape, theirs.stype,
    )  # fmt: skip
    assert ours.wire_bytes == len(theirs.data)
    assert ours.object_id == theirs.object_id  # what Flower sends
    assert record_bytes(record_of({"w": ours})) == ArrayRecord({"w": theirs}).count_bytes()


def test_small_arrays_and_other_processes_have_no_pages(shared: None) -> None:
    assert pages.place_of(pages.zeros({"w": ((3,), np.dtype(np.float32))})["w"]) is None
    pages.in_use(use=False)
    assert pages.place_of(pages.zeros({"w": ((SIZE,), np.dtype(np.float32))})["w"]) is None


def test_arrays_in_pages_are_aligned_as_pytorch_aligns_them(shared: None) -> None:
    found = pages.copied({"a": np.arange(3, dtype=np.float32), "b": np.arange(SIZE, dtype=np.float32)})
    for name, a in found.items():
        assert a.__array_interface__["data"][0] % pages.ALIGNED == 0, name
    assert found["b"][-1] == SIZE - 1


def test_a_message_is_handed_over_without_a_copy(shared: None) -> None:
    """What the reader's side writes is its own, or, of a sum that it takes over, the same memory."""
    before = descriptors()
    a = pages.copied({"w": np.arange(SIZE, dtype=np.float32)})["w"]
    content = RecordDict({"arrays": wire.pack_arrays({"w": a, "n": np.array(3)})})
    here, there = Pipe()
    send(here, content)
    got = wire.taken(receive(there, ours=False)["arrays"])
    a[0] = 7.0  # the sender's pages are the reader's
    assert (got["w"][0], got["n"]) == (7.0, 3)
    got["w"][0] = 9.0
    assert a[0] == 7.0
    send(here, content)
    taken = receive(there, ours=True)["arrays"]["w"].held
    taken[1] = -1.0
    assert a[1] == -1.0
    del a, content, got, taken
    here.close()
    there.close()
    assert descriptors() == before


def test_a_large_array_in_no_pages_is_moved_into_some_once(shared: None) -> None:
    content = RecordDict({"arrays": wire.pack_arrays({"w": np.arange(SIZE, dtype=np.float32)})})
    here, there = Pipe()
    places = []
    for _ in range(2):
        send(here, content)
        assert receive(there, ours=False)["arrays"]["w"].held[5] == 5.0
        places.append(content["arrays"]["w"].held.__array_interface__["data"][0])  # type: ignore[index]
    assert places[0] == places[1]


def test_a_held_sum_is_the_partial_of_its_clients_and_counts_as_that() -> None:
    rng = np.random.default_rng(3)
    models = [{"w": rng.normal(0, 0.1, 500).astype(np.float32), "n": np.array(k)} for k in range(4)]
    whole, parts = Mean(models[0]), [Mean(models[0]) for _ in range(2)]
    for k, model in enumerate(models):
        whole.add(model, 20 + k, str(k))
        parts[k % 2].add(model, 20 + k, str(k))
    merged = Mean(models[0])
    for part in parts:
        partial, held = part.partial(), part.held()
        assert held is not None
        two = sum(record_bytes(wire.pack_arrays(partial[name])) for name in ("high", "low"))
        one = record_bytes(wire.pack_arrays(held["high"])) + record_bytes(wire.pack_sums(held[UNITS]))
        assert one == two
        assert merged.check_merge(held, 2) == merged.check_merge(partial, 2)
        merged.merge(held, part.weight, 2, merged.check_merge(held, 2))
    for name, a in whole.result().items():
        assert a.tobytes() == merged.result()[name].tobytes()


@pytest.mark.parametrize("value", [3.0, 0.9])
def test_a_sum_that_has_more_than_two_int32_a_number_is_not_held(value: float) -> None:
    """3 is above 1; 0.9 * 3000 is above 2^11, so that its high part is an int64."""
    total = Sum({"w": np.zeros(1, np.float32)})
    total.add({"w": np.array([value], np.float32)}, 3000, "a")
    assert total.held() is None


def test_a_held_sum_from_another_machine_is_refused() -> None:
    """Some checks need both of its parts; what is read from the wire is never a `HeldSum`."""
    units = {"w": np.zeros(3, np.int64)}
    sums = {"arrays.high": wire.pack_arrays({}), "arrays.units": wire.pack_arrays(units)}
    reply = wire.reply_content(wire.NodeReply(["a", "b"], {"num-examples": [1, 1]}))
    with pytest.raises(FieldError, match="two parts, as it travels"):
        wire.read_reply(RecordDict({**reply, **sums}), ["a", "b"], 1)
    sums["arrays.units"] = record_of({"w": HeldSum(units["w"])})
    found = wire.read_reply(RecordDict({**reply, **sums}), ["a", "b"], 1)
    assert found.partials["arrays"][UNITS]["w"].size == 3


def test_lent_memory_is_not_loaded_over_while_it_is_in_use() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    start = {name: np.array(a) for name, a in lent_by(model).items()}
    first = lent_by(model)["0.weight"]
    view = first.reshape(-1)[1:]
    own = first.__array_interface__["data"][0]
    del first
    load_into(model, {name: np.asarray(a + 1) for name, a in start.items()})
    assert view.tolist() == start["0.weight"].reshape(-1)[1:].tolist()
    assert model[0].weight.data_ptr() != own
    at = model[0].weight.data_ptr()
    lent_by(model)  # and dropped
    load_into(model, start)
    assert model[0].weight.data_ptr() == at  # its memory is used again
    assert torch.equal(model[0].weight, torch.from_numpy(start["0.weight"]))


def test_a_module_computes_with_pages_and_is_loaded_elsewhere_afterwards(shared: None) -> None:
    model = nn.Linear(SIZE, 1)
    arrays = pages.copied({"weight": np.ones((1, SIZE), np.float32), "bias": np.zeros(1, np.float32)})
    compute_with(model, arrays)
    assert model.weight.data_ptr() == arrays["weight"].__array_interface__["data"][0]
    load_into(model, {"weight": np.full((1, SIZE), 2.0, np.float32), "bias": np.zeros(1, np.float32)})
    assert (arrays["weight"] == 1.0).all()
    assert float(model.weight.detach().sum()) == 2.0 * SIZE
