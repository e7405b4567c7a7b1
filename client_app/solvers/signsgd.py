"""signSGD with majority vote, client half. Bernstein et al., ICML 2018, arXiv 1802.04434, Algorithm 1.

v_k = sign(g_k), with g_k the gradient on one minibatch at w^t. A bit has no third value: where g_k is 0, such
as at pixels that no example uses, v_k is a fair coin, so that nothing drifts. In the paper v_k is 0 there; by
coins a parameter without a gradient at any client walks at random, by eta_t in each round without a tie.
"""

import numpy as np
import torch

from client_app.solvers.sgd import Finished, Solver
from client_app.training.loop import LocalTask, first_batch
from task.numerics import seeds
from task.numerics.arrays import Arrays
from task.wire import messages as wire


class SignSGDSolver(Solver, name="signsgd", trains=False):
    """Computes the gradient of the first minibatch and uploads its signs as ``sign``."""

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return v_k and the minibatch's loss."""
        task.program.train(self.training)
        losses, gradient = task.program.gradient(task.params, first_batch(task))
        with torch.no_grad():
            slopes = task.named(gradient.tensors())
        assert self.order is not None
        signs = [self._votes(c, g) for c, g in zip(self.order.clients, slopes, strict=True)]
        scalars = {wire.TRAIN_LOSS: losses.tolist()}
        return self.updates(task, model=False, up={"sign": signs}, scalars=scalars)

    def _votes(self, client: str, slopes: Arrays) -> Arrays:
        assert self.order is not None
        rng = seeds.rng_for(self.config.seeds.train, seeds.VOTES, self.order.round, client)
        return {n: np.where(g == 0, coins(rng, g), np.sign(g)).astype(g.dtype) for n, g in slopes.items()}


def coins(rng: np.random.Generator, like: np.ndarray) -> np.ndarray:
    """Return 1 or -1 for each number."""
    return 2.0 * rng.integers(0, 2, like.shape, dtype=np.int8) - 1.0
