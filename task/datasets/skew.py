"""Feature skew: clients' inputs differ, while labels follow the partition.

The run-config key ``feature-skew`` names how the images of client k of K change, k counted from 0 as in the
clients' names; x is a pixel from 0 to 1, before the data set's own normalisation:

==============  ==========================================================================================
rotate          k mod 4 quarter turns, counterclockwise
invert          1 - x, for odd k
contrast        (1 - s) x + s / 2, for odd k
noise           x + N(0, (s (k + 1) / K)^2), clipped to [0, 1]: NIID-Bench's "noise" (Li et al. 2022)
background      s (k + 1) / K in place of every x < 0.1: pale for the first client, s for the last one
styles          k mod 5 says which: none, invert, one quarter turn, noise of 0.2, contrast of 0.5
==============  ==========================================================================================

s is ``feature-skew-strength``. The skew belongs to the row and not to its reader: a client's training
and test rows have its skew exactly once, in every algorithm, and so have they in the pool that `centralised`
trains on. The rows of the global test set are split evenly among the clients by the data's seed, and each has
the skew of its client: the set is the union of all clients' inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from task.config.data_sections import IMAGE_DRIFTS
from task.config.knobs import Config
from task.datasets import Dataset, load_dataset
from task.datasets.base import Rows
from task.datasets.condition import by_client, conditioned, is_conditional
from task.datasets.drift import Drift, client_rounds
from task.datasets.partition import Partition, load_partition
from task.datasets.stream import StreamedPartition, stream_of
from task.errors import ConfigError
from task.numerics import seeds

if TYPE_CHECKING:
    import torch

STRENGTH = {"background": 0.5, "contrast": 0.5, "noise": 0.2}  # s if the key is 0
STYLES = ("none", "invert", "rotate", "noise", "contrast")  # of client k: number k mod 5
DARK = 0.1  # a pixel below it is background


@dataclass(frozen=True, eq=False)
class Skew:
    """How the images of each row change."""

    kind: str  # the run-config key
    strength: float  # s; of "styles" not read
    clients: int  # K
    seed: int  # of the data
    client_of: Rows  # by row of the data set, the number of the client whose skew it has

    def __call__(self, pixels: torch.Tensor, rows: Rows | slice) -> torch.Tensor:
        """Return the images [B, C, H, W] of some rows, pixels from 0 to 1, as their clients have them."""
        import torch

        numbers = np.arange(len(self.client_of))[rows]
        k = self.client_of[numbers]
        if self.kind != "styles":
            return self.changed(self.kind, self.strength, pixels, numbers, k)
        changed = pixels.clone()
        for style, kind in enumerate(STYLES[1:], 1):
            mine = np.flatnonzero(k % len(STYLES) == style)
            if len(mine):
                # the first client with a skew, or, for noise, the one with the full strength
                number = np.full(len(mine), self.clients - 1 if kind == "noise" else 1)
                at = torch.from_numpy(mine)
                changed[at] = self.changed(kind, STRENGTH.get(kind, 0.0), pixels[at], numbers[mine], number)
        return changed

    def changed(self, kind: str, s: float, pixels: torch.Tensor, numbers: Rows, k: Rows) -> torch.Tensor:
        """Return images of rows, by their numbers, as a skew of some kind and strength has clients k's."""
        import torch

        of_row = (-1, 1, 1, 1)
        odd = torch.from_numpy(k % 2 == 1).view(of_row)
        share = torch.from_numpy((k + 1) / self.clients).float().view(of_row)
        if kind == "rotate":
            changed = pixels.clone()
            for turns in (1, 2, 3):
                at = torch.from_numpy(np.flatnonzero(k % 4 == turns))
                changed[at] = torch.rot90(pixels[at], turns, (2, 3))
            return changed
        if kind == "invert":
            return torch.where(odd, 1 - pixels, pixels)
        if kind == "contrast":
            return torch.where(odd, (1 - s) * pixels + s / 2, pixels)
        if kind == "background":
            return torch.where(pixels < DARK, s * share, pixels)
        return (pixels + s * share * self._normal(pixels, numbers)).clamp(0, 1)

    def _normal(self, pixels: torch.Tensor, numbers: Rows) -> torch.Tensor:
        """Return noise of each row, whichever rows are read with it."""
        import torch

        key = seeds.seed_for(self.seed, seeds.FEATURES)
        shape = tuple(pixels.shape[1:])
        found = [
            np.random.Generator(np.random.Philox(key=key, counter=int(row) << 128)).standard_normal(
                shape, np.float32
            )
            for row in numbers
        ]
        return torch.from_numpy(np.stack(found)) if found else torch.zeros_like(pixels)


def load_partitioned(config: Config) -> tuple[Dataset, Partition]:
    """Return the data set that a run names, with its clients' skew and conditions, and who owns which rows.

    What changes from round to round is whole and as before round 1; `at` of both says what it is in a round.

    Raises:
        ConfigError: The data set cannot be skewed, drift or have conditions so, or as in `load_dataset` and
            `load_partition`.
        DataError: As there.
    """
    dataset = load_dataset(config.data, config.synthetic, config.seeds.data)
    kind, drift = config.data.feature_skew, config.drift
    if kind != "none":
        _check(dataset, config, "feature-skew", kind)
    if drift.kind in IMAGE_DRIFTS:
        _check(dataset, config, "drift.kind", drift.kind)
    partition = load_partition(dataset, config.data, config.seeds.data)
    stream = stream_of(config)
    if stream:
        partition = StreamedPartition(partition, stream, stream.late(partition.names))
    drifts_by_client = drift.kind != "none" and (
        drift.clients < 1 or drift.examples == "new" or drift.pattern == "staggered"
    )
    of = "feature-skew" if kind != "none" else "drift.kind" if drifts_by_client else "condition"
    some = kind != "none" or drifts_by_client or by_client(config)
    clients = _clients_of(dataset, partition, config, of) if some else np.zeros(0, np.int64)
    if kind != "none":
        strength = config.data.feature_skew_strength or STRENGTH.get(kind, 0.0)
        skew = Skew(kind, strength, partition.num_clients, config.seeds.data, clients)
        dataset = replace(dataset, skew=skew, description=f"{dataset.description}, skewed: {kind}")
    if drift.kind != "none":
        dataset = replace(dataset, drift=_drift(dataset, partition, config, clients))
    if is_conditional(config):
        dataset = conditioned(dataset, partition.names, clients, config)
    return dataset, partition


def _drift(dataset: Dataset, partition: Partition, config: Config, clients: Rows) -> Drift:
    """Return how a data set changes; `clients` are as of `Skew.client_of`."""
    drift, seed, count = config.drift, config.seeds.data, len(dataset.y)
    if drift.kind not in IMAGE_DRIFTS and (dataset.task != "classification" or dataset.num_classes < 2):
        raise ConfigError(
            f'run-config key "drift.kind": "{drift.kind}" changes the labels of classes; expected data with '
            f'at least two; got "{dataset.name}", whose targets are those of {dataset.task}'
        )
    drifts = born = images = None
    begins: dict[str, int] = {}
    if drift.clients < 1 or drift.pattern == "staggered":
        begins = client_rounds(drift, partition.names, seed)
    some = [partition.index(name) for name in begins]
    if drift.clients < 1:
        drifts = np.isin(clients, some)
    if drift.examples == "new" and isinstance(partition, StreamedPartition):
        born = np.zeros(count, np.int64)
        for k in range(partition.num_clients):
            rows, rounds = partition.born(k, config.server.num_server_rounds)
            born[rows] = rounds
    if drift.kind in IMAGE_DRIFTS:
        whole = Skew(drift.kind, drift.strength or STRENGTH.get(drift.kind, 0.0), 2, seed, np.zeros(0, int))

        def images(pixels: torch.Tensor, numbers: Rows) -> torch.Tensor:
            second = np.ones(len(numbers), np.int64)  # of two clients the one with the full skew
            return whole.changed(drift.kind, whole.strength, pixels, numbers, second)

    place = seeds.rng_for(seed, seeds.DRIFT).permutation(count) / count
    if drift.pattern == "staggered":
        turn = np.zeros(partition.num_clients)
        turn[some] = np.arange(len(some)) / len(some)
        place = turn[clients]
    return Drift(drift, dataset.num_classes, place, drifts, born, images, begins)


def _check(dataset: Dataset, config: Config, key: str, kind: str) -> None:
    where = f'run-config key "{key}"'
    if dataset.kind != "image":
        raise ConfigError(
            f'{where}: "{kind}" changes images; expected an image data set, or "none"; got '
            f'"{dataset.name}", which is {dataset.kind}'
        )
    height, width = dataset.whole_shape[-2:]
    if kind in ("rotate", "styles") and height != width:
        raise ConfigError(
            f'{where}: "{kind}" makes quarter turns; expected square images; got {height}x{width} in '
            f'"{dataset.name}"'
        )


def _clients_of(dataset: Dataset, partition: Partition, config: Config, key: str) -> Rows:
    """Return, for each row, the number of the client whose skew it has; 0 for unread rows.

    Raises:
        ConfigError: Clients overlap; naming the key that needs them not to.
    """
    if config.data.partition == "bootstrap":
        raise ConfigError(
            f'run-config key "{key}": a row changes with the client that owns it; expected a partition whose '
            'clients do not overlap; got partition = "bootstrap"'
        )
    found = np.full(len(dataset.y), -1, np.int64)
    for k in range(partition.num_clients):
        for rows in (partition.train(k), partition.test(k)):
            if (found[rows] >= 0).any():
                raise ConfigError(
                    f'run-config key "{key}": a row changes with the client that owns it; expected '
                    f'clients that do not overlap; partition "{config.data.partition}" gives rows of client '
                    f"{partition.names[k]} to others too"
                )
            found[rows] = k
    test = dataset.num_train + np.flatnonzero(found[dataset.num_train :] < 0)
    rng = seeds.rng_for(config.seeds.data, seeds.FEATURES, client="global test set")
    found[test] = rng.permutation(len(test)) % partition.num_clients
    return np.maximum(found, 0)
