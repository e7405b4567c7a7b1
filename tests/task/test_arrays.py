"""Named arrays: what a model is outside of torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from task.numerics.arrays import blocks, only, presumed_trainable, sha256, state_of, trainable_names
from tests.support.models import Noisy


def test_the_state_is_parameters_and_buffers_in_the_models_order() -> None:
    model = Noisy()
    state = state_of(model)
    assert list(state) == list(model.state_dict())
    assert state["norm.num_batches_tracked"].shape == ()
    assert state["norm.num_batches_tracked"].dtype == np.int64
    assert {a.dtype for n, a in state.items() if "tracked" not in n} == {np.dtype(np.float32)}


def test_presumed_parameters_are_floating_arrays_but_no_running_statistics() -> None:
    model = Noisy()
    for p in model.parameters():
        p.requires_grad_(True)
    assert set(presumed_trainable(state_of(model))) == set(trainable_names(model))
    assert presumed_trainable({"running_var": np.ones(1), "running_variance": np.ones(1)}) == (
        "running_variance",
    )


def test_blocks_cover_every_element_once() -> None:
    for size in (0, 1, 7, 8, 9):
        assert [i for block in blocks(size, 4) for i in range(size)[block]] == list(range(size))
    assert [b.stop - b.start for b in blocks(9, 4)] == [4, 4, 1]


def test_the_state_is_a_copy() -> None:
    model = Noisy()
    state = state_of(model)
    before = state["out.bias"].copy()
    with torch.no_grad():
        model.out.bias.add_(1.0)
    assert np.array_equal(state["out.bias"], before)
    state["out.bias"][:] = 9.0
    assert not (model.out.bias == 9.0).any()


def test_trainable_are_the_parameters_that_want_a_gradient() -> None:
    assert trainable_names(Noisy()) == ("norm.weight", "norm.bias", "out.weight", "out.bias")


def test_only_keeps_the_order_asked_for() -> None:
    arrays = {"a": np.zeros(1), "b": np.ones(1)}
    assert list(only(arrays, ("b", "a"))) == ["b", "a"]
    with pytest.raises(KeyError):
        only(arrays, ("c",))


A = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    "other",
    [
        {"w": A.reshape(3, 2)},
        {"w": A.astype(np.float64)},
        {"w": A.view(np.int32)},
        {"w": A.astype(">f4")},
        {"v": A},
        {"w": A, "v": A[:0]},
        {"w": np.where(A == 0, np.float32(-0.0), A)},
        {},
    ],
)
def test_the_digest_sees_names_dtypes_shapes_and_bits(other: dict[str, np.ndarray]) -> None:
    assert sha256(other) != sha256({"w": A})


def test_the_digest_does_not_see_order_or_memory_layout() -> None:
    b = np.array(3, np.int64)
    assert sha256({"w": A, "b": b}) == sha256({"b": b, "w": A})
    assert sha256({"w": np.asfortranarray(A)}) == sha256({"w": A})
    assert sha256({"w": np.repeat(A, 2, axis=1)[:, ::2]}) == sha256({"w": A})


def test_the_digest_is_that_of_the_written_form() -> None:
    import hashlib

    want = hashlib.sha256(b"b|<i8|()|" + (3).to_bytes(8, "little") + b"w|<f4|(2, 3)|" + A.tobytes())
    assert sha256({"w": A, "b": np.array(3, np.int64)}) == want.hexdigest()
