"""Client momentum for robust rules: a client sends the momentum instead of its update.

m_k <- beta m_k + (1 - beta) Delta_k;  w^t + m_k goes up.   Karimireddy et al. 2021, arXiv 2012.10333

Honest clients' momenta differ less than their updates, so that a rule has less room for an attacker. A client
that is new, or lost its state, begins with m_k = Delta_k, as the authors' code does. One that was not
selected for a while sends a momentum of rounds long ago. Buffers go up as they are. beta is
``robust.client-momentum``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from client_app.solvers.sgd import Finished
from client_app.stages.stage import Stage
from client_app.training.loop import LocalTask
from task.catalogue.stages import SENT_MOMENTUM
from task.numerics.arrays import Arrays
from task.wire import messages as wire


class ClientMomentum(Stage):
    """Sends a running mean of the client's updates."""

    names = ("momentum",)

    def start(
        self, task: LocalTask, cohort: Sequence[str], kept: Sequence[Mapping[str, Arrays]], server_round: int
    ) -> None:
        """Hold what each client kept."""
        self._kept = [fields.get(SENT_MOMENTUM.name, {}) for fields in kept]

    def finish(self, cohort: Sequence[str], finished: Finished) -> Finished:
        """Put the momentum in the place of the update, and keep it."""
        beta, parameters = self.node.config.robust.client_momentum, self.node.parts().trainable
        made: Finished = []
        for client, (upload, keep), old in zip(cohort, finished, self._kept, strict=True):
            received, sent = self.order.received(client)[wire.ARRAYS], upload.arrays[wire.ARRAYS]
            arrays, momentum = dict(sent), {}
            for n in parameters:
                base = received[n].astype(np.float64)
                moved = sent[n].astype(np.float64) - base
                if n in old:
                    moved = beta * old[n].astype(np.float64) + (1.0 - beta) * moved
                arrays[n] = (base + moved).astype(sent[n].dtype)
                momentum[n] = moved.astype(sent[n].dtype)
            upload = replace(upload, arrays={**upload.arrays, wire.ARRAYS: arrays})
            made.append((upload, {**keep, SENT_MOMENTUM.name: momentum}))
        return made
