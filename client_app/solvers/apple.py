"""APPLE, client half. Luo and Wu, IJCAI 2022, arXiv 2110.08394, Algorithm 1.

w^p = sum_j p_ij w_j.  For each batch, with g = grad F_i(w^p), both at once:

w_i  <- w_i - eta p_ii g
p_ij <- p_ij - eta_p (<g, w_j> + lambda(r) mu (p_ij - p0_j)), for all j
lambda(r) = (cos(pi r / L) + 1) / 2 for r < L, else 0

=========  ======================  ================================================  =====================
symbol     variable                meaning                                           where
=========  ======================  ================================================  =====================
w_j        ``core`` [N, P]         core models; the others' stay as they came        down ``models``
w_i        task.params, a row      the client's own core model                       down ``models``, up
p_ij       ``p`` [N], float64      directed relationships, by client                 kept ``ratios``
w^p        ``mixed``               the client's own model, of its last round         kept ``personal``
p0_j       ``start-ratios``        n_j / n, as registered                            down
r          order.round - 1         rounds of the server that are over                down
eta_p      ``apple.dr-lr``         step of p                                         run config
mu         ``apple.mu``            weight of the pull towards p0                     run config
L          ``apple.decay-rounds``  rounds in which it fades                          run config
=========  ======================  ================================================  =====================

The pull is the slope of lambda(r) mu/2 |p_i - p0|^2; the authors' term has no 1/2, so their mu is half of
this one. w_j of a client that sent none yet is the run's initial model. p_ij of a client that joined later
begins at p0_j, and the others' are scaled by what is left of one, as the sum of p0 is 1. Momentum and weight
decay, if any, are those of the steps of w_i.

Buffers are never mixed: w^p has those of the client's own core model, its training moves them, and they go up
with w_i. Each step reads all core models twice, once for w^p and once for <g, w_j>: N models as one matrix.
"""

import math

import numpy as np
import torch

from client_app.solvers.sgd import Finished, OwnModelSolver
from client_app.training.loop import LocalTask
from client_app.training.programs import Batch, Dense, LossAndGradient, Tensors
from task.numerics.arrays import Arrays


def coefficient(r: int, L: int) -> float:
    """Return lambda(r)."""
    return (math.cos(math.pi * r / L) + 1) / 2 if r < L else 0.0


class AppleSolver(OwnModelSolver, name="apple"):
    """SGD on the client's core model and on its relationships, within the mixture."""

    def begin(self, task: LocalTask) -> None:
        """Lay the core models side by side."""
        assert self.order is not None
        (client,), names = self.order.clients, self.order.population
        models = self.per_client[0]["models"]
        # w^p has the program's own memory: running statistics move where the gradients are taken.
        task.load([models.get(client, {})])
        self.mixed = task.params
        self.core = self.mixed[0].new_empty(len(names), sum(p.numel() for p in self.mixed))
        for row, name in zip(self.core, names, strict=True):
            model = models.get(name, task.received)
            for part, n in zip(self._parts(row), task.program.names, strict=True):
                part.copy_(torch.from_numpy(model[n]))
        self.own = names.index(client)
        task.all_params = task.params = self._parts(self.core[self.own])
        kept = self.kept[0].get("ratios", {})
        self.start = torch.from_numpy(self.arrays["start-ratios"]["clients"].astype(np.float64))
        self.start = self.start.to(self.core.device)
        self.p = self.start.clone()
        there = [name in kept for name in names]
        # The others make room for those that joined.
        room = 1.0 if all(there) else float(self.start[torch.tensor(there)].sum())
        for j, name in enumerate(names):
            if name in kept:
                self.p[j] = room * float(kept[name])
        knobs = self.config.apple
        self.pull = knobs.mu * coefficient(self.order.round - 1, knobs.decay_rounds)

    def _parts(self, flat: torch.Tensor) -> Tensors:
        """Return views [1, ...] of the parameters in a vector."""
        parts = torch.split(flat, [p.numel() for p in self.mixed])
        return [part.view_as(p) for part, p in zip(parts, self.mixed, strict=True)]

    def _mix(self) -> None:
        """Update w^p."""
        with torch.no_grad():
            mixed = self.p.to(self.core.dtype) @ self.core
            torch._foreach_copy_(self.mixed, self._parts(mixed))

    def gradient(self, task: LocalTask, batch: Batch) -> LossAndGradient:
        """Return the batch's loss at w^p and p_ii g; step p."""
        self._mix()
        loss, gradient = task.program.gradient(self.mixed, batch)
        with torch.no_grad():
            g, own = gradient.tensors(), float(self.p[self.own])
            slope = (self.core @ torch.cat([t.flatten() for t in g])).double()
            self.p -= self.config.apple.dr_lr * (slope + self.pull * (self.p - self.start))
        return loss, Dense([own * t for t in g])

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return the core model; keep w^p and p."""
        assert self.order is not None
        pairs = zip(self.order.population, self.p.cpu().numpy(), strict=True)
        ratios: Arrays = self.kept[0].get("ratios", {}) | {name: np.array(p) for name, p in pairs}
        return self.updates(task, stats, keep={"personal": self.own_models(task), "ratios": [ratios]})

    def own_models(self, task: LocalTask) -> list[Arrays]:
        """Return w^p, with the buffers."""
        self._mix()
        return task.program.states(self.mixed)
