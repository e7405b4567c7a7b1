"""Sharpness-aware steps: FedSAM (Qu et al. 2022; Caldarola et al. 2022), in front of any solver's own.

e = rho g / |g|,  g = grad l(w; b);  the step's gradient is that of the same batch at w + e

==============  ============================================================  ======================
``sam.form``    e                                                             paper
==============  ============================================================  ======================
normalised      rho g / |g|, the norm over all of a client's parameters       Qu et al., equation (4)
plain           rho g                                                         Sun et al. (FedSpeed)
adaptive        rho T^2 g / |T g|, T = |w| + 0.01 of weights, 1 of others     Caldarola et al. (FedASAM)
==============  ============================================================  ======================

What a solver adds to each gradient as linear terms, such as a proximal or a control term, is taken at w. So
``sam.rho`` makes FedSAM of FedAvg, MoFedSAM of FedCM, FedGamma of SCAFFOLD, and FedSpeed of FedDyn. Momentum,
weight decay and clipping act on the second gradient alone. Running statistics move in the first pass only;
dropout is drawn in each.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import torch

from client_app.training.local_optimizer import norms_of
from client_app.training.programs import Batch, LossAndGradient, Tensors
from task.config.algorithm_sections import SamConfig

if TYPE_CHECKING:
    from client_app.training.loop import Hooks, LocalTask

SMALLEST = 1e-12  # |g| that is divided by, at least
ETA = 0.01  # of FedASAM, added to the size of a weight


def gradient_of(
    solver: Hooks, task: LocalTask, batch: Batch, frozen: Collection[str] = ()
) -> LossAndGradient:
    """Return the solver's losses and gradient of a batch; under ``sam.rho`` that uphill."""
    sam, params = solver.config.sam, task.params
    loss, gradient = solver.gradient(task, batch)
    if not sam.rho:
        return loss, gradient
    with torch.no_grad():
        moving = [name not in frozen for name in task.program.names]
        away = _uphill(sam, task.program.names, params, gradient.tensors(), moving)
        task.params = [p + e if moves else p for p, e, moves in zip(params, away, moving, strict=True)]
    try:
        return loss, solver.gradient(task, batch)[1]
    finally:
        task.params = params


def _uphill(
    sam: SamConfig, names: Sequence[str], params: Tensors, grads: Tensors, moving: Sequence[bool]
) -> Tensors:
    """Return e [K, ...] of each parameter; what stands for those that do not move means nothing."""
    if sam.form == "plain":
        return [sam.rho * g for g in grads]
    sizes: list[torch.Tensor | None] = [None] * len(grads)
    if sam.form == "adaptive":
        sizes = [
            p.abs() + ETA if name.rpartition(".")[2] == "weight" else None
            for name, p in zip(names, params, strict=True)
        ]
    scaled = [g if t is None else t * g for g, t in zip(grads, sizes, strict=True)]
    length = norms_of([g for g, moves in zip(scaled, moving, strict=True) if moves]).clamp(min=SMALLEST)
    share = sam.rho / length
    pairs = zip(scaled, sizes, strict=True)
    return [(g if t is None else t * g) * share.view(-1, *[1] * (g.dim() - 1)) for g, t in pairs]
