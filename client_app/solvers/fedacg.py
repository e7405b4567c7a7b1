"""FedACG, client half. Kim, Kim and Han, CVPR 2024, arXiv 2201.03172, Algorithm 1.

Local steps from the accelerated model y = w^t + lambda m^t on F_k(w) + beta/2 |w - y|^2.

======  =================  ============================  ==========
symbol  variable           meaning                       where
======  =================  ============================  ==========
y       task.start         received parameters           down
beta    ``fedacg.beta``    weight of the proximal term   run config
======  =================  ============================  ==========

The authors' code has beta without the half: its 0.001 is 0.002 here.
Neutral value: beta = 0 is plain SGD from y.
"""

from client_app.solvers.sgd import Solver, proximal
from client_app.training.loop import LocalTask, Terms


class FedACGSolver(Solver, name="fedacg"):
    """SGD with a proximal term around the accelerated model."""

    def terms(self, task: LocalTask) -> Terms:
        """Return beta w - beta y."""
        return proximal(task, self.config.fedacg.beta)
