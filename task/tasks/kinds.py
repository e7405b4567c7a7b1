"""The tasks and the losses that have a name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    l1_loss,
    mse_loss,
)

from task.errors import ConfigError
from task.inputs import SEQUENCES
from task.models.adapt import Outputs, main_of
from task.models.elbo import neg_elbo
from task.tasks.base import Loss, Task
from task.tasks.lifetimes import ordered_pairs, weibull
from task.tasks.metrics import Measures

if TYPE_CHECKING:
    import numpy as np

    from task.datasets.base import Dataset

SMOOTHING = 0.1  # of "label-smoothing": weight of the uniform distribution over the classes
GAMMA = 2.0  # of "focal"
SMOOTH = 1.0  # epsilon of "dice", in places


def _cross_entropy(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits, y, reduction="none")


def _smoothed(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Szegedy et al., CVPR 2016, section 7."""
    return cross_entropy(logits, y, reduction="none", label_smoothing=SMOOTHING)


def _focal(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Lin et al., ICCV 2017: (1 - p)^gamma times -log p; without its class weights alpha."""
    each = cross_entropy(logits, y, reduction="none")
    return (1 - torch.exp(-each)) ** GAMMA * each


def _focal_labels(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    each = binary_cross_entropy_with_logits(logits, y, reduction="none")
    return ((1 - torch.exp(-each)) ** GAMMA * each).mean(1)


def _mean(loss: Any) -> Loss:
    """Return a loss of numbers as the mean over an example's."""

    def each(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        numbers: torch.Tensor = loss(outputs, y, reduction="none")
        return numbers.flatten(1).mean(1) if numbers.dim() > 1 else numbers

    return each


def _mean_of_places(each: Loss) -> Loss:
    """Return a loss of each place as that of an example [B]: its mean over the places that count, else 0."""

    def mean(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return each(logits, y).flatten(1).sum(1) / (y >= 0).flatten(1).sum(1).clamp(min=1)

    return mean


def dice_loss(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the soft Dice loss of each example, [B]: 1 - mean_c (2 sum p q + 1) / (sum p + sum q + 1).

    p are the probabilities and q is 1 at the true class (Milletari et al. 2016, arXiv 1606.04797, with plain
    sums), over the places that count. Without any it is 0. It is a function of each example alone: the
    quotient of a batch's sums would be none that clients could add up.
    """
    counts = (y >= 0).unsqueeze(1)
    p = torch.softmax(logits, 1) * counts
    classes = torch.arange(logits.shape[1], device=y.device).view(1, -1, *[1] * (y.dim() - 1))
    q = (y.unsqueeze(1) == classes).to(p)
    both, of_p, of_q = ((t.flatten(2).sum(2)) for t in (p * q, p, q))
    each = 1 - ((2 * both + SMOOTH) / (of_p + of_q + SMOOTH)).mean(1)
    return each * counts.flatten(1).any(1)


_CLASSES: dict[str, Loss] = {
    "cross-entropy": _cross_entropy,
    "label-smoothing": _smoothed,
    "focal": _focal,
}
_NUMBERS: dict[str, Loss] = {"mse": _mean(mse_loss), "mae": _mean(l1_loss), "huber": _mean(huber_loss)}
_BCE = {"bce": _mean(binary_cross_entropy_with_logits)}
_MAPS: dict[str, Loss] = {
    "cross-entropy": _mean_of_places(_cross_entropy),
    "focal": _mean_of_places(_focal),
    "dice": dice_loss,
}
_LOSSES: dict[str, dict[str, Loss]] = {
    "classification": _CLASSES,
    "language": _CLASSES,
    "regression": _NUMBERS,
    "multi-label": {**_BCE, "focal": _focal_labels},
    "reconstruction": {**_NUMBERS, **_BCE, "elbo": neg_elbo},
    "segmentation": _MAPS,
    "survival": {"weibull": weibull},
    "tagging": _CLASSES,
}


class Classes(Task):
    """One class of each example, or of each position in a text."""

    takes_padding: ClassVar[bool] = True

    def __init__(self, name: str, loss: Loss, title: str, measures: Measures) -> None:
        super().__init__(name, loss, title, measures)
        self._ours = loss in _CLASSES.values()

    @property
    def plain(self) -> bool:
        """Whether it is classification by cross-entropy."""
        return self.loss is _cross_entropy

    def each(self, outputs: Any, y: torch.Tensor, padded: bool = False) -> torch.Tensor:
        """Return the loss of each row, over all that counts in it."""
        if padded and not self._ours:
            keep = (y >= 0).view(len(y), -1).any(1)
            some = self._rows(outputs[keep], y[keep])
            return some.new_zeros(len(y)).masked_scatter(keep, some)
        return self._rows(outputs, y)

    def _rows(self, outputs: Any, y: torch.Tensor) -> torch.Tensor:
        each = self._loss(outputs, y)
        return each.sum(1) if y.dim() > 1 else each

    def _shape(self, y: torch.Tensor) -> torch.Size:
        return y.shape

    def total(self, outputs: Any, y: torch.Tensor) -> torch.Tensor:
        """Return the sum of the losses."""
        if self.plain:
            return cross_entropy(outputs, y, reduction="sum")
        return super().total(outputs, y)

    def main(self, outputs: Any) -> Any:
        """Return the logits."""
        return main_of(outputs, Outputs(self.measures.classes, self.name in SEQUENCES))

    def correct(self, outputs: Any, y: torch.Tensor) -> int:
        """Return how often the largest logit is that of the target."""
        return int((outputs.argmax(1) == y).sum())

    def wanted(self, y: torch.Tensor, classes: int) -> str:
        """Return in words what a model must give."""
        return f"logits {[len(y), classes, *y.shape[1:]]}"

    def fits(self, outputs: torch.Tensor, y: torch.Tensor, classes: int) -> bool:
        """Return whether there is a logit for every class."""
        alike = (outputs.shape[:1], outputs.shape[2:]) == (y.shape[:1], y.shape[1:])
        return alike and outputs.dim() > 1 and outputs.shape[1] == classes


class Maps(Classes):
    """A class of each place of a map, such as a pixel; the loss is that of an example."""

    def __init__(self, name: str, loss: Loss, title: str, measures: Measures) -> None:
        super().__init__(name, loss, title, measures)
        self._ours = loss in _MAPS.values()

    def _rows(self, outputs: Any, y: torch.Tensor) -> torch.Tensor:
        return self._loss(outputs, y)

    def _shape(self, y: torch.Tensor) -> torch.Size:
        return y.shape[:1]

    def correct(self, outputs: Any, y: torch.Tensor) -> int:
        """Return 0: an example is neither right nor wrong; the share of pixels is a metric."""
        return 0

    def _check(self, model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, classes: int) -> None:
        """Refuse also a loss of an example that depends on the others of its batch."""
        super()._check(model, x, y, classes)
        if self._ours or len(x) < 2:
            return
        with torch.no_grad():
            together = self.each(model(x), y)
            alone = torch.cat([self.each(model(x[i : i + 1]), y[i : i + 1]) for i in range(len(x))])
        if not torch.allclose(together, alone, rtol=1e-3, atol=1e-5):
            raise ConfigError(
                f'run-config key "loss": "{self.title}": expected a loss of each example that does not '
                f"depend on the others of its batch, since clients add them up; got {together.tolist()} of "
                f"two together and {alone.tolist()} of each alone. A Dice loss is a mean of the examples' "
                "quotients, not the quotient of a batch's sums"
            )


class Numbers(Task):
    """Numbers that the outputs come near to."""

    def fitted(self, outputs: Any, y: torch.Tensor) -> Any:
        """Return outputs [B, 1] as [B] where the targets are so."""
        if isinstance(outputs, torch.Tensor) and outputs.shape != y.shape and outputs.numel() == y.numel():
            return outputs.view_as(y)
        return outputs

    def wanted(self, y: torch.Tensor, classes: int) -> str:
        """Return in words what a model must give."""
        return f"numbers {[*y.shape, *[1] * (y.dim() == 1)]}"

    def fits(self, outputs: torch.Tensor, y: torch.Tensor, classes: int) -> bool:
        """Return whether there is one output for each target."""
        return outputs.shape == y.shape or (y.dim() == 1 and outputs.shape == (len(y), 1))


class Labels(Numbers):
    """Labels that are each 0 or 1."""

    def correct(self, outputs: Any, y: torch.Tensor) -> int:
        """Return for how many examples all labels are right: scikit-learn's accuracy of such targets."""
        return int(((outputs > 0) == (y > 0.5)).all(1).sum())


class Lifetimes(Numbers):
    """The time until an event; the accuracy is the share of pairs in the right order, the concordance.

    Where no pair has a known order it is 1/2, that of guesses.
    """

    undecided: ClassVar[float] = 0.5

    def judged(self, outputs: Any, y: torch.Tensor) -> tuple[int, int]:
        """Return twice the pairs in the right order, and twice those whose order is known."""
        return ordered_pairs(outputs, y)


class Inputs(Numbers):
    """The example itself."""

    def targets(self, dataset: Dataset, rows: np.ndarray | slice) -> torch.Tensor:
        """Return the inputs, without a condition."""
        return dataset.drawn.inputs(rows)

    def fits(self, outputs: torch.Tensor, y: torch.Tensor, classes: int) -> bool:
        """Return whether outputs are like the inputs, or flat."""
        return outputs.shape in (y.shape, y.flatten(1).shape)

    def wanted(self, y: torch.Tensor, classes: int) -> str:
        """Return in words what a model must give."""
        return f"{list(y.shape)} or {list(y.flatten(1).shape)}, like the inputs,"

    def _check(self, model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, classes: int) -> None:
        if self.title in ("bce", "elbo") and (float(y.min()) < 0 or float(y.max()) > 1):
            raise ConfigError(
                f'run-config key "loss": "{self.title}" reconstructs inputs from 0 to 1; the data set has '
                'others. Choose "mse", set pixels = "unit" for images, or scale the data.'
            )
        super()._check(model, x, y, classes)
        with torch.no_grad():
            self.measures.sums(model(x), y, len(x))  # refuses bounds of another model


_KINDS: dict[str, type[Task]] = {
    "classification": Classes,
    "language": Classes,
    "regression": Numbers,
    "multi-label": Labels,
    "reconstruction": Inputs,
    "segmentation": Maps,
    "survival": Lifetimes,
    "tagging": Classes,
}


def make_task(name: str, title: str, own: Any = None, measures: Measures | None = None) -> Task:
    """Return a task with one of its losses by name, or with the user's `own`, and with the run's metrics.

    Raises:
        ConfigError: The user's own is not callable.
    """
    if own is not None and not callable(own):
        raise ConfigError(
            f'run-config key "loss": expected "{title}" to be a callable (outputs, targets) -> loss of each '
            f"example; got {type(own).__name__}"
        )
    measures = Measures(name) if measures is None else measures
    return _KINDS[name](name, own or _LOSSES[name][title], title, measures)


CLASSIFICATION = make_task("classification", "cross-entropy")
