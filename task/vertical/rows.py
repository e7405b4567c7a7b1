"""The common rows of parties: their order, test rows, and the batches and windows of an epoch.

All parties compute them alike, from the ids that they have in common, the run's seeds and its keys. No id
travels, and nothing depends on the order of a party's file.

=========  =======================================================================================
symbol     meaning
=========  =======================================================================================
m          rows that all parties have and that are trained on
b          rows of a batch, ``batch-size``; 0 = m
S          batches of a window, ``vertical.window``; 0 = all of an epoch
=========  =======================================================================================
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from task.config.knobs import Config
from task.datasets.parts import local_test_size
from task.numerics import seeds

Rows = npt.NDArray[np.int64]


def in_common_order(ids: Sequence[str], seed: int) -> Rows:
    """Return the order of ids by a hash of seed and id: the same wherever and in what order they are kept."""
    keys = [hashlib.sha256(f"{seed}\x1f{value}".encode()).digest() for value in ids]
    return np.array(sorted(range(len(ids)), key=keys.__getitem__), np.int64)


def num_tests(count: int, config: Config) -> int:
    """Return how many of the common rows, the first ones in their order, are for the test."""
    return local_test_size(count, config.data.local_test_fraction)


def epoch_order(m: int, config: Config, server_round: int) -> Rows:
    """Return the order in which an epoch, which is a round, takes the m rows."""
    return seeds.rng_for(config.seeds.train, seeds.BATCHES, server_round).permutation(m)


def windows(m: int, config: Config) -> list[tuple[int, int]]:
    """Return the windows of an epoch, each from one place of its order up to another."""
    batch = min(config.train.batch_size or m, m)
    size = config.vertical.window * batch or m
    return [(start, min(start + size, m)) for start in range(0, m, size)]


def batches(start: int, stop: int, m: int, config: Config) -> list[slice]:
    """Return the batches of a window, as places in it."""
    batch = min(config.train.batch_size or m, m)
    return [slice(at - start, min(at + batch, stop) - start) for at in range(start, stop, batch)]
