"""FedFomo, client half. Zhang, Sapra, Fidler, Yeung, Alvarez, ICLR 2021, arXiv 2012.08565, section 3.

w_n = max(0, (L_i(theta) - L_i(theta_n)) / |theta_n - theta|), divided by their sum        (eq. 6)
theta_i <- theta + sum_n w_n (theta_n - theta),  then E epochs of SGD

========  ========================  ===============================================  =====================
symbol    variable                  meaning                                          where
========  ========================  ===============================================  =====================
theta_i   kept ``personal``         the client's own model after its last training   up, kept
theta     kept ``before``           the same before that training, as mixed          kept
theta_n   ``models``                others' models that the server chose, and,       down
                                    as in the authors' runs, theta_i
L_i       `_weigh`                  mean loss on the client's validation examples    here
w_n       ``affinity``              0 of clients whose models were not compared      up
          ``fedfomo.validation``    share of the training examples                   run config
========  ========================  ===============================================  =====================

So the client's own training counts as far as it made the model better on the validation examples, and where
no model is better all w_n are 0 and the client goes back to theta (authors' code: ``first_model``). With
``fedfomo.baseline = "after"`` theta is theta_i itself, which cannot be better than itself: then the client
keeps all of its training and moves on from there.

The validation examples are drawn once, by (seed, client), and are the same in every round. As in the paper
they are no training examples: local training takes the rest, with a single example both. n_k counts all.
Distances are over the parameters, |.| the Euclidean norm of the paper (authors' code: by default the sum of
absolute values); the mixture is of parameters and buffers, in float64, rounded once.

A client that is new, or lost its state, begins with the run's initial model as theta and theta_i.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from client_app.solvers.sgd import Finished, OwnModelSolver
from client_app.training.loop import LocalTask
from task.numerics import seeds
from task.numerics.arrays import Arrays, rounded, squared_norm
from task.tasks.evaluate import measure


class FedFomoSolver(OwnModelSolver, name="fedfomo"):
    """Steps towards the models that are better for the client, then plain SGD."""

    def begin(self, task: LocalTask) -> None:
        """Weigh the models that came, mix, and set the validation examples aside."""
        assert self.order is not None
        (client,) = self.order.clients
        data, n = task.examples, len(task.examples.y)
        order = seeds.rng_for(self.config.seeds.data, seeds.VALIDATION, 0, client).permutation(n)
        size = max(int(n * self.config.fedfomo.validation), 1)
        held_out, rest = (torch.from_numpy(np.sort(rows)) for rows in (order[:size], order[size:]))
        trained = task.received | self.kept[0].get("personal", {})
        theta, models = trained, self.per_client[0]["models"]
        if self.config.fedfomo.baseline == "before":
            theta, models = task.received | self.kept[0].get("before", {}), {client: trained, **models}
        self.weights = self._weigh(task, theta, models, data.x[held_out], data.y[held_out])
        self.mixed = mixture(theta, models, self.weights)
        task.start_from([self.mixed])
        if len(rest):
            task.examples = replace(data, given=data.held[rest], y=data.y[rest], sizes=[len(rest)])

    def _weigh(
        self, task: LocalTask, theta: Arrays, models: Mapping[str, Arrays], x: torch.Tensor, y: torch.Tensor
    ) -> dict[str, float]:
        """Return w_n by client."""

        def loss(model: Arrays) -> float:
            task.load([model])
            return measure(task.program.model, x, y, task=task.program.task)[0]["loss"]

        own, found = loss(theta), {}
        for name, other in models.items():
            away = {n: other[n].astype(np.float64) - theta[n] for n in task.program.names}
            distance = math.sqrt(squared_norm(away))
            found[name] = max(0.0, (own - loss(other)) / distance) if distance else 0.0
        total = math.fsum(found.values())
        return {name: w / total for name, w in found.items()} if total else found

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return theta_i and the w_n, in the order of the population; keep theta_i and where it began."""
        assert self.order is not None
        w = np.array([self.weights.get(name, 0.0) for name in self.order.population], np.float32)
        keep = {"personal": self.own_models(task), "before": [self.mixed]}
        return self.updates(task, stats, up={"affinity": [{"clients": w}]}, keep=keep)


def mixture(theta: Arrays, models: Mapping[str, Arrays], weights: Mapping[str, float]) -> Arrays:
    """Return theta + sum_n w_n (theta_n - theta); integers are rounded to the nearest, halves up."""
    out = {}
    for name, a in theta.items():
        wide = a.astype(np.float64)
        for client, w in weights.items():
            if w:
                wide = wide + w * (models[client][name].astype(np.float64) - a)
        out[name] = rounded(wide, a.dtype)
    return out
