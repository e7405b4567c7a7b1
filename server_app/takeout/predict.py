"""Predicts with the model of a run, and says how well where there are labels."""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from server_app.takeout.examples import Input, of_dataset
from server_app.takeout.model import TakenModel
from task.datasets import load_dataset
from task.datasets.columns import with_moments
from task.errors import ConfigError
from task.numerics.evaluate import BATCH


@dataclass(frozen=True)
class Prediction:
    """What a model says of some examples."""

    probabilities: np.ndarray  # float32 [N, C], of text [N, C, T]
    classes: tuple[str, ...]  # names of the classes
    ids: tuple[str, ...]
    scores: dict[str, dict[str, float]]  # "loss", "accuracy" and "examples", of all and of each part

    def rows(self) -> Iterator[list[Any]]:
        """Yield a header and a row for each example: id, predicted class, probability of each class."""
        yield ["id", "predicted", *(f"p_{name}" for name in self.classes)]
        for i, row in zip(self.ids, self.probabilities, strict=True):
            # Nine digits give back every float32.
            yield [i, self.classes[int(row.argmax())], *(f"{p:.9g}" for p in row)]

    def csv(self) -> str:
        """Return `rows` as csv."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(self.rows())
        return text.getvalue()

    def report(self) -> list[str]:
        """Return a line about loss and accuracy of each part that has labels."""
        return [
            f"{part}: loss {s['loss']:.4f}, accuracy {s['accuracy']:.4f} on {s['examples']:,} examples"
            for part, s in self.scores.items()
        ]


def predict(taken: TakenModel, examples: Input, batch: int = BATCH) -> Prediction:
    """Return a model's probabilities of each class, and its loss and accuracy where there are labels."""
    y = examples.data.targets(examples.rows)
    parts = []
    with torch.inference_mode():
        for i in range(0, len(examples.rows), batch):
            parts.append(taken.model(examples.data.inputs(examples.rows[i : i + batch])))
    logits = torch.cat(parts)
    found = torch.softmax(logits, 1).numpy()
    scores = _scores(logits, y, examples) if examples.labelled else {}
    return Prediction(found, taken.card.names, tuple(examples.ids), scores)


def _scores(logits: torch.Tensor, y: torch.Tensor, examples: Input) -> dict[str, dict[str, float]]:
    loss = cross_entropy(logits, y, reduction="none")
    right, counts = (logits.argmax(1) == y), (y >= 0)  # of text, padding does not count
    named = np.array(examples.parts)
    masks = {"all": torch.ones(len(y), dtype=torch.bool)}
    masks |= {part: torch.from_numpy(named == part) for part in sorted(set(examples.parts))}
    scores = {}
    for part, mask in masks.items():
        n = int(counts[mask].sum())
        sums = float(loss[mask].double().sum()), int(right[mask].sum())
        scores[part] = {"loss": sums[0] / max(n, 1), "accuracy": sums[1] / max(n, 1), "examples": n}
    return scores


def own_examples(taken: TakenModel) -> Input:
    """Return the test set that the run measured the model on: the global one, or the client's own.

    Raises:
        ConfigError: There is none.
    """
    if taken.node is not None:
        clients = taken.node.clients
        data, rows = taken.node.dataset, np.asarray(clients.test(clients.index(taken.client)))
    else:
        config = taken.config
        if taken.card.kind == "":
            raise ConfigError("--data: expected a file, since only the nodes of this run have data")
        data = load_dataset(config.data, config.synthetic, config.seeds.data)
        rows = np.arange(data.num_train, len(data.y))
    if taken.card.moments and data.preparation:
        data = with_moments(data, taken.card.moments)
    if not len(rows):
        raise ConfigError("--data: expected a file, since the run has no test set for this model")
    return of_dataset(data, rows)
