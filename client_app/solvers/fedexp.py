"""FedExP, client half. Jhunjhunwala, Wang and Joshi, ICLR 2023, arXiv 2301.09604, Algorithm 1.

Local steps as in FedAvg; ``square-norm``, |w_k - w^t|^2 over all parameters together, goes up with w_k.
"""

from client_app.solvers.sgd import Finished, Solver
from client_app.training.loop import LocalTask, norms


class FedExPSolver(Solver, name="fedexp"):
    """Plain SGD that also measures how far it went."""

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return w_k and |w_k - w^t|^2."""
        return self.updates(task, stats, scalars={"square-norm": [n**2 for n in norms(task.moved())]})
