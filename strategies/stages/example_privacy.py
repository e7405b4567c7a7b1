"""Privacy accounting of DP-SGD at the clients (``dp.unit = "example"``).

Each client says how many steps it has taken in the run, and with which sampling probability. No example is in
two clients, so that the run's epsilon is that of the client that has spent most.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from strategies.engine.channel import Opened
from strategies.engine.fold import Folded
from strategies.engine.stage import ServerStage
from task.catalogue.stages import DP_SAMPLING, DP_STEPS
from task.numerics.arrays import Arrays, NamedArrays
from task.privacy.accounting import accountant, epsilon, over_budget

if TYPE_CHECKING:
    from strategies.engine.phases import PhaseEngine

SPENT = "dp/steps"  # name in a checkpoint


class ExamplePrivacyStage(ServerStage):
    """Counts what the clients have spent, and ends the run before it is too much."""

    name = "example_privacy"
    replayed = False

    def __init__(self, engine: "PhaseEngine") -> None:
        super().__init__(engine)
        self.dp = engine.config.dp
        self.over = False  # whether a further round would exceed dp.max-epsilon
        self.round = 0
        self._steps: dict[float, tuple[int, int]] = {}  # by q: most steps, and most that a round added

    def begin(self) -> None:
        """Begin a round."""
        if self.engine.round:
            accountant()
            self.round = self.engine.round

    def after_fold(self, opened: Opened, folded: Folded) -> None:
        """Take in how many steps each client has taken."""
        for row in folded.metrics.values() if opened.phase.contract.work == "train" else ():
            q, steps = float(row[DP_SAMPLING.name]), int(row[DP_STEPS.name])
            most, added = self._steps.get(q, (0, 0))
            self._steps[q] = max(most, steps), max(added, steps - most)

    def finished(self) -> bool:
        """Return whether the next round would exceed ``dp.max-epsilon``; say so once."""
        costs = partial(self._epsilon, 0), partial(self._epsilon, 1)
        if not self.over and self._steps and (why := over_budget(self.dp, self.round, *costs)):
            self.over = True
            self.engine.journal.remark(why)
        return self.over

    def _epsilon(self, rounds: int) -> float:
        """Return the largest epsilon of a client after this number of further rounds."""
        spent = self._steps.items()
        found = (epsilon({(q, self.dp.noise): n + rounds * more}, self.dp.delta) for q, (n, more) in spent)
        return max(found, default=0.0)

    def row(self) -> dict[str, Any]:
        """Return what a round's row says: epsilon so far, and after one more round."""
        return {"epsilon": self._epsilon(0), "epsilon_next": self._epsilon(1) if self._steps else None}

    def dump(self) -> Arrays:
        """Return the steps, for a checkpoint."""
        rows = [[q, n, more] for q, (n, more) in sorted(self._steps.items())]
        return {SPENT: np.array(rows, np.float64)} if rows else {}

    def load(self, arrays: NamedArrays, done: int) -> None:
        """Take up what `dump` returned."""
        accountant()
        self.round = done
        rows = arrays.get(SPENT, np.zeros((0, 3))).tolist()
        self._steps = {q: (int(n), int(more)) for q, n, more in rows}
