"""Simulated malicious clients: who they are, what they send, and that nobody else is touched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from client_app.stages.attacks import Attack, flip_labels, malicious, z_max
from client_app.training.loop import Examples
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.record import PARAMETERS, Record
from task.config.attack_section import DEVIATING, INFORMED, AttackConfig
from task.config.knobs import Config
from task.datasets.base import centre
from task.datasets.trigger import stamped
from task.errors import FieldError
from task.wire import messages as wire
from tests.reference import robust as reference
from tests.support.federation import SIZES, owners_config, play, write_owners

TRAINED = ("backdoor", "label-flip")  # attacks on the examples, which send what comes of them
KINDS = [
    "sign-flip", "scale", "gaussian", *TRAINED, "little-is-enough", "inner-product", "min-max", "min-sum",
    "mimic", "model-replacement",
]  # fmt: skip
CLIENTS = ("a", "b", "c", "d", "e")


def config(kind: str, fraction: float = 0.4, strength: float = 0.0, seed: int = 1) -> Config:
    key = "deviations" if kind in DEVIATING else "std" if kind == "gaussian" else "scale"
    given: dict[str, Any] = {key: strength} if strength else {}
    return Config(seed=seed, attack=AttackConfig(kind=kind, fraction=fraction, **given))


# ------------------------------------------------------------------------------------------- who


@pytest.mark.parametrize(("fraction", "count"), [(0.0, 0), (0.2, 20), (0.204, 20), (1.0, 100)])
def test_so_many_of_a_partition_are_malicious(fraction: float, count: int) -> None:
    names = tuple(f"client-{i}" for i in range(100))
    bad = malicious(config("scale", fraction), names)
    assert len(bad) == count
    assert bad == malicious(config("gaussian", fraction), names[::-1])  # not by kind nor by order
    assert malicious(config("none", fraction), names) == frozenset()


def test_the_draw_depends_on_the_seed_and_a_larger_share_holds_the_smaller() -> None:
    names = tuple(f"client-{i}" for i in range(100))
    few, more = (malicious(config("scale", f), names) for f in (0.2, 0.5))
    assert few < more
    assert few != malicious(config("scale", 0.2, seed=2), names)


def test_a_client_that_a_node_knows_alone_is_malicious_by_its_own_draw() -> None:
    drawn = sum(bool(malicious(config("scale", 0.3), (f"ward-{i}",))) for i in range(400))
    assert drawn == pytest.approx(120, abs=4 * (400 * 0.3 * 0.7) ** 0.5)


# ------------------------------------------------------------------------------------------ what


DELTA = Record("delta", PARAMETERS, "a change")
ENTRY = replace(ALGORITHMS["fedavg"], up=(*ALGORITHMS["fedavg"].up, DELTA))


def corrupt(outcomes: Any, bad: frozenset[str], order: wire.TrainOrder, config: Config) -> Any:
    """Return what a stage sends on whose malicious clients are given."""
    clients = SimpleNamespace(names=CLIENTS)
    node: Any = SimpleNamespace(
        config=config, parts=lambda: SimpleNamespace(trainable=("w",)), clients=clients
    )
    stage = Attack(node, ENTRY, order)
    stage._malicious = lambda: bad  # type: ignore[method-assign]
    return stage.send(outcomes)


def sent(kind: str, scale: float = 0.0, bad: str = "bd", order_: str = "abcde") -> dict[str, Any]:
    """Return what five clients send: w of two parameters and one buffer, w^t = 10, 10."""
    down = {"w": np.array([10, 10], np.float32), "mean": np.array([5], np.float32)}
    order = wire.TrainOrder(3, {"arrays": down}, {}, CLIENTS)
    values = {"a": (11, 9), "b": (12, 10), "c": (13, 11), "d": (14, 12), "e": (15, 10)}

    def upload(client: str) -> wire.ClientUpdate:
        model = {"w": np.array(values[client], np.float32), "mean": np.array([6], np.float32)}
        delta = {"w": np.array([1, -2], np.float32)}
        return wire.ClientUpdate({"arrays": model, "delta": delta}, {"num-examples": 3, "train-loss": 0.5})

    outcomes = [(c, upload(c)) for c in order_]
    done = list(corrupt(outcomes, frozenset(bad), order, config(kind, strength=scale)))
    assert sorted(c for c, _ in done) == sorted(order_)
    return dict(done)


def test_sign_flip_and_scale_by_hand() -> None:
    # Delta of b = (2, 0), of d = (4, 2)
    flipped = sent("sign-flip")
    assert flipped["b"].arrays["arrays"]["w"].tolist() == [8.0, 10.0]
    assert flipped["d"].arrays["arrays"]["w"].tolist() == [6.0, 8.0]
    assert flipped["b"].arrays["delta"]["w"].tolist() == [-1.0, 2.0]
    assert sent("sign-flip", 3.0)["b"].arrays["arrays"]["w"].tolist() == [4.0, 10.0]
    assert sent("scale")["d"].arrays["arrays"]["w"].tolist() == [50.0, 30.0]
    assert sent("scale", 2.0)["d"].arrays["arrays"]["w"].tolist() == [18.0, 14.0]
    assert sent("scale", 2.0)["d"].arrays["delta"]["w"].tolist() == [2.0, -4.0]


def test_a_trigger_lies_in_the_corner_of_what_a_model_reads_of_an_image() -> None:
    """In the corner of the whole image a crop would cut it off, and the attack would be none."""
    whole = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    given = Examples(whole.clone(), torch.arange(3), [3], lambda x: centre(x, 6))
    backdoor = Config(attack=AttackConfig(kind="backdoor", poison=1.0, target=7))
    node: Any = SimpleNamespace(config=backdoor, dataset=SimpleNamespace(num_classes=10, crop=6))
    stage = Attack(node, ENTRY, wire.TrainOrder(1, {}, {}, ("a",)))
    stage._malicious = lambda: frozenset("a")  # type: ignore[method-assign]
    made = stage.examples(given, ["a"])
    assert made.y.tolist() == [7, 7, 7]
    assert torch.equal(made.x, stamped(centre(whole, 6)))
    assert torch.equal(made.held[:, :, 0], whole[:, :, 0])  # the margin is as it was
    assert torch.equal(given.held, whole)


@pytest.mark.parametrize("kind", KINDS)
def test_the_others_and_buffers_and_numbers_stay(kind: str) -> None:
    attacked, honest = sent(kind), sent("none")
    for client in CLIENTS:
        a, b = attacked[client], honest[client]
        assert a.scalars == b.scalars
        assert a.arrays["arrays"]["mean"].tolist() == [6.0]
        same = np.array_equal(a.arrays["arrays"]["w"], b.arrays["arrays"]["w"])
        assert same == (client in "ace" or kind in TRAINED)
        assert a.arrays["arrays"]["w"].dtype == np.float32


def test_gaussian_noise_is_around_the_received_model_and_drawn_by_name_and_round() -> None:
    down = {"w": np.full(20_000, 3, np.float32)}
    upload = wire.ClientUpdate({"arrays": {"w": np.full(20_000, 99, np.float32)}}, {"num-examples": 1})

    noisy = config("gaussian", strength=0.5)

    def noise(client: str, server_round: int) -> np.ndarray:
        order = wire.TrainOrder(server_round, {"arrays": down}, {}, (client,))
        ((_, out),) = corrupt([(client, upload)], frozenset(client), order, noisy)
        assert isinstance(out, wire.ClientUpdate)
        return out.arrays["arrays"]["w"] - 3

    one = noise("a", 1)
    assert (one.mean(), one.std()) == pytest.approx((0, 0.5), abs=0.015)
    assert np.array_equal(one, noise("a", 1))
    for other in (noise("b", 1), noise("a", 2)):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.05


def test_little_is_enough_equals_the_paper() -> None:
    """Benign a, c, e: w_1 = 11, 13, 15 and w_2 = 9, 11, 10; m = 2 of 5, h = 3 - 2 = 1, Phi(z) = 2/3."""
    got = sent("little-is-enough", order_="bdaec")  # the malicious wait for the benign
    benign = [np.array(v, np.float64) for v in ((11, 9), (13, 11), (15, 10))]
    want = reference.little_is_enough(benign, 2)
    z = NormalDist().inv_cdf(2 / 3)
    assert want == pytest.approx([13 - z * (8 / 3) ** 0.5, 10 - z * (2 / 3) ** 0.5])
    for client in "bd":
        assert got[client].arrays["arrays"]["w"] == pytest.approx(want, rel=1e-6)
        assert got[client].arrays["delta"]["w"].tolist() == [1.0, -2.0]  # where all agree
    strong = sent("little-is-enough", 2.0)["b"].arrays["arrays"]["w"]
    assert strong[1] == pytest.approx(10 - 2 * (2 / 3) ** 0.5)


@pytest.mark.parametrize(
    ("n", "m", "z"), [(50, 24, 1.4261), (20, 4, 0.1573), (5, 3, 0.0), (3, 2, 0.0), (10, 0, 0.0)]
)
def test_z_max(n: int, m: int, z: float) -> None:
    """(n - m - h) / (n - m) = 24/26, 9/16, 1/2, 0/1, 4/10."""
    assert z_max(n, m) == pytest.approx(z, abs=1e-4)


def test_little_is_enough_needs_two_that_it_can_look_at() -> None:
    got = sent("little-is-enough", bad="abcd")
    assert all(isinstance(got[c], FieldError) for c in "abcd")
    assert isinstance(got["e"], wire.ClientUpdate)


def test_a_failure_passes_on() -> None:
    order = wire.TrainOrder(1, {}, {}, ("a",))
    err = ValueError("broken")
    assert list(corrupt([("a", err)], frozenset("a"), order, config("scale"))) == [("a", err)]


def test_labels_are_mirrored_and_padding_stays() -> None:
    y = torch.tensor([[0, 4, -100], [9, 1, 2]])
    assert flip_labels(y, 10).tolist() == [[9, 5, -100], [0, 8, 7]]


# ------------------------------------------------------------------------------- a whole federation


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = tmp_path_factory.mktemp("honest") / "owners.npz"
    write_owners(path)
    return shas(path)


def shas(path: Path, nodes: int = 1, seed: int = 0, **keys: Any) -> list[str]:
    played = play(owners_config(path, **keys), nodes=nodes, seed=seed)
    assert all(row["quarantined"] == [] for row in played.rows)
    return [row["model_sha256"] for row in played.rows[1:]]


@pytest.mark.parametrize("kind", KINDS)
def test_attackers_change_a_run_and_the_same_seed_the_same_way(
    kind: str, owners: Path, honest: list[str]
) -> None:
    attack = {"attack__kind": kind, "attack__fraction": 0.4}
    attacked = shas(owners, **attack)
    assert all(a != b for a, b in zip(attacked, honest, strict=True))
    assert attacked == shas(owners, seed=5, **attack)
    if kind not in INFORMED:  # which know their own node's clients only
        assert attacked == shas(owners, nodes=3, **attack)


def test_a_share_of_none_is_the_honest_run(owners: Path, honest: list[str]) -> None:
    assert shas(owners, attack__kind="scale", attack__fraction=0.0) == honest


def test_label_flip_trains_the_malicious_on_mirrored_labels(owners: Path, tmp_path: Path) -> None:
    """The same run as with the malicious owners' labels mirrored in their files."""
    bad = malicious(config("label-flip", 0.4, seed=3), tuple(sorted(SIZES)))
    assert len(bad) == 2
    data = dict(np.load(owners))
    flipped = np.isin(data["client"], list(bad))
    np.savez(tmp_path / "flipped.npz", **{**data, "y": np.where(flipped, 2 - data["y"], data["y"])})
    got = play(owners_config(owners, attack__kind="label-flip", attack__fraction=0.4))
    want = play(owners_config(tmp_path / "flipped.npz"))
    assert [r["model_sha256"] for r in got.rows] == [r["model_sha256"] for r in want.rows]


def test_a_robust_rule_withstands_what_fedavg_does_not(owners: Path) -> None:
    """One of five sends a hundred times its update: FedAvg leaves the honest run, the median does not."""
    keys = {"attack__kind": "scale", "attack__scale": 100.0, "attack__fraction": 0.2, "num_server_rounds": 3}

    def moved(algorithm: str) -> float:
        attacked, honest = (play(owners_config(owners, algorithm=algorithm, **k)).linear(3)[0] for k in (
            keys, {"num_server_rounds": 3}
        ))  # fmt: skip
        return float(np.abs(attacked - honest).max())

    assert moved("fedavg") > 1
    assert moved("median") < 0.3
    assert moved("fedavg") > 10 * moved("median")
