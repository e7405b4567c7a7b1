import gzip
import io
import subprocess
import sys
import threading
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from server_app.run.evaluate import central_evaluation
from task.config.sections import DataConfig, SyntheticConfig
from task.datasets import DATASETS, base, cache, idx, load_dataset, load_owned
from task.datasets.partition import load_partition
from task.errors import ConfigError, DataError
from task.models import build_model
from tests.task.helpers import load, write_idx, write_mnist

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch, request):
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))
    if "data_folder" not in request.fixturenames:
        monkeypatch.setenv("BOUQUET_DATA", str(tmp_path / "data"))


def no_network(*args, **kwargs):
    raise OSError("no network")


def test_registry_is_sorted_and_described():
    assert list(DATASETS) == sorted(DATASETS)
    assert {"digits", "mnist", "cifar10", "shakespeare", "synthetic", "csv"} <= set(DATASETS)
    assert all(s.description and s.source and s.model for s in DATASETS.values())
    with pytest.raises(ConfigError, match='Did you mean "mnist"'):
        load(dataset="mnits")


def test_digits_are_scaled_and_split_evenly_over_classes():
    from sklearn.datasets import load_digits

    raw, labels = load_digits(return_X_y=True)
    data = load(dataset="digits")
    assert (len(data.y), data.input_shape, data.num_classes) == (1797, (1, 8, 8), 10)
    x = data.inputs(np.arange(1797))
    assert x.dtype == torch.float32
    assert (float(x.min()), float(x.max())) == (0.0, 1.0)
    expected = np.bincount(labels) // 5
    np.testing.assert_array_equal(np.bincount(data.y[data.test_rows]), expected)
    together = np.column_stack([x.flatten(1).numpy() * 16, data.y])
    original = np.column_stack([raw, labels])
    assert sorted(map(tuple, together)) == sorted(map(tuple, original))


@pytest.mark.parametrize("zipped", [True, False])
def test_mnist_is_parsed_pixel_for_pixel(tmp_path, zipped):
    x, y = write_mnist(tmp_path / "data", zipped=zipped)
    data = load(dataset="mnist")
    assert (data.num_train, data.num_classes, data.input_shape, data.kind) == (50, 10, (1, 4, 4), "image")
    np.testing.assert_array_equal(data.x, x)
    np.testing.assert_array_equal(data.y, y)
    rows = np.array([69, 3, 3])
    expected = torch.from_numpy(x[rows].astype(np.float32))[:, None] / 255
    assert torch.equal(data.inputs(rows), expected)
    assert data.targets(rows).tolist() == [9, 3, 3]
    assert data.inputs(data.test_rows).shape == (20, 1, 4, 4)
    assert not data.x.flags.writeable


def test_emnist_is_transposed(tmp_path):
    x = np.arange(12, dtype=np.uint8).reshape(1, 3, 4)
    for part in ("train", "test"):
        stem = tmp_path / "data/EMNIST/raw" / f"emnist-balanced-{part}"
        write_idx(stem.with_name(stem.name + "-images-idx3-ubyte"), x)
        write_idx(stem.with_name(stem.name + "-labels-idx1-ubyte"), np.array([46], dtype=np.uint8))
    data = load(dataset="emnist")
    np.testing.assert_array_equal(data.x[0], x[0].T)
    assert (data.num_classes, data.classes[46], len(data.classes)) == (47, "t", 47)


def test_normalisation_is_per_channel():
    x = np.full((2, 2, 1, 1), 255, dtype=np.uint8)
    data = base.Dataset(
        name="", x=x, y=np.zeros(2, dtype=np.int64), num_train=2, num_classes=1, input_shape=(2, 1, 1),
        kind="image", mean=(0.5, 0.0), std=(0.25, 2.0),
    )  # fmt: skip
    assert data.inputs(slice(0, 1)).flatten().tolist() == [2.0, 0.5]
    assert (x == 255).all()


@pytest.mark.parametrize("kind", ["image", "features", "text"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_examples_of_a_set_that_stays_on_a_device_are_those_that_are_read(device, kind):
    """Images of two channels, normalised; and what is computed with them does not change the set."""
    rng = np.random.default_rng(1)
    drawn = rng.integers(0, 256, (9, 2, 3, 3)).astype(np.float32 if kind == "features" else np.uint8)
    image = {"mean": (0.5, 0.25), "std": (0.25, 2.0)} if kind == "image" else {}
    data = base.Dataset(
        name="", x=drawn, y=np.zeros(9, dtype=np.int64), num_train=9, num_classes=1, input_shape=(2, 3, 3),
        kind=kind, **image,
    )  # fmt: skip
    rows = np.array([8, 2, 2, 5])
    expected = data.inputs(rows)
    data._held[device] = torch.from_numpy(drawn.copy()).to(device)  # as where a GPU has the memory
    for _ in range(2):
        got = data.inputs(rows, device)
        assert (got.device.type, got.dtype) == (device, expected.dtype)
        assert torch.equal(got.cpu(), expected)
        got.zero_()


def test_a_set_stays_on_a_gpu_that_has_memory_for_it_and_its_training(monkeypatch):
    data = load(dataset="digits")
    stays = []
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device: tensor)
    for free in (data.x.nbytes * base.LEAVES, data.x.nbytes * base.LEAVES + 1):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 0))
        data._held.clear()
        assert torch.equal(data.inputs(np.array([3, 1]), "cuda"), data.inputs(np.array([3, 1])))
        stays.append(data._held["cuda"] is not None)
    assert stays == [False, True]


@pytest.mark.parametrize(("zipped", "unpacked"), [(True, " unpacked"), (False, "")])
def test_truncated_idx_file_is_named_with_both_lengths(tmp_path, zipped, unpacked):
    x, _ = write_mnist(tmp_path / "data", zipped=zipped)
    name = "t10k-images-idx3-ubyte" + (".gz" if zipped else "")
    write_idx(tmp_path / "data/MNIST/raw" / name, x[50:], cut=9)
    with pytest.raises(DataError, match=rf"{name}: .*expected 336 bytes{unpacked} .* got 327.* Fetch"):
        load(dataset="mnist")
    assert not list((tmp_path / "cache").rglob("*.npy"))


def test_gzip_cut_short_and_foreign_files_are_refused(tmp_path):
    write_mnist(tmp_path / "data")
    path = tmp_path / "data/MNIST/raw/train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-200])
    with pytest.raises(DataError, match=r"train-images.*a whole gzip file; got Compressed file ended"):
        load(dataset="mnist")
    path.write_bytes(whole[:-4])  # all bytes are there but the checksum is not
    with pytest.raises(DataError, match=r"expected a whole gzip file; got Compressed file ended"):
        load(dataset="mnist")
    path.write_bytes(b"<html>404</html>")
    with pytest.raises(DataError, match=r"train-images.*expected a whole gzip file; got Not a gzipped"):
        load(dataset="mnist")
    path.write_bytes(gzip.compress(b"\0\0\x0d\3" + bytes(12)))
    with pytest.raises(DataError, match="idx file of unsigned bytes with 3 dimensions"):
        load(dataset="mnist")
    path.write_bytes(whole)
    write_idx(path.with_name("train-labels-idx1-ubyte.gz"), np.zeros(49, dtype=np.uint8))
    with pytest.raises(DataError, match=r"train-labels.*expected 50 labels.*got 49"):
        load(dataset="mnist")


def test_missing_files_say_what_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setattr("torchvision.datasets.MNIST", no_network)
    with pytest.raises(DataError, match=r"(?s)mnist: no data in .*MNIST/raw.*no network.*t10k-labels-idx1"):
        load(dataset="mnist")
    assert list((tmp_path / "data").iterdir()) == []  # nothing half-made is left
    monkeypatch.setenv("BOUQUET_DATA", str(tmp_path / "cache/data"))  # where downloads go is named once
    with pytest.raises(DataError, match=r"no data in \S+MNIST/raw, and the download failed"):
        load(dataset="mnist")
    monkeypatch.setenv("BOUQUET_DATA", str(tmp_path / "data"))
    write_idx(tmp_path / "data/FashionMNIST/raw/train-labels-idx1-ubyte", np.zeros(3, dtype=np.uint8))
    with pytest.raises(DataError, match=r"FashionMNIST.*train-images-idx3-ubyte, t10k.* missing"):
        load(dataset="fashion-mnist")


def test_download_avoids_a_read_only_data_folder(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir(mode=0o555)
    fetch = lambda root, download: write_mnist(type(tmp_path)(root), zipped=False)  # noqa: E731
    monkeypatch.setattr("torchvision.datasets.MNIST", fetch)
    data = load(dataset="mnist")
    assert data.source == str(tmp_path / "cache/data/MNIST/raw")
    assert [p.name for p in (tmp_path / "cache/data").iterdir()] == ["MNIST"]
    monkeypatch.setattr("torchvision.datasets.MNIST", no_network)
    assert load(dataset="mnist").fingerprint == data.fingerprint


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_cifar_is_read_through_torchvision(tmp_path, monkeypatch, name, classes):
    from torchvision import datasets

    from task.datasets import images

    class Fake:
        def __init__(self, root, train, download=False):
            folder = type(tmp_path)(root) / images._CIFAR[name].folder
            if download:
                folder.mkdir()
                (folder / "data_batch_1").write_bytes(b"1")
                (folder / "test").write_bytes(b"2")
            self.data = np.full((4 if train else 2, 32, 32, 3), 7, dtype=np.uint8)
            self.data[:, 0, 1, 2] = 255
            self.targets = [classes - 1 - i % 2 for i in range(len(self.data))]
            self.classes = [str(i) for i in range(classes)]

    monkeypatch.setattr(datasets, name.upper(), no_network)
    with pytest.raises(DataError, match=rf"{name}: no data in .*no network.*data-dir"):
        load(dataset=name)
    monkeypatch.setattr(datasets, name.upper(), Fake)
    data = load(dataset=name)
    assert (data.num_train, len(data.y), data.num_classes, data.input_shape) == (4, 6, classes, (3, 32, 32))
    assert data.x[0, 2, 0, 1] == 255
    blue = (1.0 - data.mean[2]) / data.std[2]
    assert float(data.inputs(slice(0, 1))[0, 2, 0, 1]) == pytest.approx(blue, abs=1e-6)


def test_second_load_decodes_nothing_until_the_source_changes(tmp_path, monkeypatch):
    write_mnist(tmp_path / "data")
    first = load(dataset="mnist")
    monkeypatch.setattr(idx, "read_idx", lambda *_: pytest.fail("decoded again"))
    assert load(dataset="mnist").fingerprint == first.fingerprint
    monkeypatch.undo()
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BOUQUET_DATA", str(tmp_path / "data"))
    write_idx(tmp_path / "data/MNIST/raw/train-labels-idx1-ubyte.gz", (np.arange(50) % 2).astype(np.uint8))
    assert load(dataset="mnist").y[:50].tolist() == [0, 1] * 25


def test_a_second_process_imports_nothing_slow(tmp_path):
    load(dataset="digits")
    code = (
        "import sys; from task.config.sections import *; from task.datasets import load_dataset\n"
        "load_dataset(DataConfig(dataset='digits'), SyntheticConfig(), 1)\n"
        "slow = ('torch', 'torchvision', 'sklearn', 'PIL', 'datasets', 'pandas')\n"
        "print([m for m in slow if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("harm", ["cut", "dtype", "missing", "meta", "no-meta"])
def test_damaged_cache_is_refused_and_kept(tmp_path, harm):
    load(dataset="digits")
    (folder,) = (tmp_path / "cache/datasets").iterdir()
    path = folder / ("meta.json" if "meta" in harm else "y.npy")
    if harm == "cut":
        path.write_bytes(path.read_bytes()[:-8])
    elif harm == "dtype":
        np.save(path, np.load(path).astype(np.uint64))
    elif harm == "meta":
        path.write_text('{"arrays":')
    else:
        path.unlink()
    before = sorted((p.name, p.read_bytes()) for p in folder.iterdir())
    with pytest.raises(DataError, match=rf"{path.name}: damaged cache file.*Delete the folder {folder}"):
        load(dataset="digits")
    assert sorted((p.name, p.read_bytes()) for p in folder.iterdir()) == before


def test_cache_writes_are_whole_or_not_at_all(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(DataError, match=r"cannot be written: .*No space left.*cache-dir"):
        load(dataset="digits")
    assert list((tmp_path / "cache/datasets").iterdir()) == []


def test_of_several_writers_one_wins_and_all_read_its_entry(tmp_path):
    results = []

    def write(value):
        results.append(cache.store(tmp_path / "e", {"a": np.full(1000, value)}, {"value": value}))

    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winner = results[0][1]["value"]
    assert all(meta == {"value": winner} and (a["a"] == winner).all() for a, meta in results)
    assert [p.name for p in tmp_path.iterdir() if "e" in p.name] == ["e"]


def test_max_examples_keeps_a_seeded_subset_and_the_whole_test_set(tmp_path):
    x, _ = write_mnist(tmp_path / "data")
    some = load(dataset="mnist", max_examples=12)
    assert (some.num_train, len(some.y)) == (12, 32)
    np.testing.assert_array_equal(some.x[12:], x[50:])
    pool = {image.tobytes() for image in x[:50]}
    kept = [image.tobytes() for image in some.x[:12]]
    assert len(set(kept)) == 12
    assert set(kept) <= pool
    assert load(dataset="mnist", max_examples=12).fingerprint == some.fingerprint
    assert load(seed=2, dataset="mnist", max_examples=12).fingerprint != some.fingerprint
    assert load(dataset="mnist", max_examples=50).num_train == 50
    with pytest.raises(ConfigError, match=r"max-examples.*natural owners"):
        load(dataset="synthetic", max_examples=5)


def test_pool_test_deals_the_test_set_too(tmp_path):
    write_mnist(tmp_path / "data")
    plain, pooled = load(dataset="mnist"), load(dataset="mnist", pool_test=True)
    assert (plain.num_train, pooled.num_train, len(pooled.y)) == (50, 70, 70)
    assert pooled.test_rows == slice(70, 70)
    np.testing.assert_array_equal(pooled.x, plain.x)
    assert len(list((tmp_path / "cache/datasets").iterdir())) == 1  # nothing is copied
    assert len({data.fingerprint for data in (plain, pooled, load(dataset="mnist", pool_test=True))}) == 2
    config = DataConfig(dataset="mnist", pool_test=True, num_clients=7)
    partition = load_partition(pooled, config, 1)
    dealt = np.concatenate([rows for i in range(7) for rows in (partition.train(i), partition.test(i))])
    np.testing.assert_array_equal(np.sort(dealt), np.arange(70))
    assert (
        central_evaluation(build_model("logistic", (1, 4, 4), 10, seed=1), pooled, torch.device("cpu"))
        is None
    )


def test_pool_test_is_drawn_from_by_max_examples(tmp_path):
    x, _ = write_mnist(tmp_path / "data")
    some = load(dataset="mnist", pool_test=True, max_examples=60)
    assert (some.num_train, len(some.y)) == (60, 60)
    rows = [next(i for i, whole in enumerate(x) if np.array_equal(whole, image)) for image in some.x]
    assert len(set(rows)) == 60
    assert max(rows) >= 50
    few = load(dataset="mnist", pool_test=True, max_examples=12)
    assert few.num_train == 12
    assert few.fingerprint != load(dataset="mnist", max_examples=12).fingerprint
    assert load(dataset="mnist", pool_test=True, max_examples=70).num_train == 70


def test_pool_test_is_refused_where_the_test_set_has_owners(tmp_path):
    with pytest.raises(ConfigError, match=r'"pool-test": data set "synthetic" has natural owners.*false'):
        load(dataset="synthetic", pool_test=True)
    config = DataConfig(dataset="csv", num_classes=2, pool_test=True)
    with pytest.raises(ConfigError, match=r'"pool-test": a node brings its own data \(data-path "a.csv"\)'):
        load_owned(config, "a.csv", "ward-3", 1)


def test_cifar_as_pictures(tmp_path):
    """A zip of pictures does where the batches are not: its classes in alphabetical order, CIFAR's own."""
    folder = tmp_path / "data/cifar10"
    names = ("cat", "airplane", "dog", "bird", "automobile", "deer", "frog", "horse", "truck", "ship")
    write_pictures(folder / "some.zip", {name: 10 * i for i, name in enumerate(names)})
    data = load(dataset="cifar10")
    assert (data.num_train, len(data.y), data.input_shape, data.num_classes) == (20, 30, (3, 32, 32), 10)
    assert data.classes == tuple(sorted(names))
    assert data.y[:4].tolist() == [0, 0, 1, 1]
    assert (data.x[:2] == 10).all()  # airplanes
    assert float(data.inputs(slice(0, 1))[0, 1, 5, 5]) == pytest.approx(
        (10 / 255 - 0.4822) / 0.2435, abs=1e-6
    )
    assert "a copy as pictures" in data.description
    write_pictures(folder / "some.zip", dict.fromkeys(names, 1), size=(16, 16))
    with pytest.raises(DataError, match=r"some.zip: expected pictures of cifar10, 32x32 RGB; got 16x16 RGB"):
        load(dataset="cifar10")
    write_pictures(folder / "some.zip", dict.fromkeys(names[1:], 1))
    with pytest.raises(DataError, match=r"expected num-classes = 10 class folders .* got 9"):
        load(dataset="cifar10")
    write_pictures(folder / "other.zip", {})
    with pytest.raises(DataError, match=r"expected one zip file .* got other.zip, some.zip"):
        load(dataset="cifar10")


def write_pictures(path, greys, size=(32, 32)):
    """Write a zip of two training pictures and a test picture of each class, each of one grey in RGB."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for label, grey in greys.items():
            buffer = io.BytesIO()
            Image.new("RGB", size, (grey, grey, grey)).save(buffer, "PNG")
            for name in ("train/{}/1.png", "train/{}/2.png", "test/{}/1.png"):
                archive.writestr(name.format(label), buffer.getvalue())


def test_fingerprint_follows_the_content_not_the_file(tmp_path):
    write_mnist(tmp_path / "data")
    zipped = load(dataset="mnist").fingerprint
    for path in (tmp_path / "data/MNIST/raw").iterdir():
        path.unlink()
    write_mnist(tmp_path / "data", zipped=False)
    assert load(dataset="mnist").fingerprint == zipped


@pytest.mark.data
def test_real_cifar_subset(data_folder):
    if not (data_folder / "cifar10/cifar10-jpeg-subset.zip").exists():
        pytest.skip("no cifar10/cifar10-jpeg-subset.zip in $BOUQUET_DATA")
    data = load(dataset="cifar10", pool_test=True)
    assert np.bincount(data.y[: data.num_train]).tolist() == [2880] * 10
    assert data.classes[:3] == ("airplane", "automobile", "bird")


@pytest.mark.data
def test_real_mnist(data_folder):
    data = load_dataset(DataConfig(dataset="mnist"), SyntheticConfig(), 1)
    assert (data.num_train, len(data.y)) == (60_000, 70_000)
    assert data.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert np.bincount(data.y[60_000:]).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert float(data.inputs(slice(0, 60_000)).mean()) == pytest.approx(0.1307, abs=1e-4)
