"""FedDBE, client half. Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan, 2023, arXiv 2311.14975, Algorithm 1.

For each batch with features z = f(x), all in one backward pass:

l = CE(h(z + u_k), y) + kappa/2 mean_j (r_kj - rbar_j)^2,  r_k <- (1 - m) r_k + m mean_b z, from 0 on
(f, h) <- (f, h) - eta grad l;  u_k <- u_k - eta grad_u l

=========  =========================  ===================================================  ==============
symbol     variable                   meaning                                              where
=========  =========================  ===================================================  ==============
f, h       task.params                global model after local training                    down, up
u_k        ``bias`` [K, d]            personalised representation bias, 0 at first         kept
r_k        ``mean`` [K, d]            running mean of the client's features                round
rbar       ``features``               that of the first round's clients, fixed             down
kappa      ``feddbe.kappa``           weight of the distance                               run config
m          ``feddbe.momentum``        share of a batch in the running mean                 run config
=========  =========================  ===================================================  ==============

Before round 1 the clients send r_k of one plain local training, which is thrown away; the server's mean of
them is rbar for the whole run (`strategies.rules.feddbe`). The older part of r_k is a number to the gradient.
With a linear head u_k moves the outputs by W u_k, so that a client's own model is the global one with that
added to the bias of its last layer. The global model is h(f(x)), without u_k.
A client that is new, or lost its state, begins with u_k = 0.
"""

import numpy as np
import torch

from client_app.solvers.sgd import Finished, Solver
from client_app.training.auxiliary import AuxiliaryParameters
from client_app.training.loop import LocalTask
from client_app.training.programs import Batch, Dense, LossAndGradient, differentiated, leaves_of, losses_of
from task.errors import ConfigError
from task.models.layer_split import last_linear_path
from task.numerics.arrays import Arrays


def batch_mean(z: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return each client's mean features over the rows of a batch that count, [K, d]."""
    rows = batch.counting().to(z.dtype)
    return (z * rows.unsqueeze(2)).sum(1) / rows.sum(1, keepdim=True).clamp(min=1.0)


class FeatureMeanSolver(Solver, name="feddbe-mean"):
    """Plain SGD; what goes up is the running mean of the features."""

    def begin(self, task: LocalTask) -> None:
        """Find the last layer, and start at 0."""
        path = last_linear_path(task.program.model, task.examples.x[:1], "FedDBE")
        names = (f"{path}.weight", f"{path}.bias")
        if missing := [n for n in names if n not in task.program.names]:
            raise ConfigError(
                'run-config key "model": FedDBE moves the outputs of a last linear layer that is trained and '
                f"has a bias; got one without {missing[0]!r}"
            )
        self.names = names
        self._weight, self._offset = (task.program.names.index(n) for n in names)
        weight = task.params[self._weight]
        self.mean = weight.new_zeros(task.clients, weight.shape[2])

    def _follow(self, z: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Move r_k, and return it, differentiable by z."""
        k, m = len(z), self.config.feddbe.momentum
        now = (1.0 - m) * self.mean[:k] + m * batch_mean(z, batch)
        with torch.no_grad():
            self.mean[:k] = now
        return now

    def gradient(self, task: LocalTask, batch: Batch) -> LossAndGradient:
        """Return the loss and its gradient; take the features in."""
        leaves = leaves_of(task.params)
        z, outputs = task.program.features(leaves, batch.x)
        self._follow(z.detach(), batch)
        return differentiated(_loss(task, outputs, batch), leaves)

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return r_k."""
        up = {"features": [{"features": r} for r in _rows(self.mean)]}
        return self.updates(task, stats, model=False, up=up)


class FedDBESolver(FeatureMeanSolver, name="feddbe"):
    """SGD on the global model under the client's own bias, and on that bias."""

    def begin(self, task: LocalTask) -> None:
        """Lay out u_k."""
        super().begin(task)
        u = torch.zeros_like(self.mean)
        for k, fields in enumerate(self.kept):
            if "bias" in fields:
                u[k].copy_(torch.from_numpy(fields["bias"]["features"]))
        self.bias = AuxiliaryParameters(task, self.config, [u])
        self._kappa = self.config.feddbe.kappa

    def gradient(self, task: LocalTask, batch: Batch) -> LossAndGradient:
        """Return l and its gradient; step u_k."""
        leaves = leaves_of(task.params)
        (u,) = leaves_of(self.bias.first(len(batch.x)))
        z, outputs = task.program.features(leaves, batch.x)
        moved = torch.bmm(u.unsqueeze(1), leaves[self._weight].transpose(1, 2))  # W u, [K, 1, C]
        loss = _loss(task, outputs + moved, batch)
        r, total = self._follow(z, batch), loss.sum()
        if self._kappa:
            rbar = torch.from_numpy(self.arrays["features"]["features"]).to(r)
            total = total + self._kappa * (0.5 * (r - rbar).square().mean(1)).sum()
        *grads, slope = torch.autograd.grad(total, [*leaves, u])
        self.bias.step([slope], task.lr)
        return loss.detach(), Dense(grads)

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return the global model's copy; keep u_k."""
        return self.updates(task, stats, keep={"bias": [{"features": u} for u in _rows(self.bias.values[0])]})

    def _offsets(self, task: LocalTask) -> torch.Tensor:
        """Return the biases of the clients' own last layers, b + W u_k, [K, C]."""
        (u,) = self.bias.values
        moved = torch.bmm(task.params[self._weight], u.unsqueeze(2)).squeeze(2)
        return task.params[self._offset] + moved

    def own_models(self, task: LocalTask) -> list[Arrays]:
        """Return the models with u_k in them."""
        biases = _rows(self._offsets(task))
        return [state | {self.names[1]: b} for state, b in zip(task.states(), biases, strict=True)]

    def personalise(self, task: LocalTask) -> None:
        """Put u_k in."""
        self.begin(task)
        with torch.no_grad():
            task.params[self._offset].copy_(self._offsets(task))


def _loss(task: LocalTask, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return each client's scaled loss [K]."""
    return losses_of(task.program.task, outputs, batch).sum(1) * batch.scale


def _rows(values: torch.Tensor) -> list[np.ndarray]:
    """Return a tensor [K, ...] as an array for each client."""
    return [np.array(row) for row in values.detach().cpu().numpy()]
