"""The trace of device speeds and the simulated seconds that come from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from strategies import STRATEGIES
from strategies.engine.cohort import Cohorts
from strategies.engine.fold import Folded
from strategies.engine.rule import Phase, RoundContext
from strategies.engine.state import ServerState
from strategies.rules.client_models import ModelsState
from strategies.selection.devices import Devices, Times, round_seconds, traffic, work_of
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.stages import with_stages
from task.config.knobs import Config
from task.config.personal_sections import FedFomoConfig
from task.config.sections import DevicesConfig, TrainConfig

NAMES = [f"client-{i:04d}" for i in range(4000)]
AVG = ALGORITHMS["fedavg"]


def test_rates_are_lognormal_and_independent_of_each_other() -> None:
    speed, link = Devices(DevicesConfig(speed=50.0, bandwidth=2.0, spread=0.5), 1).rates(NAMES)
    z = np.stack([np.log(speed / 50.0) / 0.5, np.log(link / 250_000) / 0.5])  # 2 Mbit/s
    # 4000 draws: standard error of the mean 0.016, of the deviation 0.011, of the correlation 0.016
    assert np.abs(z.mean(1)).max() < 5 * 0.016
    assert np.abs(z.std(1) - 1).max() < 5 * 0.011
    assert abs(np.corrcoef(z)[0, 1]) < 5 * 0.016
    assert 0.155 < (np.abs(z) > 1.0).mean() / 2 < 0.163  # a normal law has 0.1587 beyond one deviation


def test_a_device_depends_on_its_name_and_the_seed_alone() -> None:
    one, other = Devices(DevicesConfig(), 1), Devices(DevicesConfig(), 2)
    whole = one.rates(NAMES)[0]
    assert one.rates(NAMES) is one.rates(NAMES)  # drawn once for a population
    assert one.rates(["client-0007"])[0][0] == whole[7] == Devices(DevicesConfig(), 1).rates(NAMES[5:9])[0][2]
    assert one.rates(NAMES)[0] is whole  # a cohort does not push it out
    assert not np.isclose(other.rates(NAMES)[0], whole).any()


def test_without_spread_all_devices_are_the_median() -> None:
    times = Devices(DevicesConfig(speed=100.0, bandwidth=8.0, spread=0.0), 3).times(
        ["a", "b"], [50, 200], 10**6, 500_000
    )
    assert times.download.tolist() == [1.0, 1.0]  # 8 Mbit/s = 1 MB/s
    assert times.update.tolist() == [0.5, 2.0]
    assert times.upload.tolist() == [0.5, 0.5]
    assert times.total.tolist() == [2.0, 3.5]


def test_a_round_ends_with_its_slowest_client_or_with_the_last_upload() -> None:
    times = Times(np.array([1.0, 4.0]), np.array([5.0, 1.0]), np.array([2.0, 3.0]))
    assert round_seconds(times, shared=False) == 8.0
    # shared: the model is out at 4; ready at 9 and 5; uploads 5 to 8, then 9 to 11
    assert round_seconds(times, shared=True) == 11.0
    nobody = Times(*[np.zeros(0)] * 3)
    assert round_seconds(nobody, shared=False) == round_seconds(nobody, shared=True) == 0.0


@pytest.mark.parametrize(
    ("train", "epochs", "work"),
    [
        ({"local_epochs": 5}, 0, 150.0),
        ({"local_epochs": 5}, 2, 60.0),  # a straggler
        ({"local_steps": 4, "batch_size": 10}, 0, 40.0),
        ({"local_steps": 4, "batch_size": 50}, 0, 120.0),  # 30 examples fill no batch of 50
        ({"local_steps": 4, "batch_size": 0}, 0, 120.0),
    ],
)
def test_work_counts_the_examples_that_are_gone_through(
    train: dict[str, int], epochs: int, work: float
) -> None:
    assert work_of(AVG, TrainConfig(**train), 30, epochs) == work  # type: ignore[arg-type]
    # Oort's loss is one forward pass more, a third of 30
    oort = with_stages(AVG, frozenset({"loss"}))
    assert math.isclose(work_of(oort, TrainConfig(**train), 30, epochs), work + 10)  # type: ignore[arg-type]


def test_traffic_is_the_contracts() -> None:
    state = {"w": np.zeros((3, 4), np.float32), "count": np.zeros((), np.int64)}
    assert traffic(AVG, state, ("w",)) == (56, 56)
    assert traffic(ALGORITHMS["fedsgd"], state, ("w",)) == (56, 48)  # the gradient has no buffers
    assert traffic(ALGORITHMS["fedfomo"], state, ("w",), 3) == (3 * 56, 56)


def small_round(
    config: Config, phase_bytes: int, own_up: dict[str, int]
) -> tuple[Cohorts, Callable[[], float]]:
    """Return the cohorts of a run of FedAvg on two clients, and what gives the seconds of its next round.

    Its model has 400 bytes, and `phase_bytes` go down and `own_up` come up in its place.
    """
    registry = SimpleNamespace(
        names=["a", "b"], num_examples=lambda names: dict.fromkeys(names, 10), draw=lambda *_: ["a", "b"]
    )
    rule = STRATEGIES["fedavg"](config).rule
    cohorts = Cohorts(config, AVG, rule, registry)  # type: ignore[arg-type]
    state = ServerState({"w": np.zeros(100, np.float32)})
    context = RoundContext(rule, AVG, 1, 0.1, (), registry.names, ("w",), registry.num_examples)

    def seconds() -> float:
        plan = cohorts.draw(state, context, lambda phase: Folded(None, [], {}, 0))
        own_down, most = dict.fromkeys(plan.cohort, phase_bytes), max(own_up.values(), default=0)
        folded = Folded(None, [], {}, 0, own_down=own_down, own_up=own_up, most_up=most)
        return cohorts.seconds([(Phase("train", AVG, plan.cohort), folded)])

    return cohorts, seconds


DEVICE = DevicesConfig(speed=10.0, bandwidth=0.0008, spread=0.0)  # 10 examples/s, 100 B/s


def test_a_round_takes_as_long_as_what_was_sent_and_not_as_the_contracts_arrays() -> None:
    """1 s for the examples; 4 s each way for the model, 0.2 s and 0.1 s for codes of 20 and 10 bytes."""
    config = Config(devices=DEVICE, train=TrainConfig(local_epochs=1))
    assert small_round(config, 400, {"a": 400, "b": 400})[1]() == pytest.approx(9.0)
    assert small_round(config, 20, {"a": 10, "b": 5})[1]() == pytest.approx(1.3)
    # b did not answer, and has uploaded as much as the others
    assert small_round(config, 20, {"a": 10})[1]() == pytest.approx(1.3)
    assert small_round(config, 20, {})[1]() == pytest.approx(1.2)


def test_policies_that_look_ahead_count_on_codes_as_small_as_the_last() -> None:
    """The model would take 4 s each way."""
    config = Config(devices=DEVICE, train=TrainConfig(local_epochs=1))
    cohorts, seconds = small_round(config, 20, {"a": 12, "b": 8})

    def ahead(cohorts: Cohorts) -> list[float]:
        times = cohorts._pool.times(["a"])
        return [float(t[0]) for t in (times.download, times.update, times.upload)]

    assert cohorts.dump() == {}
    seconds()
    assert ahead(cohorts) == pytest.approx([0.2, 1.0, 0.12])  # the longer of two codes
    resumed, _ = small_round(config, 20, {})
    resumed.load(cohorts.dump())
    assert {k: a.tolist() for k, a in resumed.dump().items()} == {
        "devices/packed": pytest.approx([0.05, 0.03])
    }
    whole, seconds = small_round(config, 400, {"a": 400, "b": 400})
    seconds()
    assert whole.dump() == {}  # nothing to keep where the contract says it all


@pytest.mark.parametrize(
    ("name", "knobs", "each"),
    [("fedavg", {}, 1), ("apple", {}, 4), ("fedfomo", {"download": 0}, 3), ("fedfomo", {"download": 2}, 2),
     ("fedfomo", {"download": 9}, 3), ("fedamp", {}, 1)],
)  # fmt: skip
def test_who_gets_many_models_waits_for_many(name: str, knobs: dict[str, int], each: int) -> None:
    config = Config(algorithm=name, fedfomo=FedFomoConfig(**knobs))
    rule = STRATEGIES[name](config).rule
    w = np.zeros(2, np.float32)
    state = ModelsState({"w": w}, models={f"{client}/w": w for client in "abcd"})
    assert rule.routed_per_client(state) == each
    nobody = {"apple": 0, "fedfomo": 0}.get(name, 1)
    assert rule.routed_per_client(ModelsState({"w": w})) == nobody
