"""Canary clients, by which the privacy of a run is audited: Andrew et al. 2023, arXiv 2302.03098.

A canary is one more client of the run, without data. What it would send is a random direction, drawn by seed
and name, that no client's training could give; it goes the way of every other upload. It is far longer than
clipping allows, and it claims many examples, so that a missing clip or a weight n_k would show.

Each canary is *in* or *out* by a fair coin. Those out drop out of every round that they are asked for, as a
failing client does: a mean over those who answer would show it. ``audit.swap`` turns all coins round.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from task.config.knobs import Config
from task.numerics.arrays import Arrays, NamedArrays
from task.numerics.seeds import CANARY, rng_for

PREFIX = "canary-"
CLAIMED = 1000  # examples that a canary says it has
LENGTH = 10.0  # of its update, in units of the clipping bound C


def canary_names(config: Config) -> list[str]:
    """Return the names of the run's canaries."""
    count = config.audit.canaries if config.dp.central else 0
    digits = len(str(max(count - 1, 0)))
    return [f"{PREFIX}{i:0{digits}d}" for i in range(count)]


def is_canary(config: Config, name: str) -> bool:
    """Return whether a client is a canary."""
    return name.startswith(PREFIX) and config.dp.central and config.audit.canaries > 0


def is_in(config: Config, name: str) -> bool:
    """Return whether a canary answers when it is asked."""
    return (rng_for(config.seeds.train, CANARY, 0, name).random() < 0.5) is not config.audit.swap


def direction(config: Config, name: str, like: Mapping[str, NamedArrays]) -> dict[str, Arrays]:
    """Return a canary's direction: float64 arrays by record, of an L2 norm of one in all.

    Each record is drawn alone, so that the part of one record points the same way whatever the others are.
    """
    drawn = {r: dict(_normal(config, f"{name}/{r}", arrays)) for r, arrays in like.items()}
    square = math.fsum(float((a**2).sum()) for arrays in drawn.values() for a in arrays.values())
    return {r: {n: a / math.sqrt(square) for n, a in arrays.items()} for r, arrays in drawn.items()}


def length(config: Config, name: str) -> float:
    """Return the L2 norm of a canary's update in units of C.

    Under adaptive clipping a share gamma of the canaries stays within C, so that they do not move it.
    """
    within = rng_for(config.seeds.train, CANARY, 1, name).random() < config.dp.clip_quantile
    return 1.0 - 2.0**-10 if within else LENGTH


def _normal(config: Config, stream: str, arrays: NamedArrays) -> Iterator[tuple[str, np.ndarray]]:
    rng = rng_for(config.seeds.train, CANARY, 2, stream)
    for n in sorted(arrays):
        yield n, rng.standard_normal(arrays[n].shape)
