"""FedAMP, client half. Huang, Chu, Zhou, Wang, Liu, Pei, Zhang, AAAI 2021, arXiv 2007.03797, Algorithm 1.

w_i = argmin_w F_i(w) + lambda / (2 alpha) |w - u_i|^2, by E epochs of SGD from u_i

=======  ===================  ==============================================  =====================
symbol   variable             meaning                                         where
=======  ===================  ==============================================  =====================
u_i      task.start           the client's own cloud model                    down ``cloud``
w_i      task.params          the client's own model                          up, kept ``personal``
lambda   ``fedamp.lambda``    weight of the pull towards u_i                  run config
alpha    ``fedamp.alpha``     alpha_k, that of the message passing            run config
=======  ===================  ==============================================  =====================

Each round begins at u_i, so that the w_i that is kept is for evaluation alone: a client's model between its
rounds is its last w_i, and the run's initial model before the first. Neutral value of the pull: lambda = 0.
"""

from client_app.solvers.sgd import OwnModelSolver, proximal
from client_app.training.loop import LocalTask, Terms


class FedAMPSolver(OwnModelSolver, name="fedamp"):
    """SGD from the cloud model, held at it."""

    def begin(self, task: LocalTask) -> None:
        """Start from u_i.

        Raises:
            WireError: None came down for a client.
        """
        task.start_from(self.routed("cloud"))

    def terms(self, task: LocalTask) -> Terms:
        """Return lambda/alpha (w - u_i)."""
        return proximal(task, self.config.fedamp.lambda_ / self.config.fedamp.alpha)
