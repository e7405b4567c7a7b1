"""Feature skew: clients whose inputs differ while their labels are dealt as the partition says.

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

s is ``feature-skew-strength``. The skew belongs to the row and not to whoever reads it: a client's training
and test rows have its skew exactly once, in every algorithm, and so have they in the pool that `centralised`
trains on. The rows of the global test set are dealt evenly to the clients by the data's seed, and each has
the skew of its client: the set is the union of all clients' inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from task.config.knobs import Config
from task.datasets import Dataset, load_dataset
from task.datasets.base import Rows
from task.datasets.condition import by_client, conditioned, is_conditional
from task.datasets.partition import Partition, load_partition
from task.errors import ConfigError
from task.numerics import seeds

if TYPE_CHECKING:
    import torch

STRENGTH = {"background": 0.5, "contrast": 0.5, "noise": 0.2}  # s where the key is 0
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
            return self._changed(self.kind, self.strength, pixels, numbers, k)
        changed = pixels.clone()
        for style, kind in enumerate(STYLES[1:], 1):
            mine = np.flatnonzero(k % len(STYLES) == style)
            if len(mine):
                # the first client of a kind that is skewed at all, or for noise the one of all its strength
                number = np.full(len(mine), self.clients - 1 if kind == "noise" else 1)
                at = torch.from_numpy(mine)
                changed[at] = self._changed(kind, STRENGTH.get(kind, 0.0), pixels[at], numbers[mine], number)
        return changed

    def _changed(self, kind: str, s: float, pixels: torch.Tensor, numbers: Rows, k: Rows) -> torch.Tensor:
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


def load_dealt(config: Config) -> tuple[Dataset, Partition]:
    """Return the data set that a run names, with its clients' skew and conditions, and who owns which rows.

    Raises:
        ConfigError: The data set cannot be skewed so or have conditions, or as in `load_dataset` and
            `load_partition`.
        DataError: As there.
    """
    dataset = load_dataset(config.data, config.synthetic, config.seeds.data)
    kind = config.data.feature_skew
    if kind != "none":
        _check(dataset, config)
    partition = load_partition(dataset, config.data, config.seeds.data)
    client_of: Rows = np.zeros(0, np.int64)
    if kind != "none" or by_client(config):
        client_of = _clients_of(dataset, partition, config)
    if kind != "none":
        strength = config.data.feature_skew_strength or STRENGTH.get(kind, 0.0)
        skew = Skew(kind, strength, partition.num_clients, config.seeds.data, client_of)
        dataset = replace(dataset, skew=skew, description=f"{dataset.description}, skewed: {kind}")
    if is_conditional(config):
        dataset = conditioned(dataset, partition.names, client_of, config)
    return dataset, partition


def _check(dataset: Dataset, config: Config) -> None:
    kind, where = config.data.feature_skew, 'run-config key "feature-skew"'
    if dataset.kind != "image":
        raise ConfigError(
            f'{where}: "{kind}" changes images; expected an image data set, or "none"; got '
            f'"{dataset.name}", which is {dataset.kind}'
        )
    height, width = dataset.input_shape[-2:]
    if kind in ("rotate", "styles") and height != width:
        raise ConfigError(
            f'{where}: "{kind}" makes quarter turns; expected square images; got {height}x{width} in '
            f'"{dataset.name}"'
        )
    if config.data.partition == "bootstrap":
        raise ConfigError(
            f"{where}: a row has the skew of the client that owns it; expected a partition whose clients do "
            'not overlap; got partition = "bootstrap"'
        )


def _clients_of(dataset: Dataset, partition: Partition, config: Config) -> Rows:
    """Return the number of the client that each row belongs to; 0 for rows that nobody reads."""
    key = "feature-skew" if config.data.feature_skew != "none" else "condition"
    found = np.full(len(dataset.y), -1, np.int64)
    for k in range(partition.num_clients):
        for rows in (partition.train(k), partition.test(k)):
            if (found[rows] >= 0).any():
                raise ConfigError(
                    f'run-config key "{key}": a row has what its one client gives it; expected clients that '
                    f'do not overlap; partition "{config.data.partition}" gives rows of client '
                    f"{partition.names[k]} to others too"
                )
            found[rows] = k
    test = dataset.num_train + np.flatnonzero(found[dataset.num_train :] < 0)
    rng = seeds.rng_for(config.seeds.data, seeds.FEATURES, client="global test set")
    found[test] = rng.permutation(len(test)) % partition.num_clients
    return np.maximum(found, 0)
