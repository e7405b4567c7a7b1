"""Dissimilarity of the clients' gradients (``gradient-dissimilarity``): B of FedProx.

Li et al. 2020, arXiv 1812.06127, Definition 3:

B(w)^2 = E_k |grad F_k(w)|^2 / |grad f(w)|^2,   E_k = sum_k (n_k / n),   grad f = E_k grad F_k

and the variance, which the paper's figures show:

E_k |grad F_k(w) - grad f(w)|^2 = E_k |grad F_k(w)|^2 - |grad f(w)|^2

over the training examples of all clients that are online, at the model after a round. B is 1 where all
clients have one gradient, and infinite, which is left out, where they cancel. The phase's bytes count in its
round; the run's model is the same as without it, bit for bit.
"""

import math

from flwr.serverapp import Grid

from strategies.engine.rounds import RoundLog
from strategies.engine.rule import RoundContext
from strategies.engine.stage import ServerStage
from strategies.engine.state import ServerState
from task.catalogue.gradients import DISSIMILARITY, GRADIENTS, SQUARE, VARIANCE
from task.numerics.arrays import NamedArrays, squared_norm


def spread(square: float, mean: NamedArrays) -> dict[str, float]:
    """Return B and the variance, from E_k |grad F_k|^2 and grad f.

    Two clients with as many examples each and the gradients (3, 4) and (3, -4):

    >>> spread(25.0, {"w": np.array([3.0, 0.0])}) == {VARIANCE: 16.0, DISSIMILARITY: 5 / 3}
    True
    """
    whole = squared_norm(mean)
    found = {VARIANCE: max(square - whole, 0.0)}  # below 0 by rounding only
    return found | ({DISSIMILARITY: max(math.sqrt(square / whole), 1.0)} if whole else {})


class DissimilarityStage(ServerStage):
    """Measures the dissimilarity of the clients' gradients after each evaluated round."""

    name = "dissimilarity"
    replayed = False

    def after_round(self, grid: Grid, state: ServerState, context: RoundContext, log: RoundLog) -> None:
        """Ask all clients for their gradients, and record the result; nothing without valid replies."""
        replies = self.engine.run(context.phase(GRADIENTS, state, context.names), grid).reduced
        log.add(*self.engine.take_done())
        if replies is not None:
            found = spread(replies.needed(SQUARE.name), replies.arrays["gradient"])
            log.values["metrics"] = {**log.values["metrics"], **found}
        log.clock.lap("gradients")
