"""Ditto, client half. Li, Hu, Beirami and Smith, ICML 2021, arXiv 2012.04221, Algorithm 1.

min_{v_k} F_k(v_k) + lambda/2 |v_k - w*|^2, in addition to FedAvg of w:

v_k <- v_k - eta (grad l(v_k; b) + lambda (v_k - w^t)), for each batch b of ``personal.epochs`` epochs;  then
w_k <- w_k - eta grad l(w_k; b) from w^t on, for each batch b of E epochs

=========  =========================  ==================================================  ==========
symbol     variable                   meaning                                             where
=========  =========================  ==================================================  ==========
w^t        task.start                 received parameters, what v_k is held at            down
w_k        task.params at the end     the client's copy of the global model, trained      up
v_k        kept ``personal``          the client's own model; w^t of a new client         kept
lambda     ``ditto.lambda``           0 = local training only, large = the global model   run config
s          ``personal.epochs``        epochs on v_k; 0 = E                                run config
=========  =========================  ==================================================  ==========

Both start from what was received, so their order only says who draws which batches: v_k has the first ones,
those that local training would have. (The authors' code gives both the same batch in turn.) Momentum is
fresh for each, and buffers are each model's own. The training loss that goes up is that of w_k.
A client that is new, or lost its state, begins with v_k = w^t, in the paper with w^0. Clients that are not
selected keep their v_k. With ``ala = true`` what ALA made of w^t stands for it, also in the proximal term.
"""

from client_app.solvers.sgd import OwnModelSolver, proximal
from client_app.training.loop import LocalTask, Terms, train
from task.numerics.arrays import Arrays


class DittoSolver(OwnModelSolver, name="ditto"):
    """SGD on the client's own model, held at the received one; then plain SGD on the global one."""

    def run(self, task: LocalTask) -> list[dict[str, float]]:
        """Train v_k, then w_k."""
        self.personalise(task)
        self._lambda = self.config.ditto.lambda_
        train(task, self, epochs=self.config.personal.epochs)
        self._personal = task.states()
        self._lambda = 0.0
        task.load(task.own)
        return train(task, self)

    def terms(self, task: LocalTask) -> Terms:
        """Return lambda v_k - lambda w^t, and nothing for w_k."""
        return proximal(task, self._lambda)

    def own_models(self, task: LocalTask) -> list[Arrays]:
        """Return the v_k."""
        return self._personal
