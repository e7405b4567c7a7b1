"""Restricts local steps to a random space of each client and round (`client_app.training.restriction`)."""

from collections.abc import Mapping, Sequence

from client_app.stages.stage import Stage
from client_app.training.loop import LocalTask
from client_app.training.restriction import RESTRICTIONS
from task.numerics import seeds
from task.numerics.arrays import Arrays
from task.wire import messages as wire


class Structured(Stage):
    """Lets every gradient pass through a mask or a projection."""

    names = ("structured",)

    def start(
        self, task: LocalTask, cohort: Sequence[str], kept: Sequence[Mapping[str, Arrays]], server_round: int
    ) -> None:
        """Draw each client's space; at keep = 1 it is everything, and training FedAvg's to the bit."""
        config = self.node.config
        if config.structured.keep == 1:
            return
        role = f"{seeds.CODEC}:{wire.ARRAYS}"  # the seed that the code names
        drawn = [seeds.seed_for(config.seeds.train, role, server_round, c) for c in cohort]
        restriction = RESTRICTIONS[config.structured.kind]
        task.restriction = restriction(task.program.names, task.params, drawn, config.structured.keep)
