"""Base of the tasks: a loss for each example, whether a prediction is right, and which targets count."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from task.datasets.base import PADDING
from task.datasets.columns import readable
from task.datasets.vocabulary import check_ids
from task.errors import ConfigError, local
from task.tasks.specs import TASKS

if TYPE_CHECKING:
    import numpy as np

    from task.datasets.base import Dataset
    from task.tasks.metrics import Measures

Loss = Callable[[Any, torch.Tensor], torch.Tensor]
"""Outputs of a model and targets of B examples -> loss of each of them [B]."""


def counted(y: torch.Tensor, rows: int = 1) -> torch.Tensor:
    """Return the number of targets that count by row, int64, of targets whose first `rows` axes are rows.

    An example of floats counts once, a text each byte or token that is predicted, a map [H, W] once if one of
    its places counts, and padding not at all: this is the unit of weight (`task.tasks`).
    """
    if y.is_floating_point():
        return (~y.flatten(rows)[..., 0].isnan() if y.dim() > rows else ~y.isnan()).long()
    if y.dim() > rows + 1:
        return (y >= 0).flatten(rows).any(rows).long()
    return (y >= 0).flatten(rows).sum(rows) if y.dim() > rows else (y >= 0).long()


def fill(y: torch.Tensor, rows: torch.Tensor) -> None:
    """Let some rows [K, b] of targets [K, b, ...] not count, in place."""
    padding = math.nan if y.is_floating_point() else PADDING
    y.masked_fill_(rows.view(*rows.shape, *[1] * (y.dim() - 2)), padding)


class Task(ABC):
    """The goal of training, with the loss of a run.

    Args:
        name: In `task.tasks.TASKS`.
        loss: The loss; outputs and targets have the shapes of the table in `task.tasks`.
        title: What the run config calls the loss.
        measures: The run's metrics.
    """

    takes_padding: ClassVar[bool] = False
    """Whether the loss may see targets that do not count, and gives 0 there."""
    undecided: ClassVar[float] = 0.0
    """The accuracy where no prediction can be judged."""

    def __init__(self, name: str, loss: Loss, title: str, measures: Measures) -> None:
        self.name = name
        self.spec = TASKS[name]
        self.loss = loss
        self.title = title
        self.measures = measures

    @property
    def plain(self) -> bool:
        """Whether it is classification by cross-entropy, whose gradient programs may compute directly."""
        return False

    def each(self, outputs: Any, y: torch.Tensor, padded: bool = False) -> torch.Tensor:
        """Return the loss of each row, [B], differentiable; `padded` says that some rows may not count.

        Raises:
            ConfigError: The loss gives anything else than one number for each example.
        """
        if padded and not self.takes_padding:
            keep = counted(y).bool()
            some = self._loss(outputs[keep], y[keep])
            return some.new_zeros(len(y)).masked_scatter(keep, some)
        return self._loss(outputs, y)

    def single(self, outputs: Any, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of each example, [B], or of a text of each position, [B, T]."""
        return self._loss(outputs, y)

    def _loss(self, outputs: Any, y: torch.Tensor) -> torch.Tensor:
        found = self.loss(self.fitted(outputs, y), y)
        if not isinstance(found, torch.Tensor) or found.shape != self._shape(y):
            got = f"shape {list(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
            raise ConfigError(
                f'run-config key "loss": "{self.title}" must return the loss of each example, a '
                f"tensor of shape {list(self._shape(y))}, and neither their mean nor their sum; got {got} "
                f'for {len(y)} examples. PyTorch\'s losses return it with reduction="none"'
            )
        return found

    def _shape(self, y: torch.Tensor) -> torch.Size:
        """Return the shape of what the loss returns."""
        return y.shape[:1]

    def total(self, outputs: Any, y: torch.Tensor) -> torch.Tensor:
        """Return the sum of the losses, a scalar, differentiable; no row is padding."""
        return self.each(outputs, y).sum()

    def fitted(self, outputs: Any, y: torch.Tensor) -> Any:
        """Return the outputs in the form that the loss takes."""
        return outputs

    def main(self, outputs: Any) -> Any:
        """Return what metrics see of outputs that a loss of the user's own may take in any form."""
        return outputs

    def correct(self, outputs: Any, y: torch.Tensor) -> int:
        """Return how many predictions are right; 0 where that means nothing."""
        return 0

    def judged(self, outputs: Any, y: torch.Tensor) -> tuple[int, int]:
        """Return how many predictions are right, and of how many: their quotient is the accuracy."""
        return self.correct(outputs, y), int(counted(y).sum())

    def targets(self, dataset: Dataset, rows: np.ndarray | slice) -> torch.Tensor:
        """Return the targets of examples."""
        return dataset.targets(rows)

    @abstractmethod
    def wanted(self, y: torch.Tensor, classes: int) -> str:
        """Return in words which outputs a model must give for these targets, given their number."""

    @abstractmethod
    def fits(self, outputs: torch.Tensor, y: torch.Tensor, classes: int) -> bool:
        """Return whether outputs have a shape that goes with the targets and the number of classes."""

    def check(self, model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, classes: int) -> None:
        """Refuse a model or a loss that cannot be trained on such examples; nothing is changed or drawn.

        Raises:
            ConfigError: Naming the key, what was expected and what came out.
        """
        was_training = model.training
        model.eval()
        devices = [x.device] if x.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices=devices), torch.enable_grad():
                self._check(model, x, y, classes)
        finally:
            model.train(was_training)

    def _check(self, model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, classes: int) -> None:
        try:
            outputs = model(x)
        except Exception as err:  # whatever the user's code raises
            whole = x.is_floating_point() and bool((x == x.round()).all()) and bool((x >= 0).all())
            todo = '. If they are ids of tokens, set the run-config key inputs = "ids"' if whole else ""
            raise ConfigError(
                f'run-config key "model": it cannot read examples of shape {list(x.shape[1:])}, {x.dtype}: '
                f"{type(err).__name__}: {local(err)}{todo}"
            ) from err
        tensor = isinstance(outputs, torch.Tensor)
        if tensor and not (outputs.is_floating_point() and self.fits(outputs, y, classes)):
            raise ConfigError(
                f'run-config key "model": task = "{self.name}" expects {self.wanted(y, classes)} as outputs '
                f"for {len(x)} examples; got {outputs.dtype} of shape {list(outputs.shape)}. Choose another "
                '"model", or another "task".'
            )
        try:
            each = self.each(outputs, y)
        except ConfigError:
            raise
        except Exception as err:  # whatever the user's code raises
            raise ConfigError(
                f'run-config key "loss": "{self.title}" failed on {_shapes(outputs)} and targets '
                f"{y.dtype} {list(y.shape)}: {type(err).__name__}: {local(err)}"
            ) from err
        where = f'run-config key "loss": "{self.title}"'
        if not each.is_floating_point() or not each.requires_grad:
            raise ConfigError(
                f"{where} must be differentiable by the model's parameters; got a result of {each.dtype} "
                "without a gradient. Use torch's functions only, and neither detach() nor item()."
            )
        if not bool(torch.isfinite(each).all()):
            raise ConfigError(
                f"{where}: expected finite losses under the initial model; got NaN or infinity. Scale the "
                "data, or choose another loss."
            )
        seen = self.main(outputs)
        for metric in self.measures.own:
            metric.sums(seen.detach() if isinstance(seen, torch.Tensor) else seen, y)


def _shapes(outputs: Any) -> str:
    if isinstance(outputs, torch.Tensor):
        return f"outputs {outputs.dtype} {list(outputs.shape)}"
    return f"outputs of type {type(outputs).__name__}"


def check_fits(task: Task, model: torch.nn.Module, dataset: Dataset) -> None:
    """Check a model and a loss on two of a data set's training examples, see `Task.check`, and its ids."""
    rows, dataset = dataset.telling(2), readable(dataset)
    check_ids(model, dataset)
    device = next(model.parameters()).device
    x, y = dataset.inputs(rows).to(device), task.targets(dataset, rows).to(device)
    task.check(model, x, y, dataset.num_classes)
