"""FedDyn, client half. Acar et al., ICLR 2021, arXiv 2111.04263, Algorithm 1 and equation (1).

theta_k = argmin L_k(theta) - <g_k, theta> + alpha/2 |theta - theta^{t-1}|^2, by local steps
g_k <- g_k - alpha (theta_k - theta^{t-1})

==============  ==================  ======================================================  ==========
symbol          variable            meaning                                                 where
==============  ==================  ======================================================  ==========
theta^{t-1}     task.start          received parameters                                     down
g_k             kept ``gradient``   the paper's grad L_k(theta_k); 0 of a new client        kept
alpha           ``feddyn.alpha``    weight of the regulariser                               run config
==============  ==================  ======================================================  ==========

Each batch gradient gets - g_k + alpha (theta - theta^{t-1}). At an exact minimiser g_k is the gradient of L_k
at theta_k by the first-order condition; after a few steps of SGD it is what the update says, and no more.
A client that is new, or lost its state, begins with g_k = 0, as all do in the paper.
Neutral value: alpha = 0 is plain SGD, and g_k stays 0.
"""

import torch

from client_app.solvers.sgd import Finished, Solver, proximal
from client_app.training.loop import LocalTask, Terms


class FedDynSolver(Solver, name="feddyn"):
    """SGD on the dynamically regularised objective."""

    def begin(self, task: LocalTask) -> None:
        """Take up g_k."""
        task.memory["gradient"] = self.remembered(task, "gradient")

    def terms(self, task: LocalTask) -> Terms:
        """Return alpha theta - alpha theta^{t-1} - g_k."""
        alpha = self.config.feddyn.alpha
        if not alpha:
            return []
        return [*proximal(task, alpha), (-1.0, task.memory["gradient"])]

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return theta_k; keep the new g_k."""
        alpha = self.config.feddyn.alpha
        with torch.no_grad():
            parts = zip(task.memory["gradient"], task.moved(), strict=True)
            gradient = [(g.double() - alpha * moved).to(g.dtype) for g, moved in parts]
        return self.updates(task, stats, keep={"gradient": task.named(gradient)})
