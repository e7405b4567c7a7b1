"""A class at each place: losses of examples, the unit of weight, and metrics from exact sums."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from client_app.training.loop import Examples
from client_app.training.programs import Batch, Single
from task.errors import ConfigError
from task.models.adapt import Outputs, main_of
from task.tasks.base import Task, counted
from task.tasks.evaluate import measure
from task.tasks.kinds import dice_loss, make_task
from task.tasks.metrics import Measures, added

METRICS = ("miou", "dice", "pixel-accuracy", "iou-per-class", "dice-per-class", "confusion")


def maps(loss: str = "cross-entropy", own: Any = None, classes: int = 2) -> Task:
    return make_task("segmentation", loss, own, Measures("segmentation", METRICS, classes))


def logits_of(predicted: Any, classes: int = 2) -> torch.Tensor:
    """Return logits [1, C, H, W] whose largest is that of the predicted class."""
    y = torch.tensor(predicted)
    return torch.nn.functional.one_hot(y, classes).movedim(-1, 0)[None].float()


def sums_of(task: Task, *pairs: tuple[Any, Any]) -> dict[str, Any]:
    parts = [
        task.measures.sums(logits_of(predicted), torch.tensor(true)[None], 1) for true, predicted in pairs
    ]
    return task.measures.values(added(parts))


ONE = ([[0, 0], [1, 1]], [[0, 1], [1, 1]])  # truth, predicted
OTHER = ([[1, 1], [1, 1]], [[1, 1], [1, 1]])  # confusion [[0, 0], [0, 4]]


def test_iou_and_dice_by_hand_and_pooled_over_clients() -> None:
    """One: row sums 2, 2, column sums 1, 3; both: confusion [[1, 1], [0, 6]]."""
    task = maps()
    one = sums_of(task, ONE)
    assert one["iou-per-class"] == pytest.approx([1 / 2, 2 / 3])
    assert one["miou"] == pytest.approx(0.58333, abs=1e-5)
    assert one["dice-per-class"] == pytest.approx([2 / 3, 0.8])
    assert one["pixel-accuracy"] == 0.75
    both = sums_of(task, ONE, OTHER)
    assert both["confusion"] == [[1, 1], [0, 6]]
    assert both["iou-per-class"] == pytest.approx([1 / 2, 6 / 7])
    assert both["miou"] == pytest.approx(0.678571, abs=1e-6)
    assert both == sums_of(task, OTHER, ONE)
    lone = sums_of(task, OTHER)["miou"]
    assert (one["miou"] + lone) / 2 == pytest.approx(0.7917, abs=1e-4)  # what it is not


def test_a_class_that_neither_occurs_nor_is_predicted_is_left_out_and_void_pixels_do_not_count() -> None:
    task = maps(classes=3)
    y = torch.tensor([[[0, 0, -100], [1, 1, -100]]])
    values = task.measures.values(task.measures.sums(logits_of([[0, 1, 2], [1, 1, 2]], 3), y, 1))
    assert values["iou-per-class"] == [pytest.approx(1 / 2), pytest.approx(2 / 3), None]
    assert values["miou"] == pytest.approx(0.58333, abs=1e-5)


def test_dice_by_hand() -> None:
    """Half of 2x2, equal logits: 1 - (2 * 1 + 1) / (2 + 2 + 1) = 0.4 in both classes; a sure right one: 0."""
    y = torch.tensor([[[0, 0], [1, 1]]])
    assert float(dice_loss(torch.zeros(1, 2, 2, 2), y)) == pytest.approx(0.4)
    assert float(dice_loss(1e4 * logits_of([[0, 0], [1, 1]]), y)) == pytest.approx(0.0, abs=1e-6)
    void = torch.tensor([[[0, -100], [1, -100]]])  # 1 - (2 * .5 + 1) / (1 + 1 + 1)
    assert float(dice_loss(torch.zeros(1, 2, 2, 2), void)) == pytest.approx(1 / 3)
    assert float(dice_loss(torch.zeros(1, 2, 2, 2), torch.full_like(y, -100))) == 0.0


@pytest.mark.parametrize("loss", ["cross-entropy", "dice", "focal"])
def test_the_loss_is_that_of_each_example_whatever_its_batch(loss: str) -> None:
    generator = torch.Generator().manual_seed(1)
    outputs = torch.randn(4, 3, 5, 6, generator=generator)
    y = torch.randint(0, 3, (4, 5, 6), generator=generator)
    y[0, 2:], y[3] = -100, -100
    task = maps(loss, classes=3)
    each = task.each(outputs, y)
    assert each.shape == (4,)
    assert each[3] == 0.0
    assert torch.equal(each, torch.cat([task.each(outputs[i : i + 1], y[i : i + 1]) for i in range(4)]))
    if loss == "cross-entropy":
        want = torch.nn.functional.cross_entropy(outputs[:1, :, :2], y[:1, :2])
        assert float(each[0]) == pytest.approx(float(want), rel=1e-6)


def test_a_map_counts_once_and_a_text_each_token() -> None:
    """n_k and the divisor of a batch's loss are of one unit, that of the loss that is summed."""
    y = torch.full((3, 2, 4, 4), -100)
    y[0, 0, 0, 0], y[1, :, 1] = 1, 0
    assert counted(y[:, 0]).tolist() == [1, 1, 0]
    assert counted(y, 2).tolist() == [[1, 0], [1, 1], [0, 0]]
    assert Examples(torch.zeros(3, 1), y[:, 0], [2, 1]).targets.tolist() == [1, 1, 0]
    tokens = torch.tensor([[1, 2, -100], [3, -100, -100]])
    assert Examples(torch.zeros(2, 1), tokens, [2]).counted(0) == 3


def test_an_example_without_targets_changes_no_gradient() -> None:
    """A batch with a row of padding has the gradient of the batch without."""
    torch.manual_seed(0)
    model = torch.nn.Conv2d(1, 2, 3, padding=1)
    x, y = torch.randn(1, 3, 1, 4, 4), torch.randint(0, 2, (1, 3, 4, 4))
    for task in (maps(), maps("dice")):
        program = Single(model, task)
        params = [p.detach().unsqueeze(0) for p in model.parameters()]
        _, two = program.gradient(params, Batch(x[:, :2], y[:, :2], torch.tensor([1 / 2])))
        padded = y.clone()
        padded[:, 2] = -100
        _, three = program.gradient(params, Batch(x, padded, torch.tensor([1 / 2])))
        for a, b in zip(two.tensors(), three.tensors(), strict=True):
            assert torch.allclose(a, b, atol=1e-6)


def test_a_loss_of_ones_own_is_of_each_example() -> None:
    def batch_dice(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        p = torch.softmax(outputs, 1)[:, 1]
        return (1 - 2 * (p * y).sum() / (p.sum() + y.sum())).expand(len(y))

    def mean(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs, y)

    model = torch.nn.Conv2d(1, 2, 3, padding=1)
    x, y = torch.randn(2, 1, 4, 4), torch.tensor([[[0, 1]] * 4, [[1, 1]] * 4]).repeat(1, 1, 2)
    with pytest.raises(ConfigError, match="does not depend on the others of its batch"):
        maps("own:dice", batch_dice).check(model, x, y, 2)
    with pytest.raises(ConfigError, match="neither their mean nor their sum"):
        maps("own:mean", mean).check(model, x, y, 2)
    maps("own:sum", lambda outputs, y: (outputs.sum(1) - y).square().mean((1, 2))).check(model, x, y, 2)


def test_perplexity_is_of_all_tokens_and_neither_padding_nor_batches_move_it() -> None:
    """Equal logits of 50 classes: ln 50 a token, perplexity 50."""
    task = make_task("language", "cross-entropy", None, Measures("language", ("perplexity",), 50))
    y = torch.randint(0, 50, (9, 7), generator=torch.Generator().manual_seed(3))
    y[2, 3:], y[5] = -100, -100
    equal = torch.nn.Module()
    equal.forward = lambda x: torch.zeros(len(x), 50, 7)  # type: ignore[assignment,method-assign]
    found, sums = measure(equal, torch.zeros(9, 1), y, task=task)
    assert found["loss"] == pytest.approx(math.log(50), abs=1e-6)
    assert task.measures.values(sums)["perplexity"] == pytest.approx(50, abs=1e-5)

    torch.manual_seed(4)
    table = torch.randn(9, 50, 7)
    model = torch.nn.Module()
    model.forward = lambda x: table[x[:, 0].long()]  # type: ignore[assignment,method-assign]
    rows = torch.arange(9.0)[:, None]
    whole = measure(model, rows, y, task=task)[1]
    order = torch.tensor([3, 1, 4, 0, 5, 8, 2, 6, 7])
    moved = measure(model, rows[order], y[order], batch=2, task=task)[1]
    assert task.measures.values(whole) == task.measures.values(moved)


def test_the_tensor_that_counts_of_dicts_and_tuples() -> None:
    """Of `transformers` the logits, of torchvision out; classes last become second where tokens have them."""
    z, other = torch.zeros(2, 6, 5), torch.ones(2, 3)
    tokens, maps_ = Outputs(5, sequence=True), Outputs(5, sequence=False)
    assert main_of({"loss": other, "logits": z}, maps_) is z
    assert main_of({"out": z, "aux": other}, maps_) is z
    assert main_of((None, z, other), maps_) is z
    assert main_of({"a": z}, maps_) is z
    both = {"a": z, "b": other}
    assert main_of(both, maps_) is both
    assert main_of({"logits": z}, tokens).shape == (2, 5, 6)
    assert main_of(z, tokens).shape == (2, 5, 6)
    assert main_of(z.movedim(1, 2), tokens).shape == (2, 5, 6)
    square = torch.arange(50.0).view(2, 5, 5)
    assert torch.equal(main_of(square, tokens), square)  # a tensor as our tasks declare it
    assert torch.equal(main_of({"logits": square}, tokens), square.movedim(2, 1))


def test_few_logits_of_many_places_are_in_memory_at_once() -> None:
    seen = []
    model = torch.nn.Module()
    model.forward = lambda x: (seen.append(len(x)), torch.zeros(len(x), 2, 64, 64))[1]  # type: ignore[assignment,method-assign]
    y = torch.zeros(7, 64, 64, dtype=torch.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("task.tasks.evaluate.MOST", 3 * 2 * 64 * 64)
        found, _ = measure(model, torch.zeros(7, 1), y, task=maps())
    assert seen == [3, 3, 1]
    assert found["num-examples"] == 7
    assert found["loss"] == pytest.approx(np.log(2), abs=1e-6)
