"""FedRep, client half. Collins, Hassani, Mokhtari and Shakkottai, ICML 2021, arXiv 2102.07089, Algorithm 1.

h_k <- h_k - eta grad_h l(h_k, phi^t; b), for each batch b of ``personal.epochs`` epochs;  then
phi_k <- phi_k - eta grad_phi l(h_k, phi_k; b), for each batch b of E epochs

=========  =========================  ==========================================  ==========
symbol     variable                   meaning                                     where
=========  =========================  ==========================================  ==========
phi^t      task.start                 representation, the shared lower layers     down
phi_k      ``arrays``                 the same after local training               up
h_k        kept ``personal``          head, the last ``personal.layers`` layers   kept
           ``personal.epochs``        epochs on the head; 0 = E                   run config
=========  =========================  ==========================================  ==========

The second phase goes on with the head that the first one found. Each has its own momentum, and with
``local-steps`` each takes that number of steps. Running statistics of the body move in both. The training
loss that goes up is that of the second phase. The server takes the plain mean of the phi_k, as in the paper;
the authors' code weighs them by n_k. A client that is new, or lost its state, begins with the head of the
run's initial model. Neutral value: without a head, ``personal.layers = 0``, there is no first phase, and it
is FedAvg; where all layers are the head there is no second one.
"""

from client_app.solvers.sgd import Solver
from client_app.training.loop import LocalTask, train


class FedRepSolver(Solver, name="fedrep"):
    """SGD on the head, then on the body."""

    def run(self, task: LocalTask) -> list[dict[str, float]]:
        """Train the two parts one after the other; a part without parameters has no phase."""
        names = {*task.program.names}
        head, body = names & task.private, names - task.private
        stats = train(task, self, epochs=self.config.personal.epochs, frozen=body) if head else []
        return train(task, self, frozen=head) if body else stats
