"""FedProx, client half. Li et al., MLSys 2020, arXiv 1812.06127, Algorithm 2 and Definition 2.

min_w h_k(w; w^t) = F_k(w) + mu/2 |w - w^t|^2, so each batch gradient gets mu (w - w^t) added.

=========  ======================  ==============================================  =============
symbol     variable                meaning                                         where
=========  ======================  ==============================================  =============
mu         ``proximal-mu``         weight of the squared proximal term             down
w^t        task.start              received parameters, detached copies            here
gamma      ``gamma``               |grad h_k(w_k; w^t)| / |grad h_k(w^t; w^t)|     up
F_k(w^t)   ``loss-before``         plain loss of the received model                up
=========  ======================  ==============================================  =============

The denominator is |grad F_k(w^t)|, since the proximal term vanishes at w^t; gamma = 0 means solved
exactly, 1 no progress. Measuring it (``fedprox.measure-gamma``) costs two full local gradients.
Variable local work: the number of epochs comes with the message (stragglers).
Neutral value: mu = 0 is FedAvg.
"""

from client_app.solvers.sgd import Finished, Solver, proximal
from client_app.training.loop import LocalTask, Terms, full_gradient, norms
from client_app.training.programs import Dense


class FedProxSolver(Solver, name="fedprox"):
    """SGD on the proximal objective."""

    def begin(self, task: LocalTask) -> None:
        """Measure the received model, for gamma and for the adaptive mu."""
        fedprox = self.config.fedprox
        self._before: list[tuple[float, float]] = []
        if fedprox.measure_gamma or fedprox.adaptive:
            losses, grads = full_gradient(task)
            self._before = list(zip(losses, norms(grads), strict=True))

    def terms(self, task: LocalTask) -> Terms:
        """Return mu w - mu w^t."""
        return proximal(task, self.scalars["proximal-mu"])

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return w_k with gamma and the loss before."""
        if self._before:
            stats = [s | {"loss-before": loss} for s, (loss, _) in zip(stats, self._before, strict=True)]
        if self.config.fedprox.measure_gamma:
            _, grads = full_gradient(task)
            for factor, tensors in self.terms(task):
                Dense(tensors).add_to(grads, factor)
            after = zip(norms(grads), self._before, strict=True)
            gammas = [{"gamma": now / before} if before > 0 else {} for now, (_, before) in after]
            stats = [s | gamma for s, gamma in zip(stats, gammas, strict=True)]
        return super().finish(task, stats)
