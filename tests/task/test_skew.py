"""Feature skew: each kind by hand, the same whoever reads a row, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from task.datasets import load_owned
from task.datasets.skew import Skew, load_partitioned
from task.errors import ConfigError
from task.resolve.read import read_config
from tests.task.helpers import load

X = torch.tensor([[0.0, 0.25], [0.5, 1.0]]).view(1, 1, 2, 2)


def skewed(kind: str, strength: float, client: int, clients: int = 4) -> list[list[float]]:
    """Return X as a client of so many has it."""
    skew = Skew(kind, strength, clients, 1, np.array([client]))
    return skew(X.clone(), slice(0, 1))[0, 0].tolist()


def test_each_kind_by_hand() -> None:
    assert skewed("rotate", 0, 0) == [[0.0, 0.25], [0.5, 1.0]]
    assert skewed("rotate", 0, 1) == [[0.25, 1.0], [0.0, 0.5]]  # counterclockwise: the right column on top
    assert skewed("rotate", 0, 2) == skewed("rotate", 0, 6, 8) == [[1.0, 0.5], [0.25, 0.0]]
    assert skewed("rotate", 0, 3) == [[0.5, 0.0], [1.0, 0.25]]
    assert skewed("invert", 0, 2) == [[0.0, 0.25], [0.5, 1.0]]
    assert skewed("invert", 0, 3) == [[1.0, 0.75], [0.5, 0.0]]
    assert skewed("contrast", 0.5, 0) == [[0.0, 0.25], [0.5, 1.0]]
    assert skewed("contrast", 0.5, 1) == [[0.25, 0.375], [0.5, 0.75]]
    assert skewed("background", 0.5, 1) == [[0.25, 0.25], [0.5, 1.0]]  # 0.5 * 2 / 4 where x < 0.1
    assert skewed("background", 0.5, 3) == [[0.5, 0.25], [0.5, 1.0]]


def test_the_noise_has_its_deviation_is_clipped_and_depends_on_row_and_seed_alone() -> None:
    grey = torch.full((200, 1, 8, 8), 0.5)
    of = Skew("noise", 0.2, 4, 1, np.array([0, 3] * 100))
    found = of(grey, slice(0, 200)) - 0.5
    assert float(found[0::2].std()) == pytest.approx(0.2 / 4, rel=0.03)
    assert float(found[1::2].std()) == pytest.approx(0.2, rel=0.03)  # 2.5 deviations: hardly clipped
    rows = np.array([7, 150, 3])
    assert torch.equal(of(grey[:3], rows), of(grey, slice(0, 200))[rows])
    assert not torch.equal(Skew("noise", 0.2, 4, 2, of.client_of)(grey, slice(0, 200)) - 0.5, found)
    white = of(torch.ones(200, 1, 8, 8), slice(0, 200))
    assert float(white.max()) == 1.0
    assert float(white.min()) < 0.9


def test_styles_are_those_of_the_other_kinds() -> None:
    assert [skewed("styles", 0, k, 10) for k in (0, 5)] == [X[0, 0].tolist()] * 2
    assert skewed("styles", 0, 6, 10) == skewed("invert", 0, 1)
    assert skewed("styles", 0, 2, 5) == skewed("rotate", 0, 1)
    assert skewed("styles", 0, 4, 5) == skewed("contrast", 0.5, 1)
    assert skewed("styles", 0, 3, 5) == skewed("noise", 0.2, 3, 4)  # all of its strength


def test_a_client_has_its_skew_in_training_and_test_once_and_the_global_test_set_has_all() -> None:
    config = read_config({"feature-skew": "invert", "num-clients": 4, "local-test-fraction": 0.2})
    plain, (data, clients) = load(dataset="digits"), load_partitioned(config)
    for k in range(4):
        for rows in (clients.train(k), clients.test(k)):
            x = plain.inputs(rows)
            assert torch.equal(data.inputs(rows), 1 - x if k % 2 else x)
    assert torch.equal(data.targets(slice(0, 9)), plain.targets(slice(0, 9)))
    test, before = data.inputs(data.test_rows), plain.inputs(plain.test_rows)
    changed = [not torch.equal(a, b) for a, b in zip(test, before, strict=True)]
    assert sum(changed) == pytest.approx(len(test) / 2, abs=1)
    of = data.skew
    assert of is not None
    assert np.bincount(of.client_of[data.test_rows]).tolist() == [89, 89, 89, 88]
    again, _ = load_partitioned(read_config({"feature-skew": "invert", "num-clients": 4, "data-seed": 9}))
    assert again.skew is not None
    assert (again.skew.client_of[data.test_rows] != of.client_of[data.test_rows]).any()


@pytest.mark.parametrize("kind", ["none", "invert", "rotate", "noise", "contrast", "styles"])
def test_an_example_is_the_same_whatever_is_read_with_it(kind: str) -> None:
    keys = {"feature-skew": kind, "num-clients": 5, "drift.kind": "rotate", "drift.round": 2}
    data = load_partitioned(read_config(keys))[0].at(3)
    rows = np.random.default_rng(1).permutation(1200)
    together = data.inputs(rows)
    for few in (slice(0, 1), slice(3, 40), slice(700, 1200)):
        assert torch.equal(together[few], data.inputs(rows[few]))


def test_without_the_key_nothing_changes() -> None:
    assert load_partitioned(read_config({}))[0].skew is None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"dataset": "synthetic", "num-clients": 30, "partition": "natural"}, "changes images"),
        ({"partition": "bootstrap", "num-clients": 3}, "do not overlap"),
    ],
)
def test_what_cannot_be_skewed_is_refused(keys: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"feature-skew.*{message}"):
        load_partitioned(read_config({"feature-skew": "invert", **keys}))


def test_own_data_and_a_strength_that_nothing_reads_are_refused() -> None:
    config = read_config({"dataset": "npz", "feature-skew": "invert", "num-classes": 2})
    with pytest.raises(ConfigError, match=r"feature-skew.*brings its own data"):
        load_owned(config.data, "a.npz", "ward-1", 1)
    with pytest.raises(ConfigError, match=r"feature-skew-strength.*feature-skew one of"):
        read_config({"feature-skew": "invert", "feature-skew-strength": 0.3})
