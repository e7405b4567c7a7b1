"""FedDC, client half. Gao, Fu, Li, Chen, Xu and Xu, CVPR 2022, arXiv 2203.11751, Algorithm 1.

w_k = argmin F_k(w) + alpha / (2 v_k) |w - (w^t - h_k)|^2 + <w, g / v_k - g_k>, by local steps; then
h_k^+ = h_k + w_k - w^t,   g_k^+ = g_k - g / v_k - (w_k - w^t) / (tau_k eta_t)

=================  ====================  ==============================================  ==========
symbol             variable              meaning                                         where
=================  ====================  ==============================================  ==========
w^t                task.start            received parameters                             down
g                  ``gradient``          mean of v_k g_k over all clients                down
n / K              ``mean-examples``     v_k = n_k K / n, relative weight of mean 1      down
h_k                kept ``drift``        local drift; 0 of a new client                  kept
g_k                kept ``gradient``     gradient state; 0 of a new client               kept
v_k (g_k^+ - g_k)  ``gradient-delta``    change of v_k g_k                               up
n_k                kept ``examples``     as of the last training; 0 of a new client      kept
tau_k              step weight           local steps                                     here
alpha              ``feddc.alpha``       weight of the drift's term                      run config
=================  ====================  ==============================================  ==========

The authors' code divides by the first learning rate and by the clients' average number of steps, which puts
g_k at a wrong scale once eta_t decays or work is uneven; here both are the client's own. With momentum tau_k
is |a|_1, as in `client_app.solvers.scaffold`. Where examples have arrived since the client last trained, v_k
has changed too, and the change of v_k g_k has that part in it.
"""

import numpy as np
import torch

from client_app.solvers.fednova import step_weights
from client_app.solvers.sgd import Finished, Solver
from client_app.training.loop import LocalTask, Terms, per_client


class FedDCSolver(Solver, name="feddc"):
    """SGD with the gradient corrected, and pulled to the received model less the drift."""

    def begin(self, task: LocalTask) -> None:
        """Form alpha / v_k, and g / v_k - g_k + alpha / v_k (h_k - w^t)."""
        sizes, unit = task.examples.sizes, self.scalars["mean-examples"]
        last = [
            int(k["examples"]["n"]) if "examples" in k else n for k, n in zip(self.kept, sizes, strict=True)
        ]
        self._v = [n / unit for n in sizes]  # rows, as registered
        self._grown = [(n - before) / unit for n, before in zip(sizes, last, strict=True)]
        self._drift, self._own = self.remembered(task, "drift"), self.remembered(task, "gradient")
        self._pooled = [g.double() / per_client(self._v, g) for g in self.received(task, "gradient")]
        pulls = [self.config.feddc.alpha / per_client(self._v, p).to(p.dtype) for p in task.params]
        held = zip(pulls, self._drift, task.start, self._pooled, self._own, strict=True)
        task.memory["pull"] = pulls
        task.memory["fixed"] = [a * (h - w) + (g - own).to(w.dtype) for a, h, w, g, own in held]

    def terms(self, task: LocalTask) -> Terms:
        """Return alpha / v_k (w - w^t + h_k) + g / v_k - g_k."""
        pulled = [a * p for a, p in zip(task.memory["pull"], task.params, strict=True)]
        return [(1.0, pulled), (1.0, task.memory["fixed"])]

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return w_k and the change of v_k g_k; keep h_k^+ and g_k^+."""
        lengths = [a * task.lr for a in step_weights(task)]  # tau_k eta_t
        drift, gradient, deltas = [], [], []
        with torch.no_grad():
            parts = zip(task.params, task.moved(), self._drift, self._own, self._pooled, strict=True)
            for p, moved, h, own, g in parts:
                change = -g - moved / per_client(lengths, p)
                drift.append((h + moved).to(h.dtype))
                gradient.append((own + change).to(own.dtype))
                delta = per_client(self._v, p) * change + per_client(self._grown, p) * own.double()
                deltas.append(delta.to(p.dtype))
        sizes = [{"n": np.array(n, np.int64)} for n in task.examples.sizes]
        keep = {"drift": task.named(drift), "gradient": task.named(gradient), "examples": sizes}
        return self.updates(task, stats, up={"gradient-delta": task.named(deltas)}, keep=keep)
