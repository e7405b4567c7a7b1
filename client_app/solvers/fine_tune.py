"""FedAvg with a fine-tuned model for each client. Wang et al. 2019, arXiv 1910.10252, section 3.

Training is FedAvg's. A client's own model is the received one after local training, and is neither sent nor
kept:

theta_k <- theta_k - eta (grad l(theta_k; b) + mu (theta_k - w^t)) from w^t on, for each batch b

=========  =========================  =====================================================  ==========
symbol     variable                   meaning                                                where
=========  =========================  =====================================================  ==========
w^t        task.start                 received parameters                                    down
theta_k    task.params                the client's own model, in evaluation only             client
mu         ``fine-tune.mu``           weight of FedProx's term, in training too; 0 = none    run config
           ``personal.epochs``        epochs of fine-tuning; 0 = E                           run config
=========  =========================  =====================================================  ==========

These are the rows FedAvg-C and FedProx-C of FedALA's tables. Fine-tuning after round t is as round t + 1
would train the client: with its learning rate, its batches and, with ``local-steps``, its number of steps.
Neutral value: with mu = 0 the global model is FedAvg's.
"""

from client_app.solvers.sgd import Solver, proximal
from client_app.training.loop import LocalTask, Terms, train


class FineTuneSolver(Solver, name="fine-tune", adapts=True):
    """SGD, perhaps with a proximal term; the same once more before a model is measured."""

    def terms(self, task: LocalTask) -> Terms:
        """Return mu w - mu w^t."""
        return proximal(task, self.config.fine_tune.mu)

    def personalise(self, task: LocalTask) -> None:
        """Fine-tune the received model."""
        train(task, self, epochs=self.config.personal.epochs)
