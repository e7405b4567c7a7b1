"""Metrics as functions of sums over examples, so that the parts of many clients merge exactly.

A metric never sees a whole set: it takes integers that were added over batches, clients and nodes, in any
order. Counts are integers by themselves, and sums of numbers, such as that of squared errors, are made into
integers by `task.numerics.limbs`. Definitions are scikit-learn's, with its defaults:

=========================  ==================================================  ==============================
sums                       what they are                                       metrics of them
=========================  ==================================================  ==============================
``confusion`` [C, C]       examples by class (row) and prediction (column)     accuracy, balanced-accuracy,
                                                                               precision, recall, f1,
                                                                               confusion
``top`` [1]                examples whose class is among 5 largest logits      top-5
``surprise`` [1, LIMBS]    -log p of the class, by cross-entropy               perplexity
``scores`` [C, 2, BINS]    examples by score, without and with the class       auroc, with its error
``calibration`` [10, 2 +   by tenth of the probability: examples, those that   ece
LIMBS]                     are right of it, and the sum of the probabilities
``labels`` [C, 3]          true positives, predicted and true by label         precision, recall, f1
``exact`` [1]              examples whose labels are all right                 accuracy
``confusion`` of pixels    the same of all pixels that count                   miou, dice, pixel-accuracy
``errors`` [d, 4, LIMBS]   |r|, r^2, y and y^2 by output, r = output - y       mae, mse, rmse, r2
``pairs`` [2]               pairs in the right order, and with a known one,     accuracy: concordance
                           twice, `task.tasks.lifetimes`
``elbo``, ``iwae``         bounds of -log p(x), `task.models.elbo`; [1, LIMBS]  neg-elbo, neg-iwae
=========================  ==================================================  ==============================

AUROC is that of scores rounded down to multiples of 1/1024: at most half of the pairs whose scores are in one
bin count wrongly, and ``auroc-error`` is that share. ECE, the expected calibration error of Guo et al. 2017,
arXiv 1706.04599, equation 3, has ten equal bins of a probability: of two classes that of class 1, which is
right of those of class 1, else that of the predicted class, which is right where the prediction is. Metrics
of a user's own: `task.tasks.own_metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from task.errors import ConfigError
from task.models.elbo import Posterior, neg_elbo, neg_iwae
from task.numerics.arrays import Arrays
from task.numerics.limbs import LIMBS, Ints, exact, number_of
from task.numerics.metrics import TENTHS
from task.references import is_reference
from task.tasks.lifetimes import ordered_pairs
from task.tasks.own_metrics import OwnMetric

Value = float | list[float | None] | list[list[float]] | None
BINS = 1024
COUNT = "count"


# ------------------------------------------------------------------------------ what is added up


def _flat(outputs: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits [n, C] and classes [n] of all targets that count."""
    logits = outputs.movedim(1, -1).reshape(-1, outputs.shape[1])
    classes = y.reshape(-1)
    keep = classes >= 0
    return logits[keep], classes[keep]


def _confusion(outputs: torch.Tensor, y: torch.Tensor, classes: int) -> Ints:
    logits, true = _flat(outputs, y)
    cells = (true * classes + logits.argmax(1)).cpu().numpy()
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes).astype(np.int64)


def _top(outputs: torch.Tensor, y: torch.Tensor, classes: int) -> Ints:
    logits, true = _flat(outputs, y)
    best = logits.topk(min(5, classes), 1).indices
    return np.array([int((best == true.unsqueeze(1)).sum())], np.int64)


def _surprise(outputs: torch.Tensor, y: torch.Tensor, classes: int) -> Ints:
    logits, true = _flat(outputs, y)
    each = torch.nn.functional.cross_entropy(logits.double(), true, reduction="none")
    return exact(each.cpu().numpy()[:, None])


def _binned(scores: torch.Tensor, truth: torch.Tensor) -> Ints:
    """Return, of scores [n, C] from 0 to 1 and truth [n, C], the examples [C, 2, BINS]."""
    bins = (scores.double() * BINS).long().clamp(0, BINS - 1)
    columns = scores.shape[1]
    cells = ((torch.arange(columns, device=scores.device) * 2 + truth.long()) * BINS + bins).flatten()
    found = np.bincount(cells.cpu().numpy(), minlength=columns * 2 * BINS)
    return found.reshape(columns, 2, BINS).astype(np.int64)


def _class_scores(outputs: torch.Tensor, y: torch.Tensor, classes: int) -> Ints:
    logits, true = _flat(outputs, y)
    p = torch.softmax(logits.double(), 1)
    truth = true.unsqueeze(1) == torch.arange(classes, device=true.device)
    return _binned(p[:, 1:], truth[:, 1:]) if classes == 2 else _binned(p, truth)


def _calibration(outputs: torch.Tensor, y: torch.Tensor, classes: int) -> Ints:
    """Return by tenth of the probability the examples, the right ones, and the sum of it as limbs.

    Of two classes, an example is in the upper five tenths exactly if class 1 is predicted.
    """
    logits, true = _flat(outputs, y)
    p, predicted = torch.softmax(logits.double(), 1), logits.argmax(1)
    if classes == 2:
        scores, right, low, high = p[:, 1], true == 1, predicted * TENTHS // 2, (predicted + 1) * TENTHS // 2
    else:
        scores, right = p.amax(1), predicted == true
        low, high = torch.zeros_like(predicted), torch.full_like(predicted, TENTHS)
    tenths = torch.minimum(torch.maximum((scores * TENTHS).long(), low), high - 1).cpu().numpy()
    said, found = scores.cpu().numpy(), np.zeros((TENTHS, 2 + LIMBS), np.int64)
    found[:, 0] = np.bincount(tenths, minlength=TENTHS)
    found[:, 1] = np.bincount(tenths[right.cpu().numpy()], minlength=TENTHS)
    for b in np.unique(tenths):
        found[b, 2:] = exact(said[tenths == b, None])[0]
    return found


def _label_scores(outputs: torch.Tensor, y: torch.Tensor, classes: int) -> Ints:
    return _binned(torch.sigmoid(outputs.double()), y > 0.5)


def _labels(outputs: torch.Tensor, y: torch.Tensor, classes: int) -> Ints:
    predicted, true = outputs > 0, y > 0.5
    found = torch.stack([(predicted & true).sum(0), predicted.sum(0), true.sum(0)], 1)
    return found.cpu().numpy().astype(np.int64)


def _all_right(outputs: torch.Tensor, y: torch.Tensor, classes: int) -> Ints:
    return np.array([int(((outputs > 0) == (y > 0.5)).all(1).sum())], np.int64)


def _errors(outputs: torch.Tensor, y: torch.Tensor, classes: int) -> Ints:
    true = y.double().reshape(len(y), -1).cpu().numpy()
    r = outputs.double().reshape(true.shape).cpu().numpy() - true
    return exact(np.stack([np.abs(r), r * r, true, true * true], 2))


def _bound(of: Callable[[Any, torch.Tensor], torch.Tensor]) -> _Add:
    def add(outputs: Any, y: torch.Tensor, classes: int) -> Ints:
        return exact(of(outputs, y).double().cpu().numpy()[:, None])

    return add


def _pixels(outputs: torch.Tensor | Posterior, y: torch.Tensor, classes: int) -> Ints:
    """Return the sums of each example's means over its numbers, so that all numbers count alike."""
    pixels = outputs.reconstruction() if isinstance(outputs, Posterior) else outputs
    r = (pixels.double().reshape(len(y), -1) - y.double().reshape(len(y), -1)).cpu().numpy()
    return exact(np.stack([np.abs(r).mean(1, keepdims=True), (r * r).mean(1, keepdims=True)], 2))


# ------------------------------------------------------------------------------ what follows from it

Sums = Mapping[str, Ints]


def _ratio(numerator: npt.NDArray[Any], denominator: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the quotients, 0 where the denominator is 0, as scikit-learn does by default."""
    return np.where(denominator == 0, 0.0, numerator / np.where(denominator == 0, 1, denominator))


def _positives(sums: Sums) -> tuple[Ints, Ints, Ints]:
    """Return true positives, predicted and true by class: those that occur; of labels, by label."""
    if "labels" in sums:
        return sums["labels"][:, 0], sums["labels"][:, 1], sums["labels"][:, 2]
    table = sums["confusion"]
    found = np.diag(table), table.sum(0), table.sum(1)
    occurs = found[1] + found[2] > 0
    return found[0][occurs], found[1][occurs], found[2][occurs]


def _precision(tp: npt.NDArray[Any], predicted: Any, true: Any) -> npt.NDArray[np.float64]:
    return _ratio(tp, predicted)


def _recall(tp: npt.NDArray[Any], predicted: Any, true: Any) -> npt.NDArray[np.float64]:
    return _ratio(tp, true)


def _f1(tp: npt.NDArray[Any], predicted: Any, true: Any) -> npt.NDArray[np.float64]:
    return _ratio(2.0 * tp, true + predicted)


def _iou(tp: npt.NDArray[Any], predicted: Any, true: Any) -> npt.NDArray[np.float64]:
    return _ratio(tp, true + predicted - tp)


def _macro(of: Callable[..., npt.NDArray[np.float64]]) -> Callable[[Sums], Value]:
    def value(sums: Sums) -> Value:
        scores = of(*_positives(sums))
        return float(np.average(scores)) if scores.size else None

    return value


def _micro(of: Callable[..., npt.NDArray[np.float64]]) -> Callable[[Sums], Value]:
    return lambda sums: float(of(*(np.array(part.sum()) for part in _positives(sums))))


def _per_class(of: Callable[..., npt.NDArray[np.float64]]) -> Callable[[Sums], Value]:
    def value(sums: Sums) -> Value:
        """Return a score for each class; None for one that does not occur."""
        table = sums.get("labels")
        if table is not None:
            return list(of(*_positives(sums)).tolist())
        table = sums["confusion"]
        occurs = table.sum(0) + table.sum(1) > 0
        scores = iter(of(*_positives(sums)).tolist())
        return [next(scores) if here else None for here in occurs]

    return value


def _accuracy(sums: Sums) -> Value:
    if "exact" in sums:
        return int(sums["exact"][0]) / int(sums[COUNT][0])
    return int(np.trace(sums["confusion"])) / int(sums["confusion"].sum())


def _balanced(sums: Sums) -> Value:
    tp, _, true = _positives(sums)
    return float(np.mean(tp[true > 0] / true[true > 0]))


def _auroc(sums: Sums) -> tuple[float | None, float | None]:
    """Return the mean over classes with and without examples, and the error at most."""
    areas, errors = [], []
    for without, with_ in sums["scores"].tolist():
        pairs = sum(without) * sum(with_)
        if not pairs:
            continue
        below = twice = same = 0
        for negatives, positives in zip(without, with_, strict=True):
            twice += positives * (2 * below + negatives)
            same += positives * negatives
            below += negatives
        areas.append(twice / (2 * pairs))
        errors.append(same / (2 * pairs))
    return (float(np.mean(areas)), float(np.mean(errors))) if areas else (None, None)


def calibration_error(tenths: Ints) -> float | None:
    """Return sum_b |sum of p - right examples| / n over bins b, [bins, 2 + LIMBS]; None without examples."""
    n = int(tenths[:, 0].sum())
    gaps = [abs(number_of(row[2:]) - int(row[1])) for row in tenths if row[0]]
    return float(sum(gaps) / n) if n else None


def _mean_of(i: int) -> Callable[[Sums], Value]:
    def value(sums: Sums) -> Value:
        n = int(sums[COUNT][0])
        return _average([float(number_of(of[i]) / n) for of in sums["errors"]])

    return value


def _mean_bound(name: str) -> Callable[[Sums], Value]:
    return lambda sums: float(number_of(sums[name][0]) / int(sums[COUNT][0]))


def _rmse(sums: Sums) -> Value:
    n = int(sums[COUNT][0])
    return _average([math.sqrt(number_of(of[1]) / n) for of in sums["errors"]])


def _r2(sums: Sums) -> Value:
    """Return the mean over the outputs of 1 - sum r^2 / sum (y - mean y)^2."""
    n, scores = int(sums[COUNT][0]), []
    if n < 2:
        return None  # as in scikit-learn
    for _, squares, total, total_squares in sums["errors"]:
        residual, spread = number_of(squares), number_of(total_squares) - number_of(total) ** 2 / n
        # a constant target: 1 if it is met, else 0
        scores.append(float(1 - residual / spread) if spread else float(residual == 0))
    return _average(scores)


def _average(scores: list[float]) -> float:
    return math.fsum(scores) / len(scores)


@dataclass(frozen=True)
class Metric:
    """A metric of the table above."""

    sums: str  # what it is a function of
    value: Callable[[Sums], Value]


def _of_positives(sums: str) -> dict[str, Metric]:
    kinds = {"precision": _precision, "recall": _recall, "f1": _f1}
    ways = {"macro": _macro, "micro": _micro, "per-class": _per_class}
    return {f"{k}-{w}": Metric(sums, way(of)) for k, of in kinds.items() for w, way in ways.items()}


_AUROC = {
    "auroc": Metric("scores", lambda sums: _auroc(sums)[0]),
    "auroc-error": Metric("scores", lambda sums: _auroc(sums)[1]),
}
_CLASSES: dict[str, Metric] = {
    "accuracy": Metric("confusion", _accuracy),
    "balanced-accuracy": Metric("confusion", _balanced),
    **_of_positives("confusion"),
    "confusion": Metric("confusion", lambda sums: sums["confusion"].tolist()),
    "top-5": Metric("top", lambda sums: int(sums["top"][0]) / int(sums[COUNT][0])),
    "perplexity": Metric(
        "surprise", lambda sums: math.exp(number_of(sums["surprise"][0]) / int(sums[COUNT][0]))
    ),
    **_AUROC,
    "ece": Metric("calibration", lambda sums: calibration_error(sums["calibration"])),
}
_ERRORS = {
    "mae": Metric("errors", _mean_of(0)),
    "mse": Metric("errors", _mean_of(1)),
    "rmse": Metric("errors", _rmse),
}
_DENSE = {  # Dice is F1; classes that neither occur nor are predicted are left out
    "miou": Metric("confusion", _macro(_iou)),
    "iou-per-class": Metric("confusion", _per_class(_iou)),
    "dice": Metric("confusion", _macro(_f1)),
    "dice-per-class": Metric("confusion", _per_class(_f1)),
    "pixel-accuracy": Metric("confusion", _accuracy),
    "confusion": _CLASSES["confusion"],
}
_BOUNDS = {f"neg-{name}": Metric(name, _mean_bound(name)) for name in ("elbo", "iwae")}
METRICS: dict[str, dict[str, Metric]] = {
    "classification": _CLASSES,
    "language": _CLASSES,
    "multi-label": {"accuracy": Metric("exact", _accuracy), **_of_positives("labels"), **_AUROC},
    "regression": {**_ERRORS, "r2": Metric("errors", _r2)},
    "reconstruction": {**_ERRORS, **_BOUNDS},
    "segmentation": _DENSE,
    "survival": {"accuracy": Metric("pairs", lambda sums: int(sums["pairs"][0]) / int(sums["pairs"][1]))},
    "tagging": _CLASSES,
}
_Add = Callable[[Any, torch.Tensor, int], Ints]
_SUMS: dict[str, tuple[_Add, Callable[[int], tuple[int, ...]]]] = {
    "confusion": (_confusion, lambda c: (c, c)),
    "top": (_top, lambda c: (1,)),
    "surprise": (_surprise, lambda c: (1, LIMBS)),
    "scores": (_class_scores, lambda c: (1 if c == 2 else c, 2, BINS)),
    "calibration": (_calibration, lambda c: (TENTHS, 2 + LIMBS)),
    "labels": (_labels, lambda c: (c, 3)),
    "exact": (_all_right, lambda c: (1,)),
    "errors": (_errors, lambda c: (c, 4, LIMBS)),
    "pairs": (lambda outputs, y, _: np.array(ordered_pairs(outputs, y), np.int64), lambda c: (2,)),
}
_OF_LABELS: dict[str, tuple[_Add, Callable[[int], tuple[int, ...]]]] = {
    "scores": (_label_scores, lambda c: (c, 2, BINS))
}
_OF_INPUTS: dict[str, tuple[_Add, Callable[[int], tuple[int, ...]]]] = {
    "errors": (_pixels, lambda c: (1, 2, LIMBS)),
    "elbo": (_bound(neg_elbo), lambda c: (1, LIMBS)),
    "iwae": (_bound(neg_iwae), lambda c: (1, LIMBS)),
}


class Measures:
    """The metrics of a run.

    Args:
        task: Name of the task.
        names: Metrics, in the order in which results have them; ``package.module:name`` is the user's own.
        classes: Outputs of the model.

    Raises:
        ConfigError: The task has no such metric, or the user's own cannot be used.
    """

    def __init__(self, task: str, names: tuple[str, ...] = (), classes: int = 1) -> None:
        known = METRICS[task]
        for name in names:
            if name not in known and not is_reference(name):
                raise ConfigError(
                    f'run-config key "metrics": task = "{task}" has {", ".join(known)}, and takes '
                    f'package.module:name; got "{name}"'
                )
        self.names = tuple(dict.fromkeys(n for name in names for n in _with_error(name)))
        self.classes = classes
        self.own = [OwnMetric(name, task, classes) for name in self.names if is_reference(name)]
        ours = {name: known[name] for name in self.names if name in known}
        self._values = {name: metric.value for name, metric in ours.items()}
        self._values |= {metric.reference: metric.value for metric in self.own}
        ways = _SUMS | {"multi-label": _OF_LABELS, "reconstruction": _OF_INPUTS}.get(task, {})
        self._ways = {m.sums: ways[m.sums] for m in ours.values()}

    def __bool__(self) -> bool:
        return bool(self.names)

    @property
    def like(self) -> Arrays:
        """Zeros of the names and shapes of the sums."""
        sums = {name: np.zeros(shape(self.classes), np.int64) for name, (_, shape) in self._ways.items()}
        for metric in self.own:
            sums |= metric.like
        return sums | ({COUNT: np.zeros(1, np.int64)} if sums else {})

    def sums(self, outputs: torch.Tensor, y: torch.Tensor, count: int) -> Arrays:
        """Return the sums of a batch, given the number of targets that count."""
        found: Arrays = {name: add(outputs, y, self.classes) for name, (add, _) in self._ways.items()}
        for metric in self.own:
            found |= metric.sums(outputs, y)
        return found | ({COUNT: np.array([count], np.int64)} if found else {})

    def values(self, sums: Mapping[str, np.ndarray]) -> dict[str, Value]:
        """Return each metric of the sums; None where it is not defined, as without examples."""
        if not sums or not int(sums[COUNT][0]):
            return dict.fromkeys(self.names)
        return {name: _defined(self._values[name], sums) for name in self.names}

    def record(self, sums: Mapping[str, np.ndarray]) -> dict[str, float | list[float]]:
        """Return the values as a MetricRecord takes them: lists flat, and without what is not defined."""
        found: dict[str, float | list[float]] = {}
        for name, value in self.values(sums).items():
            if isinstance(value, list):
                found[name] = np.array(value, np.float64).ravel().tolist()  # None becomes NaN
            elif value is not None:
                found[name] = float(value)
        return found

    def of_record(self, record: Mapping[str, Any]) -> dict[str, Value]:
        """Return the values of what `record` wrote."""
        found: dict[str, Value] = {name: record.get(name) for name in self.names}
        for name, value in found.items():
            if isinstance(value, list):
                flat = np.array(value)
                some = [None if math.isnan(v) else v for v in flat.tolist()]
                square = name == "confusion"
                found[name] = flat.astype(int).reshape(-1, self.classes).tolist() if square else some
        return found


def _defined(value: Callable[[Sums], Value], sums: Sums) -> Value:
    try:
        return value(sums)
    except ArithmeticError:  # the model diverged
        return None


def _with_error(name: str) -> tuple[str, ...]:
    return ("auroc", "auroc-error") if name == "auroc" else (name,)


def added(parts: list[Arrays]) -> Arrays:
    """Return the sums of several parts together."""
    return {name: np.sum([part[name] for part in parts], 0) for name in parts[0]} if parts else {}
