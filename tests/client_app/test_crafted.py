"""Attacks that know the benign updates, and backdoors: by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from client_app.stages.attacks import Attack
from client_app.stages.crafted import crafted, dot, hidden
from client_app.training.loop import Examples
from server_app.run.evaluate import attack_success
from task.catalogue.algorithms import ALGORITHMS
from task.config.attack_section import AttackConfig
from task.config.knobs import Config
from task.datasets.trigger import stamped
from task.errors import ConfigError
from task.resolve.read import read_config
from task.tasks import task_of
from task.tasks.kinds import CLASSIFICATION
from task.wire import messages as wire
from tests.client_app.test_attacks import sent

AT = ("arrays", "w")
THREE = [{AT: np.array(v)} for v in ([1.0, 0.0], [0.0, 2.0], [1.0, 1.0])]
ZERO = {AT: np.zeros(2)}


def test_inner_product_is_against_the_mean() -> None:
    assert crafted("inner-product", THREE, ZERO, 0.0)[AT] == pytest.approx([-0.2 / 3, -0.1])
    assert crafted("inner-product", THREE, ZERO, 2.0)[AT] == pytest.approx([-4 / 3, -2])
    # relative to w^t = (1, 1): Delta = (-1/3, 0)
    assert crafted("inner-product", THREE, {AT: np.ones(2)}, 1.0)[AT] == pytest.approx([4 / 3, 1])
    # m bad of n turn the mean round only if eps > (n - m) / m: here 3 of 6, and 1.0 cancels it
    bad = crafted("inner-product", THREE, ZERO, 1.0)[AT]
    assert np.mean([*[x[AT] for x in THREE], bad, bad, bad], axis=0) == pytest.approx([0, 0])


def test_min_max_and_min_sum_by_hand() -> None:
    assert hidden(THREE, by_sum=False)[AT] == pytest.approx([-0.046696, -0.235580], abs=1e-6)
    assert hidden(THREE, by_sum=True)[AT] == pytest.approx([0.5, 0.711325], abs=1e-6)
    assert hidden(THREE, by_sum=True, scale=2.0)[AT] == pytest.approx([2 / 3 - 2 * 3**-0.5, -1.0])
    assert hidden([THREE[0]] * 3, by_sum=False)[AT] == pytest.approx([1, 0])  # nowhere to hide


def test_they_are_as_far_as_the_farthest_benign_and_no_farther() -> None:
    rng = np.random.default_rng(3)
    benign = [{AT: rng.normal(size=9)} for _ in range(6)]

    def apart(a: Any, b: Any) -> float:
        return dot({AT: a[AT] - b[AT]}, {AT: a[AT] - b[AT]})

    x = hidden(benign, by_sum=False)
    assert max(apart(x, b) for b in benign) == pytest.approx(max(apart(a, b) for a in benign for b in benign))
    x = hidden(benign, by_sum=True)
    sums = [sum(apart(a, b) for b in benign) for a in benign]
    assert sum(apart(x, b) for b in benign) == pytest.approx(min(sums))


def test_mimic_sends_what_the_first_benign_client_sends() -> None:
    got = sent("mimic", order_="ebdca")
    for client in "bd":
        assert got[client].arrays["arrays"]["w"].tolist() == [11.0, 9.0]  # a's
    assert sent("mimic", bad="abcd")["a"].arrays["arrays"]["w"].tolist() == [15.0, 10.0]  # only e is benign


def test_model_replacement_scales_to_the_cohort() -> None:
    assert sent("model-replacement")["d"].arrays["arrays"]["w"].tolist() == [30.0, 20.0]  # five clients
    assert sent("model-replacement", 2.0)["d"].arrays["arrays"]["w"].tolist() == [18.0, 14.0]


# --------------------------------------------------------------------------------------- backdoors


def test_the_trigger_is_a_patch_in_the_corner_at_the_examples_own_largest_value() -> None:
    images = torch.arange(2 * 64.0).view(2, 1, 8, 8)
    got = stamped(images)
    assert (got[:, 0, 7, 7].tolist(), int((got != images).sum())) == ([63.0, 127.0], 0)  # it is the largest
    assert int((stamped(-images) != -images).sum()) == 2
    large = -torch.ones(2, 3, 28, 28)
    large[:, 0, 0, 0] = 1.0
    assert int((stamped(large) == 1).sum()) == 2 * (3 * 5 * 5 + 1)
    rows = torch.tensor([[9.0, 1, 1, 1], [1, 2, 3, 0]])
    assert stamped(rows).tolist() == [[9, 1, 1, 9], [1, 2, 3, 3]]
    assert rows.tolist() == [[9, 1, 1, 1], [1, 2, 3, 0]]


def poisoned(kind: str, **attack: Any) -> tuple[torch.Tensor, torch.Tensor]:
    config = Config(attack=AttackConfig(kind=kind, **attack))
    node: Any = SimpleNamespace(config=config, dataset=SimpleNamespace(num_classes=3, crop=0))
    stage = Attack(node, ALGORITHMS["fedavg"], wire.TrainOrder(3, {}, {}, ("a", "b")))
    stage._malicious = lambda: frozenset("b")  # type: ignore[method-assign]
    x, y = torch.tensor([[5.0, 1, 1, 1]] * 14), torch.ones(14, dtype=torch.int64)
    found = stage.examples(Examples(x, y, (4, 10)), ("a", "b"))
    return found.x, found.y


def test_a_share_of_the_malicious_clients_examples_has_trigger_and_target() -> None:
    x, y = poisoned("backdoor", target=2, poison=0.3)
    assert int((y == 2).sum()) == int((x[:, 3] == 5).sum()) == 3
    assert ((y == 2) == (x[:, 3] == 5)).all()
    assert (y[:4] == 1).all()
    again = poisoned("model-replacement", target=2, poison=0.3)  # the same ones in each round
    assert (again[1] == y).all()
    with pytest.raises(ConfigError, match=r'"attack\.target": expected a class of the data, 0 to 2; got 3'):
        task_of(Config(attack=AttackConfig(kind="backdoor", target=3)), "classification", 3)


def test_a_trigger_in_four_parts_is_the_whole_once_all_are_in() -> None:
    for shape, numbers in (((1, 1, 28, 28), 25), ((1, 3, 8, 8), 12), ((1, 6), 4)):
        x = torch.zeros(shape)
        x.flatten()[0] = 1.0
        parts = torch.stack([stamped(x, 4, part) != x for part in range(4)])
        assert torch.equal(parts.any(0), stamped(x, 4) != x)
        assert int(parts.sum()) == int(parts.any(0).sum()) == numbers
        assert all(part.any() for part in parts)


def test_malicious_clients_have_the_parts_of_a_trigger_in_turn() -> None:
    config = Config(attack=AttackConfig(kind="distributed-backdoor", target=2, poison=1.0))
    names = tuple("abcdef")
    node: Any = SimpleNamespace(
        config=config, dataset=SimpleNamespace(num_classes=3, crop=0), clients=SimpleNamespace(names=names)
    )
    stage = Attack(node, ALGORITHMS["fedavg"], wire.TrainOrder(3, {}, {}, names))
    stage._malicious = lambda: frozenset("bcdef")  # type: ignore[method-assign]
    x, y = torch.tensor([[5.0, 1, 1, 1, 1]] * 6), torch.ones(6, dtype=torch.int64)
    found = stage.examples(Examples(x, y, [1] * 6), names)
    where = [row.nonzero().flatten().tolist() for row in found.x[:, 1:] == 5]
    assert where == [[], [0], [1], [2], [3], [0]]
    assert found.y.tolist() == [1, 2, 2, 2, 2, 2]


def test_success_counts_examples_of_other_classes() -> None:
    model = torch.nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, 2.0], [1.0, 0.0]]))  # class 0 if the last column is large
        model.bias.zero_()
    x, y = torch.tensor([[1.0, 0], [1, 0], [-1, -1], [1, 0]]), torch.tensor([1, 1, 1, 0])
    # with the trigger (1, 1), (1, 1) go to 0 and (-1, -1) to 1; the fourth is of class 0
    assert attack_success(model, x, y, 0, CLASSIFICATION) == pytest.approx(2 / 3)
    assert attack_success(model, x[3:], y[3:], 0, CLASSIFICATION) is None


def test_words_and_numbers_have_no_backdoor() -> None:
    with pytest.raises(ConfigError, match=r'"attack\.kind": "backdoor" puts a patch'):
        read_config({"attack.kind": "backdoor", "task": "language"})
    with pytest.raises(ConfigError, match="trains on other classes"):
        read_config({"attack.kind": "backdoor", "task": "regression"})
