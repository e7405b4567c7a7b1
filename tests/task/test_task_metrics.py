"""Metrics of sums: scikit-learn's numbers, and the same bits however the examples are split over clients."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from task.errors import ConfigError
from task.numerics.limbs import exact, number_of
from task.tasks.metrics import BINS, METRICS, Measures, added

RNG = np.random.default_rng(5)
N, C = 400, 6
LOGITS = torch.from_numpy(RNG.normal(size=(N, C)).astype(np.float32))
CLASSES = torch.from_numpy(RNG.choice([0, 1, 2, 3, 5], N))  # class 4 never occurs, but is predicted
LABELS = torch.from_numpy(RNG.integers(0, 2, (N, C)).astype(np.float32))
NUMBERS = torch.from_numpy(RNG.normal(3, 2, (N, 2)).astype(np.float32))
GUESSES = NUMBERS + torch.from_numpy(RNG.normal(size=(N, 2)).astype(np.float32))
INPUTS = torch.from_numpy(RNG.normal(size=(N, 1, 8, 8)).astype(np.float32))
RESTORED = INPUTS + torch.from_numpy(RNG.normal(size=INPUTS.shape).astype(np.float32))
PREDICTED = LOGITS.argmax(1).numpy()


def of(task: str, outputs: torch.Tensor, y: torch.Tensor, parts: int = 1, *names: str) -> dict[str, Any]:
    """Return the metrics, of sums over so many parts of unequal sizes."""
    usual = tuple(n for n in METRICS[task] if n not in ("neg-elbo", "neg-iwae"))  # of tensors
    measures = Measures(task, names or usual, outputs.shape[1] if outputs.dim() > 1 else 1)
    cuts = np.sort(np.random.default_rng(parts).choice(len(y), parts - 1, replace=False))
    rows = np.split(np.random.default_rng(9).permutation(len(y)), cuts)
    sums = added([measures.sums(outputs[r], y[r], len(r)) for r in rows])
    assert {k: (a.shape, a.dtype) for k, a in sums.items()} == {
        k: (a.shape, a.dtype) for k, a in measures.like.items()
    }
    return measures.values(sums)


CASES = [
    ("classification", LOGITS, CLASSES),
    ("multi-label", LOGITS, LABELS),
    ("regression", GUESSES, NUMBERS),
    ("reconstruction", RESTORED, INPUTS),
    ("language", LOGITS.view(40, 10, C).transpose(1, 2), CLASSES.view(40, 10)),
]


@pytest.mark.parametrize(("task", "outputs", "y"), CASES, ids=[c[0] for c in CASES])
@pytest.mark.parametrize("parts", [2, 7, 39])
def test_a_split_over_clients_changes_no_bit(
    task: str, outputs: torch.Tensor, y: torch.Tensor, parts: int
) -> None:
    """A sum of floats would depend on who holds which examples."""
    assert of(task, outputs, y, parts) == of(task, outputs, y)


def test_classes_are_judged_as_by_scikit_learn_to_the_last_bit() -> None:
    got, y = of("classification", LOGITS, CLASSES), CLASSES.numpy()
    assert got["accuracy"] == sk.accuracy_score(y, PREDICTED)
    with pytest.warns(UserWarning, match="y_pred contains classes not in y_true"):
        assert got["balanced-accuracy"] == sk.balanced_accuracy_score(y, PREDICTED)
    for name, score in (("precision", sk.precision_score), ("recall", sk.recall_score), ("f1", sk.f1_score)):
        for how in ("macro", "micro"):
            assert got[f"{name}-{how}"] == score(y, PREDICTED, average=how, zero_division=0)
        assert got[f"{name}-per-class"] == score(y, PREDICTED, average=None, zero_division=0).tolist()
    assert got["confusion"] == sk.confusion_matrix(y, PREDICTED).tolist()
    assert got["top-5"] == sk.top_k_accuracy_score(y, LOGITS.numpy(), k=5, labels=range(C))
    p = torch.softmax(LOGITS.double(), 1).numpy()
    assert got["perplexity"] == pytest.approx(math.exp(sk.log_loss(y, p, labels=range(C))), rel=1e-14)


def test_labels_are_judged_as_by_scikit_learn_to_the_last_bit() -> None:
    got, y, predicted = of("multi-label", LOGITS, LABELS), LABELS.numpy(), (LOGITS > 0).numpy()
    assert got["accuracy"] == sk.accuracy_score(y, predicted)
    for name, score in (("precision", sk.precision_score), ("recall", sk.recall_score), ("f1", sk.f1_score)):
        for how in ("macro", "micro"):
            assert got[f"{name}-{how}"] == score(y, predicted, average=how)


def test_auroc_is_that_of_binned_scores_and_within_its_error_of_the_exact_one() -> None:
    p = torch.sigmoid(LOGITS.double()).numpy()
    got, binned = of("multi-label", LOGITS, LABELS), np.floor(p * BINS)
    assert got["auroc"] == pytest.approx(sk.roc_auc_score(LABELS.numpy(), binned), rel=1e-14)
    assert abs(got["auroc"] - sk.roc_auc_score(LABELS.numpy(), p)) <= got["auroc-error"] < 1e-3
    two = of("classification", LOGITS[:, :2], CLASSES % 2, 3, "auroc")
    exact_one = sk.roc_auc_score(CLASSES % 2, torch.softmax(LOGITS[:, :2].double(), 1)[:, 1])
    assert abs(two["auroc"] - exact_one) <= two["auroc-error"] < 1e-3


def test_numbers_are_judged_as_by_scikit_learn() -> None:
    got, y, p = of("regression", GUESSES, NUMBERS), NUMBERS.double().numpy(), GUESSES.double().numpy()
    assert got["mae"] == pytest.approx(sk.mean_absolute_error(y, p), rel=1e-15)
    assert got["mse"] == pytest.approx(sk.mean_squared_error(y, p), rel=1e-15)
    assert got["rmse"] == pytest.approx(sk.root_mean_squared_error(y, p), rel=1e-15)
    assert got["r2"] == pytest.approx(sk.r2_score(y, p), rel=1e-14)


def test_of_a_reconstruction_all_numbers_count_alike() -> None:
    got, y, p = of("reconstruction", RESTORED, INPUTS, 7), INPUTS.double().ravel(), RESTORED.double().ravel()
    assert got["mae"] == pytest.approx(sk.mean_absolute_error(y, p), rel=1e-14)
    assert got["mse"] == pytest.approx(sk.mean_squared_error(y, p), rel=1e-14)
    assert got["rmse"] == pytest.approx(sk.root_mean_squared_error(y, p), rel=1e-14)


def test_numbers_whose_sums_are_exact_agree_to_the_last_bit() -> None:
    """Quarters add up without rounding, in scikit-learn as well."""
    y, p = (torch.from_numpy(RNG.integers(-40, 40, 256) / 4).float() for _ in range(2))
    got = of("regression", p.unsqueeze(1), y, 5)
    assert got["mae"] == sk.mean_absolute_error(y.double(), p.double())
    assert got["mse"] == sk.mean_squared_error(y.double(), p.double())
    assert got["r2"] == sk.r2_score(y.double(), p.double())


def test_a_constant_target_is_met_or_not() -> None:
    """Its variance is 0: 1 - 0/0."""
    same = torch.full((4,), 2.5)
    assert of("regression", same.unsqueeze(1), same, 1, "r2")["r2"] == sk.r2_score(same, same) == 1.0
    assert (
        of("regression", (same + 1).unsqueeze(1), same, 1, "r2")["r2"] == sk.r2_score(same, same + 1) == 0.0
    )


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e30])
def test_sums_of_numbers_are_exact(scale: float) -> None:
    values = RNG.normal(size=501) * scale * 10.0 ** RNG.integers(-5, 5, 501)
    want = sum(map(Fraction, values.tolist()))
    assert number_of(exact(values)) == want
    assert number_of(exact(values[:100]) + exact(values[100:])) == want


def test_a_model_that_diverged_has_no_metric_and_spoils_no_sum() -> None:
    outputs = GUESSES.clone()
    outputs[3, 0] = math.nan
    assert of("regression", outputs, NUMBERS) == dict.fromkeys(("mae", "mse", "rmse", "r2"))


def test_padding_in_texts_is_not_judged() -> None:
    y = torch.tensor([[1, -100], [0, 1]])
    logits = torch.tensor([[[0.0, 9.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])  # [B, C, T]
    measures = Measures("language", ("confusion", "perplexity"), 2)
    values = measures.values(measures.sums(logits, y, 3))
    assert values["confusion"] == [[1, 0], [0, 2]]
    assert values["perplexity"] == pytest.approx(1 + math.exp(-1), rel=1e-14)


def test_what_is_not_defined_is_null_and_survives_the_record() -> None:
    measures = Measures("classification", ("confusion", "recall-per-class", "auroc"), 3)
    sums = measures.sums(torch.eye(3)[:1], torch.tensor([0]), 1)
    values = measures.values(sums)
    assert values == {"confusion": [[1, 0, 0], [0, 0, 0], [0, 0, 0]], "recall-per-class": [1.0, None, None],
                      "auroc": None, "auroc-error": None}  # fmt: skip
    assert measures.of_record(measures.record(sums)) == values
    assert set(measures.values(measures.like).values()) == {None}


def test_one_example_has_no_r2() -> None:
    """Nor does scikit-learn give one."""
    got = of("regression", torch.tensor([1.0]), torch.tensor([2.0]))
    assert (got["r2"], got["mae"]) == (None, 1.0)


def test_a_metric_of_another_task_is_refused_by_name() -> None:
    with pytest.raises(
        ConfigError, match=r'"metrics": task = "regression" has mae, mse, rmse, r2, .*; got "f1'
    ):
        Measures("regression", ("f1-macro",))
