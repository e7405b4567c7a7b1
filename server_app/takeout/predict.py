"""Predict with a run's model, and report loss and accuracy if there are labels."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from server_app.takeout.examples import Input, of_dataset, target_names
from server_app.takeout.model import TakenModel
from server_app.takeout.taken import Columns
from task.datasets import spec_of
from task.datasets.columns import with_moments
from task.datasets.condition import is_conditional
from task.datasets.skew import load_partitioned
from task.errors import ConfigError
from task.models.elbo import Posterior
from task.tasks import TASKS, task_of
from task.tasks.base import Task, counted
from task.tasks.evaluate import BATCH
from task.tasks.lifetimes import medians

LIFETIME = ("time", "shape")  # median and shape of the Weibull distribution of an example's time


@dataclass(frozen=True)
class Prediction:
    """What a model says of some examples."""

    # Probabilities of the classes float32 [N, C], of each place [N, C, ...], or of the labels [N, C]; of
    # other tasks the numbers that the model gives, [N, d].
    probabilities: np.ndarray
    classes: tuple[str, ...]  # names of the columns of these
    ids: tuple[str, ...]
    # "loss", "accuracy" if the task has one, and "examples", of all and of each part
    scores: dict[str, dict[str, float]]
    task: str = "classification"

    def columns(self) -> Columns:
        """Return the examples' ids, predicted classes and probabilities of each class.

        Where each token or pixel has a class, these are in one cell, row by row, with spaces between them.
        """
        p, ids = self.probabilities, ("id", self.ids)
        if not TASKS[self.task].classes:
            what = "p" if self.task == "multi-label" else "predicted"
            names = [what] if len(self.classes) == 1 else [f"{what}_{name}" for name in self.classes]
            return [ids, *zip(names, p.T, strict=True)]
        if p.ndim > 2:
            places = p.argmax(1).reshape(len(p), -1).tolist()
            return [ids, ("predicted", [" ".join(self.classes[c] for c in row) for row in places])]
        predicted = [self.classes[c] for c in p.argmax(1).tolist()]
        return [ids, ("predicted", predicted), *((f"p_{n}", p[:, i]) for i, n in enumerate(self.classes))]

    def report(self) -> list[str]:
        """Return a line about loss and accuracy of each part that has labels."""
        return [
            f"{part}: loss {s['loss']:.4f}"
            + (f", accuracy {s['accuracy']:.4f}" if "accuracy" in s else "")
            + f" on {s['examples']:,} examples"
            for part, s in self.scores.items()
        ]


def predict(taken: TakenModel, examples: Input, batch: int = BATCH) -> Prediction:
    """Return what a model says of each example, and its loss and accuracy where there are targets.

    Raises:
        ConfigError: The outputs of a model of the user's own are no tensor.
    """
    config = replace(taken.card.config, metrics="")  # which say nothing of one example
    task = task_of(config, taken.card.task, taken.card.num_classes)
    y = task.targets(examples.data, examples.rows)
    # An example without a label is its own target, unless it has a condition, which is not to be drawn.
    labelled = examples.labelled or (task.name == "reconstruction" and not is_conditional(config))
    parts, answers, losses = list[torch.Tensor](), [], []
    with torch.inference_mode():
        for i in range(0, len(examples.rows), batch):
            outputs = taken.model(examples.data.inputs(examples.rows[i : i + batch]))
            if not isinstance(outputs, torch.Tensor | Posterior):
                raise ConfigError(
                    f'run-config key "model": expected a tensor as output of "{taken.card.model}"; got '
                    f"{type(outputs).__name__}, which only its loss can interpret"
                )
            answers.append(answer(outputs, task.name))
            losses += [task.single(outputs, y[i : i + batch])] if labelled else []
            parts += [outputs] if task.spec.accuracy and isinstance(outputs, torch.Tensor) else []
    found = torch.cat(answers).numpy()
    scores = _scores(task, parts, torch.cat(losses), y, examples) if labelled else {}
    # Where the model's file has digests in place of names, the examples' file may have the names.
    card = replace(
        taken.card,
        classes=examples.data.classes or taken.card.classes,
        columns=examples.data.columns or taken.card.columns,
    )
    numbers = tuple(map(str, range(found.shape[1])))
    names = card.names if task.spec.classes else target_names(card) or numbers
    names = names if task.spec.classes or len(names) == len(numbers) else numbers
    names = LIFETIME if task.name == "survival" else names
    return Prediction(found, names, tuple(examples.ids), scores, task.name)


def answer(outputs: torch.Tensor | Posterior, task: str) -> torch.Tensor:
    """Return probabilities of classes or labels, or an example's numbers [N, d], of a task's outputs."""
    if isinstance(outputs, Posterior):
        return outputs.reconstruction()
    if TASKS[task].classes:
        return torch.softmax(outputs, 1)
    if task == "survival":
        return torch.stack([medians(outputs).exp(), outputs[:, 1].tanh().exp()], 1)
    numbers = outputs.flatten(1) if outputs.dim() > 1 else outputs.unsqueeze(1)
    return torch.sigmoid(numbers) if task == "multi-label" else numbers


def _scores(
    task: Task, outputs: list[torch.Tensor], loss: torch.Tensor, y: torch.Tensor, examples: Input
) -> dict[str, dict[str, float]]:
    counts = counted(y)  # of text, padding does not
    named = np.array(examples.parts)
    masks = {"all": torch.ones(len(y), dtype=torch.bool)}
    masks |= {part: torch.from_numpy(named == part) for part in sorted(set(examples.parts))}
    scores = {}
    for part, mask in masks.items():
        n = int(counts[mask].sum())
        scores[part] = {"loss": float(loss[mask].double().sum()) / max(n, 1)}
        if task.spec.accuracy:
            right, of = task.judged(torch.cat(outputs)[mask], y[mask])
            scores[part]["accuracy"] = right / of if of else task.undecided
        scores[part]["examples"] = n
    return scores


def own_examples(taken: TakenModel, *, whole: bool = False) -> Input:
    """Return the test set that the run measured the model on last: the global one, or the client's own.

    With `whole` it is the global one in any case.

    Raises:
        ConfigError: There is none.
    """
    if taken.tests is not None and not whole:
        data, rows = taken.tests
    else:
        config = taken.config
        if spec_of(config.data.dataset).own and not config.data.data_path:
            raise ConfigError("--data: expected a file, since only the nodes of this run have data")
        data = load_partitioned(config)[0].at(
            config.server.num_server_rounds if taken.round is None else taken.round
        )
        rows = np.arange(data.num_train, len(data.y))
    if taken.card.moments and data.preparation:
        data = with_moments(data, taken.card.moments)
    if not len(rows):
        raise ConfigError("--data: expected a file, since the run has no test set for this model")
    return of_dataset(data, rows)
