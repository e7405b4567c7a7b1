"""SCAFFOLD, client half. Karimireddy et al., ICML 2020, arXiv 1910.06378, Algorithm 1, lines 7 to 14.

y <- y - eta_l (g_i(y) - c_i + c), for each batch;  then
option I:   c_i^+ = g_i(x)
option II:  c_i^+ = c_i - c + (x - y_i) / (K eta_l)

=============  ==========================  ================================================  ==========
symbol         variable                    meaning                                           where
=============  ==========================  ================================================  ==========
x              task.start                  received parameters                               down
c              ``control``                 server's control variate                          down
c_i            kept ``control``            client's control variate; 0 of a new client       kept
c_i^+ - c_i    ``control-delta``           by how much it changed                            up
K              step weight                 local steps                                       here
=============  ==========================  ================================================  ==========

Option I is a further pass over all local data, its gradient that of evaluation (no dropout, buffers at rest);
option II reuses the steps. With momentum the correction c - c_i is part of the gradient that enters the
momentum, and K is the weight |a|_1 of the steps (`client_app.solvers.fednova.step_weight`), so that c_i^+ is
still a mean of gradients; without momentum |a|_1 = K. (NIID-Bench adds the correction outside the momentum
and divides by K, so that its control variates are up to 1/(1 - rho) gradients.)

A client that is new, or lost its state, begins with c_i = 0, as all do in the paper.
"""

import torch

from client_app.solvers.fednova import step_weights
from client_app.solvers.sgd import Finished, Solver
from client_app.training.loop import LocalTask, Terms, full_gradient, per_client
from client_app.training.programs import Tensors


class ScaffoldSolver(Solver, name="scaffold"):
    """SGD with the gradient corrected by c - c_i."""

    def begin(self, task: LocalTask) -> None:
        """Form c - c_i, and with option I the gradient of the received model."""
        control = self.received(task, "control")
        self._own = self.remembered(task, "control")
        task.memory["correction"] = [c - own for c, own in zip(control, self._own, strict=True)]
        self._at_start = full_gradient(task)[1] if self.config.scaffold.option == "I" else None

    def terms(self, task: LocalTask) -> Terms:
        """Return c - c_i."""
        return [(1.0, task.memory["correction"])]

    def _new_control(self, task: LocalTask) -> Tensors:
        if self._at_start is not None:
            return self._at_start
        lengths = [a * task.lr for a in step_weights(task)]  # K eta_l
        parts = zip(task.moved(), task.memory["correction"], strict=True)
        return [(-moved / per_client(lengths, moved) - c.double()).to(c.dtype) for moved, c in parts]

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return y_i and the change of c_i; keep c_i^+."""
        with torch.no_grad():
            control = self._new_control(task)
            deltas = [new - old for new, old in zip(control, self._own, strict=True)]
        up, keep = {"control-delta": task.named(deltas)}, {"control": task.named(control)}
        return self.updates(task, stats, up=up, keep=keep)
