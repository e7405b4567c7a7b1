"""The contract of the phase that measures how unlike the clients' gradients are: ``gradient-dissimilarity``.

All clients that are online send the full gradient of the global model on their training examples, of which
the server keeps the mean, and its squared norm; `strategies.stages.dissimilarity` has what follows of them.
"""

from typing import Final

from task.catalogue.entry import LI_PROX, Algorithm
from task.catalogue.local_steps import FULL_GRADIENT
from task.catalogue.record import Scalar

GRADIENTS: Final = "gradients"  # name of the phase
DISSIMILARITY, VARIANCE = "gradient-dissimilarity", "gradient-variance"  # in a round's ``metrics``
SQUARE = Scalar("gradient-square", "|grad F_k(w)|^2 of the received model", low=0)


def gradients_phase() -> Algorithm:
    """Return the contract."""
    return Algorithm(
        GRADIENTS, "Full gradients", LI_PROX,
        solver="gradient-square",
        up=(FULL_GRADIENT,),
        up_scalars=(SQUARE,),
    )  # fmt: skip
