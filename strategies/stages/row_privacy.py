"""Counts what an analysis with noise costs a row, and ends it before that is too much.

Each question that a site answers is a Gaussian mechanism of the noise multiplier z, and no row is at two
sites, so that T questions cost epsilon of one mechanism of z / sqrt(T) (`task.privacy.accounting`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from strategies.engine.channel import Opened
from strategies.engine.stage import ServerStage
from task.numerics.arrays import Arrays, NamedArrays
from task.privacy.accounting import gaussian_epsilon

if TYPE_CHECKING:
    from strategies.engine.phases import PhaseEngine

ASKED = "dp/questions"  # name in a checkpoint


class RowPrivacyStage(ServerStage):
    """Counts the questions."""

    name = "row_privacy"
    replayed = False

    def __init__(self, engine: PhaseEngine) -> None:
        super().__init__(engine)
        self.dp = engine.config.dp
        self.over = False  # whether a further round would exceed dp.max-epsilon
        self.questions, self.counted = 0, 0  # and the last round whose question is counted

    def opened(self, opened: Opened) -> None:
        """Count a round's question when it is first asked: sites that are asked one by one share none."""
        if opened.phase.contract.noised_rows and self.engine.round != self.counted:
            self.questions, self.counted = self.questions + 1, self.engine.round

    def epsilon(self, more: int = 0) -> float:
        """Return epsilon of a row after this number of further questions."""
        return gaussian_epsilon(math.sqrt(self.questions + more) / self.dp.noise, self.dp.delta)

    def finished(self) -> bool:
        """Return whether the next round would exceed ``dp.max-epsilon``; say so once."""
        limit = self.dp.max_epsilon
        if limit and not self.over and self.epsilon(1) > limit:
            self.over = True
            self.engine.journal.remark(
                f"the run stops before the next question, with which epsilon would be {self.epsilon(1):.4g}: "
                f"more than dp.max-epsilon = {limit:g}. It is {self.epsilon():.4g} at delta = "
                f"{self.dp.delta:g}"
            )
        return self.over

    def row(self) -> dict[str, Any]:
        """Return what a round's row says: epsilon so far, and after one more round."""
        return {"epsilon": self.epsilon(), "epsilon_next": self.epsilon(1)}

    def dump(self) -> Arrays:
        """Return the questions, for a checkpoint."""
        return {ASKED: np.array(self.questions, np.int64)}

    def load(self, arrays: NamedArrays, done: int) -> None:
        """Take up what `dump` returned."""
        self.questions, self.counted = int(arrays.get(ASKED, 0)), done
