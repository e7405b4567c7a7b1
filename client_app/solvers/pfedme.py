"""pFedMe, client half. Dinh, Tran, Nguyen, NeurIPS 2020, arXiv 2006.08848, Algorithm 1, lines 4 to 9.

min_w mean_k F_k(w), F_k(w) = min_theta f_k(theta) + lambda/2 |theta - w|^2.  For each batch b:

theta <- theta - i (grad f(theta; b) + lambda (theta - w)), K times;  then  w <- w - eta lambda (w - theta)

======  ====================  ===========================================  ==========
symbol  variable              meaning                                      where
======  ====================  ===========================================  ==========
w       task.params           local model, from w^t on                     down, up
theta   ``theta``             the client's own model, from w^t on          memory
        kept ``personal``     its last value, with the buffers             kept
eta     task.lr               step of w                                    down
i       ``pfedme.inner-lr``   step of theta                                run config
K       ``pfedme.steps``      steps of theta for each batch                run config
lambda  ``pfedme.lambda``     weight of the pull of w                      run config
======  ====================  ===========================================  ==========

theta goes on from where the batch before left it. Each round begins with theta = w^t, so that the theta that
is kept is for evaluation alone; a client that has none, being new or having lost it, is measured with the
received model. Momentum and weight decay, if any, are those of the steps of w. ``train-loss`` is f(theta; b)
before the K steps of the batch. Running statistics follow theta and go up as well.
"""

import torch

from client_app.solvers.sgd import OwnModelSolver
from client_app.training.loop import LocalTask
from client_app.training.programs import Batch, Dense, LossAndGradient
from task.numerics.arrays import Arrays


class PFedMeSolver(OwnModelSolver, name="pfedme"):
    """Steps towards the minimum of the proximal objective, which w follows."""

    def begin(self, task: LocalTask) -> None:
        """Start theta at w^t."""
        # theta has the program's own memory: running statistics move where the gradients are taken.
        task.memory["theta"] = task.all_params
        task.all_params = task.params = [p.clone() for p in task.all_params]

    def gradient(self, task: LocalTask, batch: Batch) -> LossAndGradient:
        """Move theta; return f(theta; b) before that, and lambda (w - theta)."""
        knobs, theta, w = self.config.pfedme, task.memory["theta"], task.params
        pull = knobs.inner_lr * knobs.lambda_
        first, gradient = task.program.gradient(theta, batch)
        for step in range(knobs.steps):
            if step:
                _, gradient = task.program.gradient(theta, batch)
            with torch.no_grad():
                torch._foreach_lerp_(theta, w, pull)
                gradient.add_to(theta, -knobs.inner_lr)
        return first, Dense([knobs.lambda_ * (a - b) for a, b in zip(w, theta, strict=True)])

    def own_models(self, task: LocalTask) -> list[Arrays]:
        """Return theta, with the buffers."""
        return task.program.states(task.memory["theta"])
