"""NbAFL, client half. Wei et al., IEEE TIFS 2020, arXiv 1911.00222, Algorithm 1, lines on the clients.

w_k = argmin F_k(w) + mu/2 |w - w^t|^2, by local steps;  w~_k = w_k / max(1, |w_k| / C) + N(0, sigma_U^2)

=========  ==============  ======================================================  ==========
symbol     variable        meaning                                                 where
=========  ==============  ======================================================  ==========
mu         ``nbafl.mu``    weight of the squared proximal term                     run config
C          ``nbafl.clip``  largest norm of the model, all parameters together      run config
sigma_U    ``sigma-up``    standard deviation of the noise on each parameter       down
w~_k       ``arrays``      what goes up; buffers are neither clipped nor noised    up
=========  ==============  ======================================================  ==========

The noise follows from seed, round and name. It does not protect anyone, see `strategies.rules.nbafl`.
"""

import math

import numpy as np

from client_app.solvers.sgd import Finished, Solver, proximal
from client_app.training.loop import LocalTask, Terms
from task.numerics import seeds
from task.numerics.arrays import Arrays, squared_norm
from task.numerics.held import dense
from task.wire import messages as wire


class NbAFLSolver(Solver, name="nbafl"):
    """SGD on the proximal objective; the model goes up clipped and noised."""

    def terms(self, task: LocalTask) -> Terms:
        """Return mu w - mu w^t."""
        return proximal(task, self.config.nbafl.mu)

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return w~_k."""
        assert self.order is not None
        finished, names = self.updates(task, stats), sorted(task.program.names)
        for client, (upload, _) in zip(self.order.clients, finished, strict=True):
            arrays = upload.arrays[wire.ARRAYS]
            arrays.update(
                self._noised(client, {n: dense(arrays[n]).astype(np.float64) for n in names}, arrays)
            )
        return finished

    def _noised(self, client: str, w: Arrays, like: Arrays) -> Arrays:
        assert self.order is not None
        rng = seeds.rng_for(self.config.seeds.train, seeds.NOISE, self.order.round, client)
        clip = max(1.0, math.sqrt(squared_norm(w)) / self.config.nbafl.clip)
        sigma = self.scalars["sigma-up"]
        return {
            n: (a / clip + sigma * rng.standard_normal(a.shape)).astype(like[n].dtype) for n, a in w.items()
        }
