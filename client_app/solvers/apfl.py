"""APFL, client half. Deng, Kamani and Mahdavi 2020, arXiv 2003.13461, Algorithm 1.

min_{v_k} F_k(alpha_k v_k + (1 - alpha_k) w), in addition to FedAvg of w.  For each batch, the same for both:

w_k     <- w_k - eta grad l(w_k; b), from w^t on
v_k     <- v_k - eta alpha_k g,  g = grad l(vbar; b),  vbar = alpha_k v_k + (1 - alpha_k) w_k
alpha_k <- clip(alpha_k - eta <v_k - w_k, g>, 0, 1), after the round's first batch only

=========  =========================  ==================================================  ==========
symbol     variable                   meaning                                             where
=========  =========================  ==================================================  ==========
w_k        task.params                the client's copy of the global model, trained      down, up
v_k        ``own``                    the client's own model                              kept
vbar       ``_mixture``               what the client uses                                client
alpha_k    ``alpha`` [K]              share of v_k in it                                  kept
           ``apfl.alpha``             alpha_k of a new client                             run config
           ``apfl.adaptive``          whether alpha_k moves                               run config
=========  =========================  ==================================================  ==========

w_k takes its step first, so that vbar has the w_k after it, as in the authors' code; in the paper both
gradients are taken before either steps. What is mixed are parameters, as in the paper; the authors' code
mixes outputs, adds 0.02 alpha_k to the slope of alpha_k and by default leaves alpha_k alone. w_k never sees
v_k, so that the global model is FedAvg's. v_k takes the run's local steps with momentum of its own. The
mixture has running statistics of its own, which are kept with v_k.
A client that is new, or lost its state, begins with v_k = w^t, the mixture being w^t; one that is not
selected keeps v_k and alpha_k. Before local training a client uses v_k with w^t, after it with w_k.
"""

import numpy as np
import torch

from client_app.solvers.sgd import Finished, Solver
from client_app.training.auxiliary import AuxiliaryParameters
from client_app.training.loop import LocalTask, train
from client_app.training.programs import Batch, LossAndGradient, Tensors
from task.numerics.arrays import Arrays


class APFLSolver(Solver, name="apfl"):
    """SGD on the global model; for each batch also a step of the client's own within the mixture."""

    def begin(self, task: LocalTask) -> None:
        """Lay out v_k and alpha_k."""
        self.own = AuxiliaryParameters(task, self.config, self._own(task))
        self.alpha = self._alphas(task)
        self._moved = not self.config.apfl.adaptive
        self._before: Batch | None = None
        self._buffers = [fields.get("personal", {}) for fields in self.kept]

    def _own(self, task: LocalTask) -> Tensors:
        """Return the v_k [K, ...]."""
        values = [p.clone() for p in task.params]
        for k, fields in enumerate(self.kept):
            for name, v in zip(task.program.names, values, strict=True):
                if "personal" in fields:
                    v[k].copy_(torch.from_numpy(fields["personal"][name]))
        return values

    def _alphas(self, task: LocalTask) -> torch.Tensor:
        start = {"one": np.full(1, self.config.apfl.alpha, np.float32)}
        found = np.concatenate([fields.get("alpha", start)["one"] for fields in self.kept])
        return torch.tensor(found, device=task.examples.device)

    def _mixture(self, task: LocalTask, clients: int) -> Tensors:
        """Return alpha v + (1 - alpha) w of the first clients."""
        alpha, pairs = self.alpha[:clients], zip(task.all_params, self.own.first(clients), strict=True)
        return [torch.lerp(w[:clients], v, alpha.view(-1, *[1] * (v.dim() - 1))) for w, v in pairs]

    def run(self, task: LocalTask) -> list[dict[str, float]]:
        """Train w_k and v_k."""
        stats = train(task, self)
        self._step(task)
        return stats

    def gradient(self, task: LocalTask, batch: Batch) -> LossAndGradient:
        """Return the loss and gradient of w_k; v_k takes its step for the batch before, for which w_k has."""
        self._step(task)
        self._before = batch
        return super().gradient(task, batch)

    def _step(self, task: LocalTask) -> None:
        batch, self._before = self._before, None
        if batch is None:
            return
        k = len(batch.x)
        g = self._gradient(task, batch)
        with torch.no_grad():
            alpha = self.alpha[:k]
            self.own.step([t * alpha.view(-1, *[1] * (t.dim() - 1)) for t in g], task.lr)
            if not self._moved:
                self._moved = True
                for i in range(k):  # each client's sum by itself, so that it does not depend on the others
                    slope = sum(
                        torch.dot((v[i] - w[i]).flatten().double(), d[i].flatten().double())
                        for v, w, d in zip(self.own.values, task.all_params, g, strict=True)
                    )
                    self.alpha[i] = (self.alpha[i] - task.lr * slope).clamp(0.0, 1.0)

    def _gradient(self, task: LocalTask, batch: Batch) -> Tensors:
        """Return g; the running statistics that move are the mixture's."""
        held = dict(task.program.model.named_buffers())
        saved = {name: b.clone() for name, b in held.items()}
        if held:
            self._put(held, self._buffers[0])
        _, gradient = task.program.gradient(self._mixture(task, len(batch.x)), batch)
        tensors = gradient.tensors()
        if held:
            self._buffers = [{name: b.detach().cpu().numpy().copy() for name, b in held.items()}]
            for name, b in held.items():
                b.copy_(saved[name])
        return tensors

    @staticmethod
    def _put(held: dict[str, torch.Tensor], values: Arrays) -> None:
        for name, b in held.items():
            if name in values:
                b.copy_(torch.from_numpy(values[name]))

    def _with_buffers(self, task: LocalTask, tensors: Tensors) -> list[Arrays]:
        """Return whole models of these parameters, with the mixture's buffers."""
        states = zip(task.states(), self._buffers, task.named(tensors), strict=True)
        return [state | {n: a for n, a in own.items() if n in state} | named for state, own, named in states]

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return w_k; keep v_k and alpha_k."""
        alphas = [{"one": np.array([a], np.float32)} for a in self.alpha.tolist()]
        keep = {"personal": self._with_buffers(task, self.own.values), "alpha": alphas}
        return self.updates(task, stats, keep=keep)

    def own_models(self, task: LocalTask) -> list[Arrays]:
        """Return the mixtures with w_k."""
        return self._with_buffers(task, self._mixture(task, task.clients))

    def personalise(self, task: LocalTask) -> None:
        """Mix v_k and w^t."""
        self.begin(task)
        mixed = self._mixture(task, task.clients)
        self._put(dict(task.program.model.named_buffers()), self._buffers[0])
        with torch.no_grad():
            torch._foreach_copy_(task.params, mixed)
