"""Evaluation over the whole set: values by hand, and no trace left."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from task.tasks.evaluate import BATCH, measure
from tests.support.models import Bytes, Noisy, OneNumber, blobs


def test_loss_and_accuracy_by_hand() -> None:
    # w = 1, logits (0, x): p(1) = sigmoid(x). x = 2, y = 1: right; x = -1, y = 1: wrong; x = 3, y = 0: wrong
    x, y = torch.tensor([2.0, -1.0, 3.0]), torch.tensor([1, 1, 0])
    got, _ = measure(OneNumber(1.0), x, y)
    want = (math.log1p(math.exp(-2)) + math.log1p(math.exp(1)) + math.log1p(math.exp(3))) / 3
    assert got == {"loss": pytest.approx(want), "accuracy": pytest.approx(1 / 3), "num-examples": 3}


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 1000])
def test_it_is_a_mean_over_examples_not_over_batches(batch: int) -> None:
    # 4 + 1 examples: the short last batch must not weigh as much as the first
    x, y = torch.tensor([5.0, 5.0, 5.0, 5.0, -5.0]), torch.ones(5).long()
    got, _ = measure(OneNumber(1.0), x, y, batch)
    want = (4 * math.log1p(math.exp(-5)) + math.log1p(math.exp(5))) / 5
    assert got["loss"] == pytest.approx(want)
    assert (got["accuracy"], got["num-examples"]) == (0.8, 5)


def test_padding_does_not_count() -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # class 1 with probability e / (1 + e) everywhere; logits [B, 2, T]
            return torch.stack([torch.zeros(x.shape), torch.ones(x.shape)], 1)

    y = torch.tensor([[1, 1, -100], [0, -100, -100]])
    got, _ = measure(Fixed(), torch.zeros(2, 3), y)
    right, wrong = math.log1p(math.exp(-1)), math.log1p(math.exp(1))
    assert got == {
        "loss": pytest.approx((2 * right + wrong) / 3), "accuracy": pytest.approx(2 / 3), "num-examples": 3,
    }  # fmt: skip


def test_text_that_is_all_padding_counts_nothing() -> None:
    got, _ = measure(Bytes(), torch.zeros((2, 3), dtype=torch.int64), torch.full((2, 3), -100))
    assert got == {"loss": 0.0, "accuracy": 0.0, "num-examples": 0}


@pytest.mark.parametrize("training", [True, False])
def test_it_is_in_evaluation_mode_and_leaves_the_model_as_it_was(training: bool) -> None:
    model = Noisy().train(training)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    generator = torch.get_rng_state()
    x, y = blobs(2 * BATCH + 7)
    first, again = measure(model, x, y), measure(model, x, y)
    assert first == again  # dropout is off
    assert model.training is training
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in before.items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(p.grad is None for p in model.parameters())


def test_a_model_that_learned_can_still_be_trained_afterwards() -> None:
    model, (x, y) = Noisy(), blobs(8)
    measure(model, x, y)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()  # inference mode must not have marked the parameters
    assert model.out.weight.grad is not None


@pytest.mark.parametrize("n", [1, 7, 40])
def test_threads_share_the_batches_and_change_no_bit(n: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 4)
    x, y = torch.randn(n, 3), torch.randint(0, 4, (n,))
    alone = measure(model, x, y, batch=4)
    assert measure(model, x, y, batch=4, threads=3) == alone
    assert alone[0]["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(model(x), y).detach()))


def test_what_goes_wrong_in_a_thread_is_raised() -> None:
    with pytest.raises(RuntimeError):
        measure(torch.nn.Linear(3, 4), torch.randn(9, 2), torch.zeros(9, dtype=torch.int64), 4, threads=2)
