import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from task.config.sections import DataConfig
from task.datasets import base
from task.datasets import partition as module
from task.datasets import partitioners as deals
from task.datasets.partition import PARTITIONS, label_counts, load_partition
from task.datasets.partitioners import Deal, apportion
from task.datasets.parts import local_test_size
from task.errors import ConfigError, DataError
from tests.task.helpers import load, write_roles

DEALT = sorted(set(PARTITIONS) - {"natural", "bootstrap", "columns"})


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch, request):
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))
    if "data_folder" not in request.fixturenames:
        monkeypatch.setenv("BOUQUET_DATA", str(tmp_path / "data"))


def dataset(train=6000, test=100, classes=10, **keys):
    """Return a data set of which only the labels matter: balanced, in random order."""
    rng = np.random.default_rng(7)
    y = np.concatenate([rng.permutation(np.arange(n) % classes) for n in (train, test)])
    made = base.Dataset(
        name="toy", x=np.zeros((len(y), 1), dtype=np.float32), y=y, num_train=train, num_classes=classes,
        input_shape=(1,), kind="features", fingerprint=f"{train}-{test}-{classes}",
    )  # fmt: skip
    return replace(made, **keys)


def deal(data, seed=1, **keys):
    defaults = {"dataset": "toy", "num_clients": 20, "local_test_fraction": 0.0}
    return load_partition(data, DataConfig(**(defaults | keys)), seed)


def everything(partition):
    parts = [np.concatenate([partition.train(i), partition.test(i)]) for i in range(partition.num_clients)]
    return np.concatenate(parts)


def test_registry_is_sorted_and_complete():
    assert list(PARTITIONS) == sorted(PARTITIONS)
    assert {name for name, spec in PARTITIONS.items() if spec.deal} == {*DEALT, "columns"}
    with pytest.raises(ConfigError, match='Did you mean "shards"'):
        deal(dataset(), partition="shard")


@pytest.mark.parametrize("name", DEALT)
def test_partitions_are_disjoint_and_cover_and_follow_the_seed(name):
    data = dataset()
    keys = {"partition": name, "local_test_fraction": 0.2}
    one, again, other = deal(data, **keys), deal(data, **keys), deal(data, seed=2, **keys)
    rows = everything(one)
    np.testing.assert_array_equal(np.sort(rows), np.arange(data.num_train))
    np.testing.assert_array_equal(rows, everything(again))
    assert not np.array_equal(rows, everything(other))
    assert one.skew["coverage"] == 1.0
    for i in range(20):
        train, test = one.train(i), one.test(i)
        assert train.dtype == test.dtype == np.int64
        assert (np.diff(train) > 0).all()
        assert len(test) == local_test_size(len(train) + len(test), 0.2)
    np.testing.assert_array_equal(one.num_train(), [len(one.train(i)) for i in range(20)])


@pytest.mark.parametrize("name", DEALT)
def test_partitions_are_computed_once(name, monkeypatch):
    data = dataset(train=1000)
    first = deal(data, partition=name, num_clients=5)
    monkeypatch.setattr(module, "_compute", lambda *_: pytest.fail("computed again"))
    again = deal(data, partition=name, num_clients=5, max_examples=3, shards_per_client=2)  # as before
    np.testing.assert_array_equal(everything(first), everything(again))
    assert again.skew == first.skew


def test_cached_partition_needs_no_slow_import(tmp_path):
    code = (
        "import sys; from task.config.sections import *; from task.datasets import *\n"
        "from task.datasets.partition import *\n"
        "c = DataConfig(partition='dirichlet')\n"
        "p = load_partition(load_dataset(c, SyntheticConfig(), 1), c, 1)\n"
        "print(p.num_train().sum(), [m for m in ('torch', 'datasets', 'flwr_datasets') if m in sys.modules])"
    )
    c = DataConfig(partition="dirichlet")
    total = load_partition(load(), c, 1).num_train().sum()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{total} []"


def test_a_partition_that_is_computed_leaves_no_thread(tmp_path):
    """With tqdm's, the first simulation after an install could not fork its workers: ten seconds more."""
    code = (
        "import threading; from task.config.sections import *; from task.datasets import *\n"
        "from task.datasets.partition import *\n"
        "c = DataConfig(partition='dirichlet', dirichlet_alpha=0.7)\n"
        "load_partition(load_dataset(c, SyntheticConfig(), 1), c, 1)\n"
        "print(threading.active_count())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_damaged_partition_is_refused(tmp_path):
    deal(dataset(), partition="iid")
    (path,) = (tmp_path / "cache").rglob("train_rows.npy")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        DataError, match=r"train_rows.npy: damaged cache file: expected 48128 bytes; got 48127"
    ):
        deal(dataset(), partition="iid")


def test_iid_is_even():
    partition = deal(dataset(train=1003), partition="iid", num_clients=10)
    assert sorted(partition.num_train()) == [100] * 7 + [101] * 3
    assert partition.skew["label_tv_mean"] < 0.2
    assert partition.skew["size_gini"] == pytest.approx(0, abs=0.01)


def test_shards_are_mcmahans():
    """K = 100, 60,000 rows: 200 shards of 300, so exactly 600 rows of two shards each."""
    data = dataset(train=60_000)
    partition = deal(data, partition="shards", num_clients=100)
    assert set(partition.num_train()) == {600}
    counts = label_counts(data, partition)
    assert set(counts.ravel()) == {0, 300, 600}
    assert ((counts > 0).sum(1) <= 2).all()
    np.testing.assert_array_equal(counts.sum(0), [6000] * 10)
    assert 0.7 < partition.skew["label_tv_mean"] < 0.9


def test_dirichlet_tends_to_the_global_mix_and_to_single_classes():
    data = dataset()
    flat, skewed = (deal(data, partition="dirichlet", dirichlet_alpha=a, num_clients=5) for a in (1e5, 0.05))
    np.testing.assert_allclose(label_counts(data, flat), 120, atol=4)
    assert flat.skew["label_tv_mean"] < 0.02
    assert skewed.skew["label_tv_mean"] > 0.5
    assert skewed.skew["size_gini"] > 0.1  # not capped
    with pytest.raises(DataError, match=r'"dirichlet" of 30 examples.*Raise dirichlet-alpha'):
        deal(dataset(train=30), partition="dirichlet", dirichlet_alpha=0.01, num_clients=29)


def test_dirichlet_capped_gives_a_client_that_has_its_share_no_further_class():
    """Before its last class a client had no more than n/K; a row or two of later ones are due to rounding."""
    data = dataset()
    keys = {"dirichlet_alpha": 0.3, "num_clients": 5}
    capped, plain = (deal(data, partition=f"dirichlet{form}", **keys) for form in ("-capped", ""))
    counts = label_counts(data, capped)
    for row in counts:
        last = np.flatnonzero(row > 2)[-1]
        assert row[:last].sum() <= data.num_train / 5
    assert max(plain.num_train()) > max(capped.num_train())


def test_dirichlet_leaves_enough_for_training():
    data = dataset(train=200)
    keys = {"num_clients": 8, "min_client_examples": 9, "local_test_fraction": 0.5}
    partition = deal(data, partition="dirichlet", dirichlet_alpha=5.0, **keys)
    assert partition.num_train().min() >= 9


def test_dirichlet_client_has_equal_sizes():
    data = dataset()
    for alpha, low, high in ((1e6, 0.0, 0.12), (0.01, 0.75, 0.9)):
        partition = deal(data, partition="dirichlet-client", dirichlet_alpha=alpha)
        assert set(partition.num_train()) == {300}
        assert low <= partition.skew["label_tv_mean"] <= high


def test_draw_never_takes_more_than_there_is():
    rng = np.random.default_rng(1)
    taken = deals._draw(rng, np.array([1.0, 0.0, 0.0]), np.array([3, 4, 2]), 8)
    assert taken[0] == 3
    assert taken.sum() == 8
    assert (taken <= [3, 4, 2]).all()


def test_classes_are_exactly_c():
    data = dataset()
    for c in (1, 3):
        partition = deal(data, partition="classes", classes_per_client=c)
        assert set((label_counts(data, partition) > 0).sum(1)) == {c}
        assert partition.skew["classes_mean"] == c
    few = deal(data, partition="classes", classes_per_client=1, num_clients=4)
    assert few.skew["coverage"] == pytest.approx(0.4)
    with pytest.raises(DataError, match="Lower classes-per-client"):
        deal(data, partition="classes", classes_per_client=11)


@pytest.mark.parametrize(
    ("clients", "c", "classes"), [(20, 2, 10), (20, 10, 100), (6, 2, 10), (5, 3, 10), (4, 7, 7)]
)
def test_classes_unbalanced_goes_to_the_first_who_need_more(clients, c, classes):
    """Against the rule read off literally: class by class, the first ceil(K c / C) that still need one."""
    data = dataset(train=9000, classes=classes)
    counts = label_counts(
        data, deal(data, partition="classes-unbalanced", num_clients=clients, classes_per_client=c)
    )
    need, holds = [c] * clients, [set() for _ in range(clients)]
    for label in range(classes):
        for client in [k for k in range(clients) if need[k]][: -(-clients * c // classes)]:
            need[client] -= 1
            holds[client].add(label)
    assert [set(np.flatnonzero(row)) for row in counts] == holds
    assert {len(held) for held in holds} == {c}


def test_classes_unbalanced_sizes():
    """C = 4, K = 4, c = 2: two share a class of 45; the first has 2..22 of it, the last 45 - that.

    With 24 examples for training and a test quarter a client needs 32, so at least 16 of each class.
    """

    def firsts(**keys):
        seen = set()
        for seed in range(300):
            config = DataConfig(partition="classes-unbalanced", num_clients=4, classes_per_client=2, **keys)
            labels = np.arange(180) % 4
            parts = deals.classes_unbalanced(Deal(180, labels, 4, config, seed))
            counts = np.array([np.bincount(labels[part], minlength=4) for part in parts])
            np.testing.assert_array_equal(counts.sum(0), [45] * 4)
            assert (counts[:2, 2:] == 0).all()
            assert (counts[2:, :2] == 0).all()
            seen |= set(counts[0, :2]) | set(counts[2, 2:])
        return seen

    assert firsts() == set(range(2, 23))
    assert firsts(min_client_examples=24, local_test_fraction=0.25) == set(range(16, 23))
    assert firsts(min_client_examples=100) == {22}  # no more than the even share


def test_classes_unbalanced_is_pfllibs():
    """K = 20, c = 2: four share two classes; a quarter is for the test, and sizes differ widely."""
    data = dataset(train=14_000, test=0)
    keys = {"partition": "classes-unbalanced", "local_test_fraction": 0.25, "min_client_examples": 30}
    partition = deal(data, **keys)
    np.testing.assert_array_equal(np.sort(everything(partition)), np.arange(14_000))
    assert partition.skew["classes_mean"] == 2
    assert partition.skew["size_gini"] > 0.2
    for i in range(20):
        total = len(partition.train(i)) + len(partition.test(i))
        assert len(partition.test(i)) == round(total / 4)
        assert total >= 700 if i % 4 == 3 else 70 <= total <= 700


def test_classes_unbalanced_refuses_what_leaves_clients_short():
    keys = {"partition": "classes-unbalanced", "classes_per_client": 3}
    with pytest.raises(ConfigError, match=r"to 6 of the 20 clients, so expected 12 classes, .* got 10"):
        deal(dataset(), **keys)
    with pytest.raises(ConfigError, match=r"to 40 of the 20 clients, so expected 20 classes, .* got 10"):
        deal(dataset(), **keys | {"classes_per_client": 20})
    with pytest.raises(DataError, match=r"class 0 has 3 examples; expected one at least for each of 4"):
        deal(dataset(train=30), partition="classes-unbalanced")


def test_dirichlet_capped_gives_pfllibs_practical_split():
    """At least 40 of each client's examples, of which 30 train: with 39, the test quarter of 10 leaves 29."""
    assert deals._with_test_part(DataConfig(min_client_examples=30, local_test_fraction=0.25)) == 40
    data = dataset(train=20_000, test=0)
    keys = {"partition": "dirichlet-capped", "dirichlet_alpha": 0.1, "local_test_fraction": 0.25}
    (free, enough), (short, drawn_again) = (
        [deal(data, seed=seed, min_client_examples=least, **keys).num_train().min() for least in (1, 30)]
        for seed in (3, 4)
    )
    assert free == enough >= 30
    assert short < 30 <= drawn_again


def test_labels_gives_whole_classes_and_shares_them_among_more_clients():
    data = dataset()
    counts = label_counts(data, deal(data, partition="labels", num_clients=4))
    assert [set(np.flatnonzero(row)) for row in counts] == [{0, 4, 8}, {1, 5, 9}, {2, 6}, {3, 7}]
    assert set(counts[counts > 0]) == {600}
    shared = label_counts(data, deal(data, partition="labels", num_clients=25))
    assert [set(np.flatnonzero(row)) for row in shared] == [{k % 10} for k in range(25)]
    assert shared[3].sum() == shared[13].sum() == shared[23].sum() == 200  # clients 3, 13, 23 hold class 3
    assert shared[7].sum() == shared[17].sum() == 300


def test_half_labels_is_even_below_and_by_label_above():
    data = dataset()
    counts = label_counts(data, deal(data, partition="half-labels", num_clients=5))
    assert (counts[:2, 5:] == 0).all()
    assert (abs(counts[:2, :5] - 300) < 60).all()
    assert set(counts[:2].sum(axis=1)) == {1500}
    assert [set(np.flatnonzero(row)) for row in counts[2:]] == [{5, 8}, {6, 9}, {7}]
    with pytest.raises(ConfigError, match=r'"num-clients": .*halves the clients.*got 1 clients'):
        deal(data, partition="half-labels", num_clients=1)


def test_quantity_sizes_follow_the_power():
    partition = deal(dataset(), partition="quantity", num_clients=4, size_skew=2.0)
    assert sorted(partition.num_train()) == [200, 800, 1800, 3200]
    assert partition.skew["label_tv_mean"] < 0.06
    # Gini by hand: sum (2 i - 5) s_i / (4 * 6000) = (-600 - 800 + 1800 + 9600) / 24000
    assert partition.skew["size_gini"] == pytest.approx(10_000 / 24_000)
    even = deal(dataset(), partition="quantity", num_clients=4, size_skew=0.0)
    assert set(even.num_train()) == {1500}


def test_power_law_has_two_classes_and_five_of_each():
    data = dataset(train=20_000)
    partition = deal(data, partition="power-law", num_clients=200)
    counts = label_counts(data, partition)
    for u in range(200):
        held = np.flatnonzero(counts[u])
        assert set(held) == {u % 10, (u + 1) % 10}
        assert counts[u][held].min() >= 5
    extra = counts[counts > 0] - 5
    assert extra.max() > 20 * np.median(extra)  # a heavy tail
    assert partition.skew["size_gini"] > 0.5


def test_apportion_gives_largest_remainders():
    np.testing.assert_array_equal(apportion(np.array([1.0, 1.0, 2.0]), 10), [3, 2, 5])
    np.testing.assert_array_equal(apportion(np.array([0.2, 0.3, 0.5]), 3), [1, 1, 1])
    np.testing.assert_array_equal(apportion(np.array([1.0, 3.0]), 0), [0, 0])


def test_bootstrap_is_lazy_and_overlaps():
    data = dataset()
    keys = {"partition": "bootstrap", "num_clients": 1_000_000, "examples_per_client": 50}
    partition = deal(data, local_test_fraction=0.1, **keys)
    assert (len(partition.names), partition.names[7], partition.names[-1]) == (
        1_000_000,
        "client-000007",
        "client-999999",
    )
    assert partition.index("client-012345") == 12345
    assert partition.num_train().shape == (1_000_000,)
    assert partition.num_train()[5] == len(partition.train(5)) == 45
    for i in (0, 999_999):
        rows = np.concatenate([partition.train(i), partition.test(i)])
        assert len(set(rows)) == 50
        assert rows.max() < data.num_train
        np.testing.assert_array_equal(
            partition.train(i), deal(data, local_test_fraction=0.1, **keys).train(i)
        )
    assert not np.array_equal(partition.train(0), partition.train(1))
    assert partition.skew["size_mean"] == 45
    with pytest.raises(IndexError):
        partition.train(1_000_000)
    with pytest.raises(ConfigError, match=r"examples-per-client.*at most the 6000 training examples"):
        deal(data, partition="bootstrap", examples_per_client=6001)


def test_names_are_stable_and_unknown_ones_are_refused():
    partition = deal(dataset(), partition="iid", num_clients=12)
    assert list(partition.names) == [f"client-{i:02d}" for i in range(12)]
    assert partition.names[1:3] == ["client-01", "client-02"]
    assert [partition.index(n) for n in partition.names] == list(range(12))
    assert "client-11" in partition.names
    for wrong in ("client-12", "client-1", "client-001", "ward-3", "client-", "client-²"):
        assert wrong not in partition.names
        with pytest.raises(DataError, match=f'client "{wrong}" is not in this partition.*"client-00" to'):
            partition.index(wrong)


def test_natural_takes_the_owners_and_their_own_tests():
    config = {"dataset": "synthetic", "partition": "natural"}
    data = load(num_clients=6, **config)
    partition = deal(data, num_clients=0, **config)
    assert partition.names == data.owners.names
    for i in range(6):
        np.testing.assert_array_equal(partition.train(i), data.owners.train(i))
        np.testing.assert_array_equal(partition.test(i), data.owners.test(i))
    assert partition.index("device-4") == 4
    some, same = (deal(data, num_clients=3, **config) for _ in range(2))
    assert some.names == same.names == tuple(sorted(some.names))
    assert len(set(some.names) & set(data.owners.names)) == 3
    np.testing.assert_array_equal(some.train(0), data.owners.train(data.owners.names.index(some.names[0])))
    samples = {deal(data, seed=s, num_clients=3, **config).names for s in range(8)}
    assert len(samples) > 1
    with pytest.raises(DataError, match=r'client "nobody" is not in this partition'):
        some.index("nobody")
    with pytest.raises(DataError, match=r'"num-clients".*6 owners.* got 7'):
        deal(data, num_clients=7, **config)


def test_natural_without_test_rows_splits_locally():
    owners = base.Owners.from_lists(["a", "b"], [np.arange(10), np.arange(10, 40)], [[], []])
    data = dataset(train=40, owners=owners)
    partition = deal(data, partition="natural", num_clients=0, local_test_fraction=0.1)
    assert [len(partition.test(i)) for i in (0, 1)] == [1, 3]
    np.testing.assert_array_equal(np.sort(everything(partition)), np.arange(40))


def test_text_is_dealt_by_rows_only(tmp_path):
    lines = [f"line {i} " * 9 for i in range(60)]
    write_roles(tmp_path / "data", [("A", "B", lines), ("A", "C", lines[::-1])])
    data = load(dataset="shakespeare")
    partition = deal(data, partition="iid", num_clients=3)
    np.testing.assert_array_equal(np.sort(everything(partition)), np.arange(data.num_train))
    counts = label_counts(data, partition)
    assert counts.sum() == (data.y[: data.num_train] != base.PADDING).sum()
    assert counts[:, ord("l")].sum() == (data.y[: data.num_train] == ord("l")).sum()
    with pytest.raises(ConfigError, match=r'"shards" deals by class.*have no class'):
        deal(data, dataset="shakespeare", partition="shards")


@pytest.mark.parametrize(
    ("keys", "error", "says"),
    [
        ({"partition": "natural"}, ConfigError, 'data set "toy" has no natural owners; expected one of boot'),
        (
            {"partition": "iid", "num_clients": 0},
            ConfigError,
            '"num-clients": 0 .* needs partition = "natural"',
        ),
        (
            {"partition": "iid", "min_client_examples": 301},
            DataError,
            '"client-00" and 19 more .*301.* got 300',
        ),
        ({"partition": "bootstrap", "min_client_examples": 601}, DataError, "at least 601"),
        ({"partition": "iid", "num_clients": 6001}, DataError, '"client-6000" and 0 more .* got 0'),
    ],
)
def test_impossible_partitions_name_the_keys(tmp_path, keys, error, says):
    with pytest.raises(error, match=says):
        deal(dataset(), **keys)
    assert not (tmp_path / "cache/partitions").exists()


def test_local_test_sizes():
    sizes = [local_test_size(n, 0.1) for n in (0, 1, 2, 10, 16, 600)]
    assert sizes == [0, 0, 1, 1, 2, 60]
    assert local_test_size(2, 0.9) == 1
    assert local_test_size(600, 0.0) == 0


def test_deal_without_labels_is_refused():
    config = DataConfig(dataset="shakespeare", partition="classes")
    with pytest.raises(ConfigError, match='"classes" deals by class'):
        Deal(5, None, 256, config, 1).classes()


@pytest.mark.data
def test_real_mnist_shards(data_folder):
    data = load(dataset="mnist")
    partition = deal(data, dataset="mnist", partition="shards", num_clients=100)
    assert set(partition.num_train()) == {600}
    assert partition.names[0] == "client-00"
    classes = (label_counts(data, partition) > 0).sum(1)
    assert classes.max() <= 4  # a shard may hold the border of two digits
    assert np.median(classes) == 2
