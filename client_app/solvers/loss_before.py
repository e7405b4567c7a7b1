"""Plain SGD that first measures the loss of the received model, for AFL and TERM.

F_k(w^t), the mean loss over all the client's training examples, goes up as ``loss-before`` with w_k.
"""

from client_app.solvers.sgd import Finished, Solver
from client_app.training.loop import LocalTask, full_loss


class LossBeforeSolver(Solver, name="loss-before"):
    """Plain SGD that reports the loss before."""

    def begin(self, task: LocalTask) -> None:
        """Measure F_k(w^t)."""
        self._losses = full_loss(task)

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return w_k and F_k(w^t)."""
        return self.updates(task, stats, scalars={"loss-before": self._losses})
