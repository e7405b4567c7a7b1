"""D-PSGD, client half. Lian, Zhang, Zhang, Hsieh, Zhang, Liu, NeurIPS 2017, arXiv 1705.09056, Algorithm 1.

y_i = x_i after E epochs of SGD on F_i

=======  ============  ==================================  ==============
symbol   variable      meaning                             where
=======  ============  ==================================  ==============
x_i      task.start    the node's own model, mixed         down ``model``
y_i      task.params   it after local training             up ``arrays``
=======  ============  ==================================  ==============

The server holds x_i and mixes (`strategies.rules.d_psgd`); the client keeps nothing.
"""

from client_app.solvers.sgd import Solver
from client_app.training.loop import LocalTask


class DPSGDSolver(Solver, name="d-psgd"):
    """Plain SGD from the client's own model."""

    def begin(self, task: LocalTask) -> None:
        """Start from x_i."""
        task.start_from(self.routed("model"))

    def personalise(self, task: LocalTask) -> None:
        """Take x_i."""
        task.load(self.routed("model"))
