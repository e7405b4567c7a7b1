import numpy as np
import pytest

from task.config.sections import SyntheticConfig
from task.datasets import base, generated
from tests.task.helpers import load


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))


def request(**keys):
    return base.Request(name="synthetic", data_dir=None, cache_dir=None, **keys)


def test_synthetic_follows_the_published_law():
    knobs = SyntheticConfig(alpha=1.0, beta=1.0)
    data = load(seed=3, synthetic=knobs, dataset="synthetic", num_clients=0)
    drawn = generated.devices(request(seed=3, synthetic=knobs))
    assert len(drawn) == len(data.owners.names) == 30
    assert len(set(data.owners.names)) == 30
    for k, device in enumerate(drawn):
        train, test = data.owners.train(k), data.owners.test(k)
        assert len(device.y) >= 50
        assert len(train) == int(0.9 * len(device.y))
        assert train.max() < data.num_train <= test.min()
        x = data.x[np.concatenate([train, test])].astype(np.float64)
        labels = np.argmax(x @ device.weights + device.bias, axis=1)
        np.testing.assert_array_equal(labels, data.y[np.concatenate([train, test])])
    rows = np.concatenate([data.owners.train_rows, data.owners.test_rows])
    np.testing.assert_array_equal(np.sort(rows), np.arange(len(data.y)))
    assert data.inputs(slice(0, 2)).shape == (2, 60)


def test_synthetic_moments():
    """With many devices: log(n_k - 50) ~ N(4, 2); within a device Var x_j = j^-1.2; alpha, beta are sds."""
    drawn = generated.devices(request(synthetic=SyntheticConfig(alpha=3.0, beta=0.5), num_clients=400))
    logs = np.log(np.array([len(d.y) for d in drawn]) - 50 + 0.5)
    assert logs.mean() == pytest.approx(4.0, abs=0.3)
    assert logs.std() == pytest.approx(2.0, abs=0.3)
    large = max(drawn, key=lambda d: len(d.y))
    np.testing.assert_allclose(large.x.var(0), np.arange(1, 61) ** -1.2, rtol=0.2)
    models = np.array([d.weights.mean() for d in drawn])
    assert models.std() == pytest.approx(3.0, rel=0.15)  # not sqrt(3)
    centers = np.array([d.x.mean() for d in drawn])
    assert centers.std() == pytest.approx(np.sqrt(0.25 + 1 / 60), rel=0.15)


def test_the_spread_of_sizes_is_a_knob():
    narrow = SyntheticConfig(size_spread=0.8)
    drawn = generated.devices(request(synthetic=narrow, num_clients=400))
    logs = np.log(np.array([len(d.y) for d in drawn]) - 49.5)
    assert logs.mean() == pytest.approx(4.0, abs=0.15)
    assert logs.std() == pytest.approx(0.8, abs=0.1)
    keys = [generated.locate_synthetic(request(synthetic=k)).keys for k in (narrow, SyntheticConfig())]
    assert keys[0] != keys[1]
    assert "size_spread" not in keys[1]  # what was cached before the knob was there stays valid


def test_synthetic_iid_shares_one_model():
    first, *others = generated.devices(request(synthetic=SyntheticConfig(iid=True)))
    assert all(np.array_equal(d.weights, first.weights) for d in others)
    everything = np.concatenate([d.x for d in (first, *others)])
    np.testing.assert_allclose(everything.mean(0), 0, atol=0.1)


def test_synthetic_depends_on_seed_and_knobs():
    def fingerprint(seed, **knobs):
        return load(seed, SyntheticConfig(**knobs), dataset="synthetic", num_clients=3).fingerprint

    prints = [fingerprint(1), fingerprint(2), fingerprint(1, beta=0.5), fingerprint(1, iid=True)]
    assert len(set(prints)) == 4
    assert fingerprint(1) == prints[0]


def test_synthetic_alpha_shifts_the_models_but_not_the_labels():
    """Adding u_k to all of W_k and b_k adds u_k (sum(x) + 1) to every class's score alike."""
    near, far = (generated.devices(request(synthetic=SyntheticConfig(alpha=a))) for a in (0.0, 1.0))
    assert not any(np.allclose(a.weights, b.weights) for a, b in zip(near, far, strict=True))
    shift = far[0].weights - near[0].weights
    np.testing.assert_allclose(shift, shift[0, 0])
    assert np.mean(np.concatenate([a.y == b.y for a, b in zip(near, far, strict=True)])) > 0.999
