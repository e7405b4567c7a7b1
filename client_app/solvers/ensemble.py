"""Ensemble of local models, client half. Lakshminarayanan, Pritzel, Blundell, 2017, arXiv 1612.01474, 2.4.

p(y | x) = (1/M) sum_m p_m(y | x), p_m the softmax of member m's logits;  loss = -log p(y | x)

=======  ===========================  ==========================================  ====================
symbol   variable                     meaning                                     where
=======  ===========================  ==========================================  ====================
w_k      task.params                  the client's member, trained for itself     up, kept ``personal``
p_m      ``models`` in evaluations    members of all clients that are known       down
=======  ===========================  ==========================================  ====================

Training is local training only, on the client's data or on all of its site's (``ensemble.of``), and what is
measured at its end (``test-accuracy``) is the client's member. An evaluation measures the vote of all members
on the client's test data; before any client has sent a member, the client's own. The mean is taken of
logarithms in float64, where no probability becomes 0.
"""

import math

import torch
from torch.nn.functional import nll_loss

from client_app.solvers.sgd import OwnModelSolver
from client_app.training.loop import LocalTask
from task.numerics.arrays import Arrays
from task.numerics.tensors import load_into
from task.tasks.base import Task
from task.tasks.evaluate import BATCH
from task.wire import messages as wire


class EnsembleSolver(OwnModelSolver, name="ensemble"):
    """Plain SGD on the client's member; the members vote."""

    def begin(self, task: LocalTask) -> None:
        """Start from the kept member."""
        task.start_from([fields.get("personal", {}) for fields in self.kept])

    def measure(
        self, model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, task: Task
    ) -> tuple[dict[str, float], Arrays]:
        """Return loss, accuracy and sums for further metrics of the members' vote."""
        members = list(self.per_client[0]["models"].values())
        if not members:
            return super().measure(model, x, y, task)
        log_p = _log_probabilities(model, members[0], x)
        for member in members[1:]:
            log_p = torch.logaddexp(log_p, _log_probabilities(model, member, x))
        log_p -= math.log(len(members))
        count = int((y >= 0).sum())
        loss = float(nll_loss(log_p, y, reduction="sum")) / max(count, 1)
        correct = int((log_p.argmax(1) == y).sum())
        found = {"loss": loss, "accuracy": correct / max(count, 1), wire.NUM_EXAMPLES: count}
        return found, task.measures.sums(log_p, y, count)


def _log_probabilities(model: torch.nn.Module, member: Arrays, x: torch.Tensor) -> torch.Tensor:
    """Return a member's log p(y | x) [N, C] or, of text, [N, C, T], float64."""
    load_into(model, member)
    was_training = model.training
    model.eval()
    with torch.no_grad():
        parts = [torch.log_softmax(model(part).double(), 1) for part in torch.split(x, BATCH)]
    model.train(was_training)
    return torch.cat(parts)
