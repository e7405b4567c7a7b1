"""8-bit codes of a model's arrays, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from task.numerics.int8 import quantised, restored


def test_codes_by_hand() -> None:
    w = np.array([[127.0, -63.4], [0.0, 0.0], [-2.54, 0.009]], np.float32)
    found = quantised({"w": w, "b": np.ones(3, np.float32), "steps": np.array([[7]], np.int64)})
    assert found["w"].tolist() == [[127, -63], [0, 0], [-127, 0]]  # 0.009 is below half of 0.02
    assert found["w.scale"] == pytest.approx([1.0, 1.0, 0.02])
    assert (found["w"].dtype, found["w.scale"].dtype) == (np.int8, np.float32)
    back = restored(found)
    assert list(back) == ["w", "b", "steps"]
    assert back["w"] == pytest.approx(np.array([[127.0, -63.0], [0.0, 0.0], [-2.54, 0.0]]))
    assert back["w"].dtype == np.float32
    assert back["steps"].dtype == np.int64


@pytest.mark.parametrize("shape", [(10, 784), (6, 3, 5, 5), (3, 0), (0, 4)])
def test_restored_arrays_have_the_same_codes_and_are_off_by_half_a_step(shape: tuple[int, ...]) -> None:
    w = np.random.default_rng(1).standard_normal(shape).astype(np.float32) ** 3
    small = quantised({"w": w})
    back = restored(small)
    assert (quantised(back)["w"] == small["w"]).all()
    if w.size:
        step = small["w.scale"].reshape(-1, *[1] * (w.ndim - 1))
        assert (np.abs(back["w"] - w) <= 0.5001 * step).all()
        assert (np.abs(small["w"]).reshape(len(w), -1).max(1) == 127).all()


def test_scales_that_do_not_fit_are_refused() -> None:
    codes = np.zeros((3, 2), np.int8)
    for scale in (np.ones(2, np.float32), np.ones(3, np.float64), np.ones((3, 1), np.float32)):
        with pytest.raises(ValueError, match=r"w: expected int8 codes and a float32 scale"):
            restored({"w": codes, "w.scale": scale})
    with pytest.raises(ValueError, match="got float32"):
        restored({"w": codes.astype(np.float32), "w.scale": np.ones(3, np.float32)})
