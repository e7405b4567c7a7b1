"""Counts what an analysis with noise costs a row, and ends it before that is too much.

Each question that a site answers is a Gaussian mechanism of the noise multiplier z, and no row is at two
sites, so that T questions cost epsilon of one mechanism of z / sqrt(T) (`task.privacy.accounting`).

A round that was cut short is repeated. In clear its questions get the same answers as before and cost
nothing. Under secure aggregation they get other noise, so that the run's ledger has each such question before
it is asked.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from strategies.engine.channel import Opened
from strategies.engine.stage import ServerStage
from strategies.stages.privacy import ReleaseLog
from task.numerics.arrays import Arrays, NamedArrays
from task.privacy.accounting import gaussian_epsilon, over_budget
from task.privacy.row_noise import questions_of
from task.resolve.contract import contract_of

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
        self.each = questions_of(engine.config, contract_of(engine.config))
        self.round = 0
        self.before = 0  # questions before this round
        self.asked: Counter[str] = Counter()  # in this round, by site

    @property
    def questions(self) -> int:
        """How many questions the site that was asked most has answered; no row is at two sites."""
        return self.before + max(self.asked.values(), default=0)

    def begin(self) -> None:
        """Begin a round."""
        self.before, self.asked = self.questions, Counter()
        self.round = self.engine.round or self.round

    def opened(self, opened: Opened) -> None:
        """Count a question."""
        if not opened.phase.contract.noised_rows:
            return
        self.asked.update(opened.phase.to)
        if self.engine.config.server.secagg:
            line = {"round": self.engine.round, "question": opened.attempt}
            self.engine.journal.log(ReleaseLog).append(line)

    def epsilon(self, rounds: int = 0) -> float:
        """Return epsilon of a row after this number of further rounds, all of whose questions are asked."""
        return gaussian_epsilon(math.sqrt(self.questions + rounds * self.each) / self.dp.noise, self.dp.delta)

    def finished(self) -> bool:
        """Return whether the next round would exceed ``dp.max-epsilon``; say so once."""
        costs = self.epsilon, partial(self.epsilon, 1)
        if not self.over and (why := over_budget(self.dp, self.round, *costs)):
            self.over = True
            self.engine.journal.remark(why)
        return self.over

    def row(self) -> dict[str, Any]:
        """Return what a round's row says: epsilon so far, and after one more round."""
        return {"epsilon": self.epsilon(), "epsilon_next": self.epsilon(1)}

    def dump(self) -> Arrays:
        """Return the questions, for a checkpoint."""
        return {ASKED: np.array(self.questions, np.int64)}

    def load(self, arrays: NamedArrays, done: int) -> None:
        """Take up what `dump` returned."""
        self.round = done
        again = [line for line in self.engine.journal.log(ReleaseLog).lines() if line["round"] > done]
        self.before, self.asked = int(arrays.get(ASKED, 0)) + len(again), Counter()
