"""Draw new images from a run's model, and measure how close they are to real ones.

All images are compared in the features of a small classifier: the hidden units of a perceptron, trained here
on the clients' real training images, of all styles. So FCD, the Frechet distance of such features, is no
FID, whose features are those of a network trained on ImageNet: only numbers by one classifier on one data set
compare with each other. The floor is what real training images get in place of new ones.
"""

import warnings
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import torch
from rich.table import Table

from server_app.takeout.distances import NEIGHBOURS, Features, Nearness, nearness
from server_app.takeout.model import TakenModel
from task.datasets import Dataset, spec_of
from task.datasets.base import Rows
from task.datasets.condition import Conditioned, one_hot
from task.datasets.partition import Partition
from task.datasets.skew import load_partitioned
from task.errors import ConfigError
from task.models.vae import VAE

MOST = 4000  # images of each kind that are compared
HIDDEN = 64  # d
STEPS, BATCH = 2000, 64  # of the classifier, by Adam


@dataclass(frozen=True)
class Judged:
    """New images of a model, and how close they are to the global test set."""

    images: np.ndarray  # float32 [M, C, H, W], pixels from 0 to 1
    conditions: tuple[str, ...]  # of each new image, the client or class it was drawn for; () = none
    model: Nearness
    floor: Nearness  # of as many real training images
    accuracy: float  # of the classifier on the test images
    features: int  # d
    classifier_seed: int
    seed: int  # of the new images

    def report(self) -> dict[str, Any]:
        """Return what samples.json says."""
        classifier = {"seed": self.classifier_seed, "accuracy": self.accuracy, "features": self.features}
        scores = {
            name: {"fcd": near.frechet, "density": near.density, "coverage": near.coverage}
            for name, near in (("model", self.model), ("floor", self.floor))
        }
        return {"images": len(self.images), "seed": self.seed, "classifier": classifier, **scores}


class Judge:
    """A classifier that is trained on some rows of images; all of it follows from `seed`."""

    def __init__(self, images: Dataset, rows: Rows, seed: int) -> None:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPClassifier

        epochs = -(-STEPS * BATCH // len(rows))
        self._net = MLPClassifier(
            (HIDDEN,),
            batch_size=min(BATCH, len(rows)),
            max_iter=epochs,
            n_iter_no_change=epochs,
            random_state=seed,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the model learns the number of steps only
            self._net.fit(_flat(images.inputs(rows)), images.targets(rows).numpy())

    def features(self, images: torch.Tensor) -> Features:
        """Return the features [B, d] of images [B, C, H, W]."""
        hidden: Features = _flat(images) @ self._net.coefs_[0] + self._net.intercepts_[0]
        return hidden.clip(0)

    def accuracy(self, images: torch.Tensor, classes: torch.Tensor) -> float:
        """Return the share of images whose class it finds."""
        return float(self._net.score(_flat(images), classes.numpy()))


def _flat(images: torch.Tensor) -> Features:
    found: Features = images.flatten(1).double().numpy()
    return found


def judge(taken: TakenModel, seed: int = 0, classifier_seed: int = 1) -> Judged:
    """Draw as many new images as the global test set has, 4,000 at most, and compare them with it.

    A conditional model is given the conditions of the test images.

    Raises:
        ConfigError: The model draws no images, only nodes have the data, or these lack what is needed.
        DataError: They cannot be read.
    """
    model = taken.model
    if not isinstance(model, VAE):
        raise ConfigError(
            f'samples: expected the run of a generative model, model = "vae" or "cvae"; got '
            f'"{taken.config.model}"'
        )
    data, clients = _partitioned(taken)
    images = data.drawn
    train = np.concatenate([clients.train(k) for k in range(clients.num_clients)])
    test = np.arange(len(data.y))[data.test_rows]
    count = min(len(test), len(train), MOST)
    if count <= NEIGHBOURS:
        raise ConfigError(
            f"samples: expected more than {NEIGHBOURS} images in the global test set to compare "
            f"with; got {len(test)}. With pool-test there are none"
        )
    rng = np.random.default_rng(0)  # real images are the same whatever is drawn or trained
    train_rows, test_rows = (np.sort(rng.choice(rows, count, replace=False)) for rows in (train, test))
    conditions: tuple[str, ...] = ()
    given = None
    if isinstance(data, Conditioned):
        given = one_hot(data.condition_of[test_rows], len(data.conditions))
        conditions = tuple(data.conditions[c] for c in data.condition_of[test_rows])
    drawn = model.sample(count, seed, given).view(-1, *images.input_shape)
    judging = Judge(images, train, classifier_seed)
    real = judging.features(images.inputs(test_rows))
    return Judged(
        images=drawn.numpy(),
        conditions=conditions,
        model=nearness(real, judging.features(drawn)),
        floor=nearness(real, judging.features(images.inputs(train_rows))),
        accuracy=judging.accuracy(images.inputs(test_rows), images.targets(test_rows)),
        features=real.shape[1],
        classifier_seed=classifier_seed,
        seed=seed,
    )


def _partitioned(taken: TakenModel) -> tuple[Dataset, Partition]:
    """Return the run's data, or refuse data that a classifier cannot judge."""
    config = taken.config
    if spec_of(config.data.dataset).own and not config.data.data_path:
        raise ConfigError("samples: expected data on this machine; only the nodes of this run have data")
    data, clients = load_partitioned(config)
    if data.drawn.kind != "image" or data.task != "classification":
        raise ConfigError(
            "samples: expected images with classes, to train the classifier that judges the new ones; got "
            f'"{data.name}", {data.drawn.kind} whose targets are those of {data.task}'
        )
    return data, clients


def table(judged: Judged) -> Table:
    """Return the measures for people."""
    title = (
        f"{len(judged.images):,} images against the same number from the global test set; features "
        "of a classifier of "
        f"seed {judged.classifier_seed}, {judged.accuracy:.1%} right"
    )
    made = Table("images", "FCD", "density", f"coverage, k = {NEIGHBOURS}", title=title, title_justify="left")
    for name, near in (("new images", judged.model), ("real training images", judged.floor)):
        made.add_row(name, f"{near.frechet:.2f}", f"{near.density:.2f}", f"{near.coverage:.1%}")
    return made


def npz(judged: Judged) -> bytes:
    """Return the new images as an npz file: ``x`` and, where they were drawn for one, ``condition``."""
    arrays: dict[str, Any] = {"x": judged.images}
    if judged.conditions:
        arrays["condition"] = np.array(judged.conditions)
    file = BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()
