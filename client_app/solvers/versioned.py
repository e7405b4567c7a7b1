"""SGD from the version of the model that the client was given, client half of FedBuff and FedAsync.

min_w F_k(w) + mu/2 |w - w^v|^2, by E epochs of SGD from w^v

=======  ===================  =======================================  ==============
symbol   variable             meaning                                  where
=======  ===================  =======================================  ==============
w^v      task.start           version v, which differs by client       down ``model``
w_k      task.params          it after local training                  up ``arrays``
mu       ``proximal-mu``      rho of FedAsync; FedBuff sends none      down
=======  ===================  =======================================  ==============
"""

from client_app.solvers.sgd import Solver, proximal
from client_app.training.loop import LocalTask, Terms


class VersionedSolver(Solver, name="versioned"):
    """SGD from a version of its own, held at it."""

    def begin(self, task: LocalTask) -> None:
        """Start from w^v.

        Raises:
            WireError: None came down for a client.
        """
        task.start_from(self.routed("model"))

    def terms(self, task: LocalTask) -> Terms:
        """Return mu w - mu w^v."""
        return proximal(task, self.scalars.get("proximal-mu", 0.0))
