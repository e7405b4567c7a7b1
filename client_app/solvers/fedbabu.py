"""FedBABU, client half. Oh, Kim and Yun, ICLR 2022, arXiv 2106.06042, Algorithm 1.

phi_k <- phi_k - eta grad_phi l(phi_k, h^0; b) from phi^t on, for each batch b of E epochs;  before evaluation
(phi_k, h_k) <- (phi_k, h_k) - eta grad l(phi_k, h_k; b) from (phi^t, h^0) on, for a few epochs

=========  =========================  ===============================================  ==========
symbol     variable                   meaning                                          where
=========  =========================  ===============================================  ==========
phi^t      task.start                 body, the shared lower layers                    down
phi_k      ``arrays``                 the same after local training                    up
h^0        task.private               head of the run's initial model, the same for    client
                                      all, never trained in a round and never sent
           ``personal.layers``        layers of the head, the last ones                run config
           ``personal.epochs``        epochs of fine-tuning; 0 = E                     run config
           ``fedbabu.tune``           part that is fine-tuned: all, head, body, none   run config
=========  =========================  ===============================================  ==========

Nothing is kept, and nothing of the fine-tuning goes up. It takes the batches and the learning rate that the
client's training of the next round would, with momentum of its own; after local training it goes on from
what was trained, with batches of its own. (The authors fine-tune for 5 epochs.) The server takes the mean
weighted by n_k; the authors' code takes the plain one.
Neutral value: without a head, ``personal.layers = 0``, training is FedAvg's, and it is ``fine-tune``.
"""

from client_app.solvers.sgd import Solver
from client_app.training.loop import LocalTask, train
from task.numerics.arrays import Arrays


class FedBABUSolver(Solver, name="fedbabu", adapts=True):
    """SGD on the body; on both parts before a model is measured."""

    def run(self, task: LocalTask) -> list[dict[str, float]]:
        """Train the body, if there is one."""
        names = {*task.program.names}
        return train(task, self, frozen=names & task.private) if names - task.private else []

    def personalise(self, task: LocalTask) -> None:
        """Fine-tune."""
        names = {*task.program.names}
        head = names & task.private
        parts = {"all": set(), "head": names - head, "body": head, "none": names}
        still = parts[self.config.fedbabu.tune]
        if names - still:
            train(task, self, epochs=self.config.personal.epochs, frozen=still)

    def own_models(self, task: LocalTask) -> list[Arrays]:
        """Return the trained models, fine-tuned; what goes up stays as it is."""
        task.load(task.states())
        self.personalise(task)
        return task.states()
