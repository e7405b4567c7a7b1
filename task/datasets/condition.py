"""Conditions: a number that a conditional model is given with each example, one-hot behind its pixels.

The run-config key ``condition`` says which number of a row it is: that of its client, counted from 0 as in
the clients' names, or that of its class. Like feature skew it belongs to the row and not to its reader:
training and test rows have it in every algorithm, and so have the pool of `centralised` and the rows of the
global test set, which are split evenly among the clients. A model learns to draw only the pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from task.config.knobs import Config
from task.datasets.base import Dataset, Rows
from task.errors import ConfigError
from task.models import MODELS

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False, kw_only=True)
class Conditioned(Dataset):
    """Images whose examples are vectors: p pixels, then C numbers, the condition's being 1, the others 0."""

    drawn_from: Dataset  # the images as they are
    conditions: Sequence[str]  # C names, of clients or classes
    condition_of: Rows  # by row, from 0 to C - 1

    @property
    def drawn(self) -> Dataset:
        """What a generative model learns to draw: the images."""
        return self.drawn_from

    def inputs(self, rows: Rows | slice, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return examples as a model reads them, float32 [B, p + C]."""
        import torch

        pixels = self.drawn_from.inputs(rows).flatten(1)
        return torch.cat([pixels, one_hot(self.condition_of[rows], len(self.conditions))], 1).to(device)


def one_hot(numbers: Rows, count: int) -> torch.Tensor:
    """Return float32 [B, count] with a 1 at each row's number."""
    import torch

    return torch.nn.functional.one_hot(torch.tensor(np.asarray(numbers)), count).float()


def is_conditional(config: Config) -> bool:
    """Return whether the run's model is given a condition with each example."""
    return config.model in MODELS and MODELS[config.model].conditional


def by_client(config: Config) -> bool:
    """Return whether the run's model is given the number of each example's client."""
    return is_conditional(config) and config.data.condition == "client"


def outputs_of(config: Config, classes: int) -> int:
    """Return what a model is built for: the number of conditions if it is given one, else of classes."""
    return config.data.num_clients if by_client(config) else classes


def conditioned(dataset: Dataset, names: Sequence[str], client_of: Rows, config: Config) -> Conditioned:
    """Return the data set with a condition in each example.

    `names` are the clients', and `client_of` has the number of each row's client, which labels do not need.

    Raises:
        ConfigError: The examples are no images, have no classes, or clients have numbers that no client
        trains.
    """
    clients = by_client(config)
    if dataset.drift:
        raise ConfigError(
            f'run-config key "drift.kind": images with a condition do not drift; expected "none", or a model '
            f'that is given no condition, such as "vae"; got "{config.drift.kind}" with "{config.model}"'
        )
    if dataset.kind != "image":
        raise ConfigError(
            f'run-config key "model": "{config.model}" reads images with a condition; expected an image data '
            f'set; got "{dataset.name}", which is {dataset.kind}'
        )
    if not clients and dataset.task != "classification":
        raise ConfigError(
            f'run-config key "condition": "label" is a class; expected a data set of classes, or "client"; '
            f'got "{dataset.name}", whose targets are those of {dataset.task}'
        )
    if clients and config.server.fraction_heldout:
        raise ConfigError(
            'run-config key "fraction-heldout": the model is given the client\'s number, and no training has '
            f'the number of a held-out one; expected 0, or condition = "label"; got '
            f"{config.server.fraction_heldout:g}"
        )
    if clients and not config.data.num_clients:
        raise ConfigError(
            f'run-config key "num-clients": "{config.model}" is given the client\'s number; '
            f"expected {len(names)}, the number of the data set's owners; got 0"
        )
    classes = dataset.classes or [str(i) for i in range(dataset.num_classes)]
    conditions = names if clients else classes
    given: dict[str, Any] = {f.name: getattr(dataset, f.name) for f in fields(dataset)}
    given |= {
        "kind": "features",
        "input_shape": (math.prod(dataset.input_shape) + len(conditions),),
        "mean": (0.0,),
        "std": (1.0,),
        "skew": None,
        "description": f"{dataset.description}, each with its {config.data.condition}",
    }
    return Conditioned(
        **given,
        drawn_from=dataset,
        conditions=conditions,
        condition_of=client_of if clients else np.asarray(dataset.y, np.int64),
    )


def refuse_own(config: Config, data_path: str) -> None:
    """Refuse a conditional model on data that a node brings, which no deal has numbered.

    Raises:
        ConfigError: The run's model is one.
    """
    if is_conditional(config):
        raise ConfigError(
            f'run-config key "model": a node brings its own data (data-path "{data_path}"), whose rows have '
            f'no condition; expected a model that is given none, such as "vae"; got "{config.model}"'
        )
