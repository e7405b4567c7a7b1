"""FCUBE: who has which octants, and what the classes are."""

from __future__ import annotations

import numpy as np
import pytest

from task.datasets.generated import PARTIES, POINTS, TEST_POINTS
from tests.task.helpers import load


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))


def test_each_party_has_two_opposite_octants_and_both_classes_in_equal_parts():
    data = load(1, dataset="fcube", partition="natural", num_clients=0)
    found = []
    for party in range(PARTIES):
        rows = data.owners.train(party)
        signs = {tuple(row) for row in np.sign(data.x[rows]).astype(int).tolist()}
        assert len(signs) == 2
        one, other = signs
        assert tuple(-sign for sign in one) == other
        assert np.bincount(data.y[rows]).tolist() == [POINTS // 2, POINTS // 2]
        assert len(data.owners.test(party)) == 0
        found += signs
    assert len(set(found)) == 8  # no octant has two owners


def test_the_class_is_the_sign_of_the_first_coordinate_and_test_points_are_everywhere():
    data = load(1, dataset="fcube", partition="natural", num_clients=0)
    assert (data.num_train, len(data.y)) == (PARTIES * POINTS, PARTIES * POINTS + TEST_POINTS)
    np.testing.assert_array_equal(data.y, data.x[:, 0] <= 0)
    test = data.x[data.num_train :]
    assert len({tuple(row) for row in np.sign(test).astype(int).tolist()}) == 8
    assert np.abs(test).max() <= 1
    np.testing.assert_allclose(test.mean(0), 0, atol=0.06)  # 1 / sqrt(3 * 1000) is a deviation of 0.018
    np.testing.assert_allclose(test.var(0), 1 / 3, rtol=0.1)


def test_the_seed_decides():
    prints = [load(seed, dataset="fcube", num_clients=4).fingerprint for seed in (1, 2, 1)]
    assert prints[0] == prints[2] != prints[1]
