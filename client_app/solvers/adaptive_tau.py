"""Adaptive local steps, client half. Wang et al., IEEE JSAC 37(6), 2019, arXiv 1804.05271, Algorithm 3.

tau steps of plain SGD; and at the first of them, on its minibatch, with w the received and w_k the own last
model,

rho = |F_k(w_k) - F_k(w)| / |w_k - w|,   beta = |grad F_k(w_k) - grad F_k(w)| / |w_k - w|

=============  ====================  ===========================================================  ======
symbol         variable              meaning                                                      where
=============  ====================  ===========================================================  ======
tau            ``local-steps``       local steps of this round                                    down
w_k            ``local-model``       parameters at the end of the client's last round             kept
rho, beta      ``rho``, ``beta``     0 and 0 if there is no w_k, or it is within 1e-10 of w       up
grad F_k(w)    ``gradient``          on that minibatch                                            up
F_k(w)         ``loss-before``       over all local examples                                      up
c_k            ``step-seconds``      measured time of a step; 0 unless ``resource = "seconds"``   up
=============  ====================  ===========================================================  ======

The two points are measured without dropout and with fixed statistics, so that the training is not touched.
(The authors' code takes the last minibatch of the previous round for the first step instead, and at tau = 1
keeps one for three rounds, to have both points on one minibatch.)
"""

import time

import torch

from client_app.solvers.sgd import Finished, Solver
from client_app.training.loop import LocalTask, full_loss, norms
from client_app.training.programs import Batch, LossAndGradient, Tensors
from task.wire import messages as wire

FIELD = "local-model"
SMALLEST_DISTANCE = 1e-10


class AdaptiveTauSolver(Solver, name="adaptive-tau"):
    """Plain SGD that measures how smooth its loss is."""

    def begin(self, task: LocalTask) -> None:
        """Measure F_k(w)."""
        self._losses = full_loss(task)
        self._slopes: list[tuple[float, float]] = []
        self._at_start: Tensors = []
        self._began = time.perf_counter()

    def gradient(self, task: LocalTask, batch: Batch) -> LossAndGradient:
        """Return the plain gradient; on the first batch measure rho, beta and grad F_k(w)."""
        if not self._at_start:
            task.program.train(False)
            self._measure(task, batch)
            task.program.train(True)
            self._began = time.perf_counter()
        return super().gradient(task, batch)

    def _measure(self, task: LocalTask, batch: Batch) -> None:
        loss, gradient = task.program.gradient(task.params, batch)
        self._at_start = [t.clone() for t in gradient.tensors()]
        if not any(self.kept):
            self._slopes = [(0.0, 0.0)] * task.clients
            return
        names, kept = task.program.names, [k.get(FIELD) for k in self.kept]
        last = [
            torch.stack([s[0] if k is None else torch.tensor(k[n], device=s.device) for k in kept])
            for n, s in zip(names, task.start, strict=True)
        ]
        there, steepest = task.program.gradient(last, batch)
        with torch.no_grad():
            away = norms([a - b for a, b in zip(last, task.start, strict=True)])
            turned = norms([a - b for a, b in zip(steepest.tensors(), self._at_start, strict=True)])
        risen = (there.double() - loss.double()).abs().tolist()
        self._slopes = [
            (up / distance, turn / distance) if distance > SMALLEST_DISTANCE else (0.0, 0.0)
            for up, turn, distance in zip(risen, turned, away, strict=True)
        ]

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return w_k with what was measured; keep w_k."""
        seconds = 0.0
        if self.config.adaptive_tau.resource == "seconds":
            seconds = (time.perf_counter() - self._began) / max(int(self.scalars[wire.LOCAL_STEPS]), 1)
        rho, beta = zip(*self._slopes, strict=True)
        measured = {"rho": rho, "beta": beta, "loss-before": self._losses}
        return self.updates(
            task,
            stats,
            up={"gradient": task.named(self._at_start)},
            scalars=measured | {"step-seconds": [seconds] * task.clients},
            keep={FIELD: task.named(task.params)},
        )
