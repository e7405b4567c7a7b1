"""MOON, client half. Li, He, Song, CVPR 2021, arXiv 2103.16257, Algorithm 1 and eq. 3 and 4.

w <- w - eta grad l(w; b), for each batch b of each of E epochs,  l = l_sup + mu l_con,
l_con = -log(e^{cos(z, z_glob)/tau} / (e^{cos(z, z_glob)/tau} + sum_j e^{cos(z, z_j)/tau})), its mean over b

======  =====================  ==================================================================  ==========
symbol  variable               meaning                                                             where
======  =====================  ==================================================================  ==========
w^t     task.received          global model                                                        down
w_j     kept ``previous``      local models at the ends of the client's last rounds, newest first  kept
z       features               what the last linear layer reads, of the model that is trained      here
z_glob  directions, first      the same of w^t                                                     here
z_j     directions, others     the same of w_j; the paper has one, z_prev                          here
mu      ``moon.mu``            weight of l_con                                                     run config
tau     ``moon.temperature``   temperature                                                         run config
        ``moon.buffer``        most w_j that a client keeps                                        run config
======  =====================  ==================================================================  ==========

z is the output of the projection head where the model has one: ``moon-cnn``. w^t and w_j stand still, in
evaluation mode (no dropout, normalisation by their own running statistics), so that their z are functions of
the example: they are computed once for all the client's examples, before the first step, and not in each.
That is one pass over them for each of these models, also where ``local-steps`` is less than a pass.

A client without w_j, as in its first round, trains as in FedAvg, to the last bit, in any cohort; so do all
with mu = 0. Where z_glob = z_1 the term is the constant log 2. ``train-loss`` is l, so it rises by mu l_con
in a client's second round; compare accuracies with FedAvg's, not losses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch.nn.functional import normalize

from client_app.solvers.sgd import Finished, Solver
from client_app.training.loop import CHUNK, LocalTask
from client_app.training.programs import (
    Batch,
    Gradient,
    LossAndGradient,
    Program,
    Tensors,
    differentiated,
    leaves_of,
    losses_of,
)
from task.numerics.arrays import Arrays
from task.wire.checks import check_arrays

SHORTEST = 1e-8  # |z| that a cosine divides by, at least


class MoonSolver(Solver, name="moon"):
    """SGD on the supervised and the model-contrastive loss."""

    def begin(self, task: LocalTask) -> None:
        """Compute what the models that stand still make of the clients' examples.

        Raises:
            FieldError: A client kept models of another form.
        """
        moon = self.config.moon
        self._previous = [_numbered(fields.get("previous", {}))[: moon.buffer] for fields in self.kept]
        self._groups: dict[int, list[tuple[int, torch.Tensor]]] = {}
        self._counts = [len(models) if moon.mu else 0 for models in self._previous]
        if any(self._counts):
            self._directions = self._look(task)

    def _look(self, task: LocalTask) -> torch.Tensor:
        """Return z / |z| of w^t and each w_j, [n_1 + ... + n_K, 1 + most w_j, f]; 0 where there is none."""
        found: list[tuple[slice, torch.Tensor]] = []
        for (first, end), models in zip(pairwise(task.examples.offsets), self._previous, strict=True):
            for i, model in enumerate(models):
                check_arrays(f"previous/{i}", model, task.received)
            if models:
                rows = slice(int(first), int(end))
                still = (task.received, *models)
                units = torch.stack([_units(task.program, w, task.examples.x[rows]) for w in still], 1)
                found.append((rows, units))
        task.load(task.own)
        like = found[0][1]
        directions = like.new_zeros(len(task.examples.x), 1 + max(self._counts), like.shape[2])
        for rows, units in found:
            directions[rows, : units.shape[1]] = units
        return directions

    def gradient(self, task: LocalTask, batch: Batch) -> LossAndGradient:
        """Return losses and gradient of l; clients of like many w_j go together.

        So what a client computes does not depend on the others.
        """
        groups = self._by_count(len(batch.x), batch.x.device)
        if len(groups) == 1:
            return self._of(task.program, groups[0][0], task.params, batch)
        made = []
        for count, who in groups:
            assert batch.rows is not None
            part = Batch(batch.x[who], batch.y[who], batch.scale[who], batch.padded, batch.rows[who])
            made.append(self._of(task.program, count, [p[who] for p in task.params], part))
        grouped = Grouped([who for _, who in groups], [gradient for _, gradient in made])
        return torch.cat([loss for loss, _ in made])[grouped.order()], grouped

    def _by_count(self, k: int, device: torch.device) -> list[tuple[int, torch.Tensor]]:
        """Return the first k clients grouped by their number of w_j: the number, and the clients."""
        if k not in self._groups:
            counts = self._counts[:k]
            rows = {n: [i for i, count in enumerate(counts) if count == n] for n in sorted(set(counts))}
            self._groups[k] = [(n, torch.tensor(who, device=device)) for n, who in rows.items()]
        return self._groups[k]

    def _of(self, program: Program, count: int, params: Tensors, batch: Batch) -> LossAndGradient:
        """Return losses and gradient of clients that have `count` w_j each."""
        if not count:
            return program.gradient(params, batch)
        assert batch.rows is not None
        leaves = leaves_of(params)
        z, logits = program.features(leaves, batch.x)
        each = losses_of(program.task, logits, batch)
        units = self._directions.index_select(0, batch.rows.flatten()).view(*batch.y.shape, -1, z.shape[2])
        contrast = contrastive(z, units[:, :, : 1 + count], self.config.moon.temperature)
        if batch.padded:
            contrast = contrast.masked_fill(batch.y < 0, 0.0)
        return differentiated((each + self.config.moon.mu * contrast).sum(1) * batch.scale, leaves)

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return w_k; keep it in front of the models before."""
        pairs = zip(task.states(), self._previous, strict=True)
        kept = [[state, *before][: self.config.moon.buffer] for state, before in pairs]
        records = [{f"{i}/{n}": a for i, model in enumerate(m) for n, a in model.items()} for m in kept]
        return self.updates(task, stats, keep={"previous": records})


def contrastive(z: torch.Tensor, directions: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return l_con of each example, from its features [..., f], differentiable.

    `directions` are z / |z| of the model to come near, then of those to keep away from, [..., 1 + m, f].
    """
    unit = normalize(z, dim=-1, eps=SHORTEST).unsqueeze(-2)
    scores = (unit * directions).sum(-1) / temperature
    return scores.logsumexp(-1) - scores[..., 0]


def _units(program: Program, model: Arrays, x: torch.Tensor) -> torch.Tensor:
    """Return z / |z| of one client's examples [n, f]; the program's model may be this one afterwards."""
    params = program.load(model, 1)
    program.train(False)
    with torch.no_grad():
        parts = [program.features(params, some.unsqueeze(0))[0][0] for some in torch.split(x, CHUNK)]
        return normalize(torch.cat(parts), dim=1, eps=SHORTEST)


def _numbered(record: Arrays) -> list[Arrays]:
    """Take a record of arrays ``<number>/<name>`` apart into models."""
    models: dict[int, Arrays] = {}
    for key, array in record.items():
        number, _, name = key.partition("/")
        models.setdefault(int(number), {})[name] = array
    return [models[i] for i in sorted(models)]


@dataclass
class Grouped:
    """The gradients of groups of clients."""

    rows: Sequence[torch.Tensor]  # which clients each group is, int64
    gradients: Sequence[Gradient]

    def order(self) -> torch.Tensor:
        """Return where each client is in the groups, one after the other."""
        return torch.cat(list(self.rows)).argsort()

    def add_to(self, into: Tensors, scale: float) -> None:
        """Add `scale` times the gradient in place."""
        for who, gradient in zip(self.rows, self.gradients, strict=True):
            some = [t[who] for t in into]
            gradient.add_to(some, scale)
            for t, s in zip(into, some, strict=True):
                t[who] = s

    def tensors(self) -> Tensors:
        """Return it as tensors, the clients in their order."""
        order = self.order()
        return [torch.cat(parts)[order] for parts in zip(*(g.tensors() for g in self.gradients), strict=True)]
