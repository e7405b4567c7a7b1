"""IFCA, client half. Ghosh, Chung, Yin and Ramchandran, NeurIPS 2020, arXiv 2006.04088, Algorithm 1.

j = argmin_j F_k(theta_j);  w_k <- w_k - eta grad l(w_k; b) from theta_j on, for each batch b of E epochs

=======  ====================  ===================================================  ==========
symbol   variable              meaning                                              where
=======  ====================  ===================================================  ==========
theta_j  ``model-j``           models of the clusters                               down
F_k      `full_loss`           mean loss on all training examples of the client     client
j        ``chosen``            the cluster's number, the first of equal losses      up
w_k      task.params           theta_j after local training                         up
=======  ====================  ===================================================  ==========

Losses are those of evaluation, without dropout. A client's own model is the theta_j of the least training
loss, and after local training w_k. Nothing is kept: a new client chooses like all others.
"""

from client_app.solvers.sgd import Finished, Solver
from client_app.training.loop import LocalTask, full_loss
from task.catalogue.several import model_name


class IFCASolver(Solver, name="ifca", adapts=True):
    """Plain SGD from the model that fits the client's data best."""

    def begin(self, task: LocalTask) -> None:
        """Choose."""
        models = [self.arrays[model_name(j)] for j in range(self.config.ifca.clusters)]
        losses = [full_loss(task, model) for model in models]
        self.chosen = [min(range(len(models)), key=lambda j: losses[j][k]) for k in range(task.clients)]
        task.start_from([models[j] for j in self.chosen])

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return w_k and j."""
        return self.updates(task, stats, scalars={"cluster": [float(j) for j in self.chosen]})

    def personalise(self, task: LocalTask) -> None:
        """Take the model that fits."""
        self.begin(task)
