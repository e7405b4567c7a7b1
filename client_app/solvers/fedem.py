"""FedEM, client half. Marfoq, Neglia, Bellet, Kameni and Vidal, NeurIPS 2021, arXiv 2108.10252, Algorithm 2.

q_s(m)   = pi_m exp(-l(theta_m; s)) / sum_m' pi_m' exp(-l(theta_m'; s)), for each training example s    E-step
pi_m     <- mean_s q_s(m)                                                                               M-step
theta_m  <- theta_m - eta grad mean_{s in b} q_s(m) l(theta_m; s), for each batch b of E epochs, each m

=======  ====================  ===================================================  ============
symbol   variable              meaning                                              where
=======  ====================  ===================================================  ============
theta_m  ``model-m``           component models                                     down, up
pi_m     ``pi`` [K][M]         the client's weights of them; 1/M at first           kept
q_s(m)   ``q`` [n, M]          posterior of component m for example s, fixed        round
=======  ====================  ===================================================  ============

The E-step is of the received components, in evaluation mode, and in float64. Each component then trains with
batches and momentum of its own. ``train-loss`` is sum_m mean_s q_s(m) l(theta_m; s).
A client's own model says p(y | x) = sum_m pi_m softmax(theta_m(x))_y, before local training with the received
components and the pi of its last round, after it with the trained ones and the new pi.
A client that is new, or lost its state, begins with pi_m = 1/M: it needs an E-step and nothing else.
"""

from copy import deepcopy
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from client_app.solvers.sgd import Finished, Solver
from client_app.training.loop import CHUNK, LocalTask, train
from client_app.training.programs import Batch, LossAndGradient, differentiated, leaves_of, losses_of
from task.catalogue.several import model_name
from task.numerics.arrays import Arrays
from task.numerics.tensors import load_into


class FedEMSolver(Solver, name="fedem", adapts=True):
    """SGD on each component, with each example's loss weighed by its posterior."""

    def begin(self, task: LocalTask) -> None:
        """Take the E-step."""
        M = self.config.fedem.components
        self.components = [self.arrays[model_name(m)] for m in range(M)]
        losses = torch.stack([self._losses(task, model) for model in self.components], 1)  # [n, M]
        self.pi: list[torch.Tensor] = []
        parts = []
        for k, (first, end) in enumerate(pairwise(task.examples.offsets.tolist())):
            kept = self.kept[k].get("weights", {}).get("weights", np.full(M, 1.0 / M))
            prior = torch.from_numpy(np.asarray(kept, np.float64)).to(losses.device)
            q = torch.softmax(prior.log() - losses[first:end], 1)
            self.pi.append(q.mean(0))
            parts.append(q)
        self.q = torch.cat(parts)
        task.start_from([self.components[0]] * task.clients)
        self.trained = [[model] * task.clients for model in self.components]

    @staticmethod
    def _losses(task: LocalTask, model: Arrays) -> torch.Tensor:
        """Return l(theta_m; s) of all examples, float64 [n]; a client's are computed by themselves."""
        params, program, found = task.program.load(model, 1), task.program, []
        program.train(False)
        x, y = task.examples.x, task.examples.y
        with torch.no_grad():
            for first, end in pairwise(task.examples.offsets.tolist()):
                for i in range(first, end, CHUNK):
                    rows = slice(i, min(i + CHUNK, end))
                    outputs = program.logits(params, x[rows].unsqueeze(0))[0]
                    found.append(program.task.each(outputs, y[rows]).double())
        return torch.cat(found)

    def run(self, task: LocalTask) -> list[dict[str, float]]:
        """Train each component."""
        totals = [0.0] * task.clients
        for m, model in enumerate(self.components):
            task.start_from([model] * task.clients)
            self._weights = self.q[:, m].float()
            for k, found in enumerate(train(task, self)):
                totals[k] += found["train-loss"]
            self.trained[m] = task.states()
        return [{"train-loss": total} for total in totals]

    def gradient(self, task: LocalTask, batch: Batch) -> LossAndGradient:
        """Return the weighted loss and its gradient."""
        assert batch.rows is not None
        leaves = leaves_of(task.params)
        each = losses_of(task.program.task, task.program.logits(leaves, batch.x), batch)
        weights = self._weights.index_select(0, batch.rows.flatten()).view(each.shape)
        return differentiated((each * weights).sum(1) * batch.scale, leaves)

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return the components; keep pi."""
        shared = {model_name(m): models for m, models in enumerate(self.trained)}
        keep = {"weights": [{"weights": pi.cpu().numpy()} for pi in self.pi]}
        return self.updates(task, stats, model=False, up=shared, keep=keep)

    def personalise(self, task: LocalTask) -> None:
        """Take the kept weights; a client without any takes the E-step."""
        self.begin(task)
        for k, fields in enumerate(self.kept):
            if "weights" in fields:
                self.pi[k] = torch.from_numpy(fields["weights"]["weights"]).to(self.q)

    def predictor(self, model: nn.Module, task: LocalTask, k: int) -> nn.Module:
        """Return the mixture."""
        return Mixture(model, [models[k] for models in self.trained], self.pi[k])


class Mixture(nn.Module):
    """Classifiers that vote with probabilities by weights; its outputs are log p(c | x) [N, C, ...]."""

    def __init__(self, model: nn.Module, members: list[Arrays], weights: torch.Tensor) -> None:
        super().__init__()
        self.members = nn.ModuleList([deepcopy(model) for _ in members])
        for member, arrays in zip(self.members, members, strict=True):
            load_into(member, arrays)
        self.log_weights = weights.log()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return log p(c | x), float32."""
        votes = [
            w + torch.log_softmax(m(x).double(), 1)
            for w, m in zip(self.log_weights, self.members, strict=True)
        ]
        return torch.logsumexp(torch.stack(votes), 0).float()
