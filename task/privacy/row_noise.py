"""Noise that a node adds to sums over its clients' rows, so that each row is protected.

A question is one Gaussian mechanism: each number of the answer gets noise of the standard deviation z D, with
the L2 sensitivity D of all its numbers together, how far one row moves them. Numbers and noise are integers
of a grid, so that a sum plus noise has no low-order bits that could reveal the sum (Mironov 2012).

In clear each client adds all of the noise. Under secure aggregation the server sees a sum of the noise of t
nodes or more, c of which may be known, and each client adds a share of the variance of 1 / (t - c)
(`task.privacy.shares`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from task.catalogue.entry import Algorithm
from task.config.knobs import Config
from task.privacy.noise import Stream

# Given the client and its numbers before the noise, pays for an answer and returns the key of its noise.
Pay = Callable[[str, Sequence[int]], bytes]


def questions_of(config: Config, entry: Algorithm) -> int:
    """Return how many questions with noise a round asks each site at most."""
    return 1 + (int(config.value(entry.more_questions)) if entry.more_questions else 0)


@dataclass(frozen=True)
class RowNoise:
    """The noise of one answer of a node."""

    multiplier: float  # z
    shares: int  # clients whose noise together suffices, t - c; 1 = each by itself
    pay: Pay

    def added(self, client: str, totals: Sequence[int], squared: float, grid: int) -> list[int]:
        """Return a client's numbers with noise, and the variance of that as one number more.

        Args:
            client: Whose rows they are of.
            totals: The numbers, in units of 2^-`grid`.
            squared: Their squared L2 sensitivity, in whole units of 1.
            grid: Binary digits after the point.

        Raises:
            RefusedError: The owner of the node does not allow the cost.
        """
        deviation = math.ldexp(self.multiplier * math.sqrt(squared / self.shares), grid)
        noise = Stream(self.pay(client, totals)).integers(len(totals), deviation)
        shown = -(-(1 << grid) // self.shares)
        return [*(a + b for a, b in zip(totals, noise.tolist(), strict=True)), shown]
