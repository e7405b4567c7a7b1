"""DP-SGD: steps that protect each training example (Abadi et al. 2016, arXiv 1607.00133, Algorithm 1).

Each example joins a step by a coin of its own with probability q_k = B / n_k; its gradient g_i is scaled to a
norm of C at most; and the step takes, whatever the solver adds and the optimizer makes of it,

    (sum_i g_i min(1, C / |g_i|) + N(0, (z C)^2)) / B

B being ``batch-size``, the examples to be expected. A client trains alone: the shapes of its batches are its
own.

===========  ======================  =======================================
symbol       variable                meaning
===========  ======================  =======================================
C            ``bound``               ``dp.clip``, of all parameters together
z            ``noise``               ``dp.noise``
B, q_k       ``expected, sampling``  examples to be expected, B / n_k
===========  ======================  =======================================

Of linear layers a gradient is the product of the layer's input h and the loss's derivative e, so that |g_i|^2
= sum over layers of |e|^2 (|h|^2 + 1): the norms cost nothing, and clipping scales the rows of e. Any other
model's gradients come from ``torch.func.vmap``, `MOST` numbers at a time.
"""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch.func import functional_call, grad, vmap

from client_app.training.programs import Batch, Dense, Factored, Program, Single, Tensors
from client_app.training.stacked import Perceptron
from task.models.layers import Conv2d
from task.privacy.noise import Stream

MOST = 1 << 26  # numbers of examples' gradients that are in memory at once
ROUNDED = 1.0 - 2.0**-20  # tolerance for the rounding of a scaled gradient's norm


class PrivateSteps:
    """The batches and the gradients of one client in one round."""

    def __init__(self, bound: float, noise: float, expected: int, stream: Stream) -> None:
        self.bound, self.noise, self.expected, self.stream = bound, noise, expected, stream

    def batches(self, rows: int, steps: int) -> list[np.ndarray]:
        """Return which of a client's examples join each step; some batches may be empty."""
        sampling = min(1.0, self.expected / rows) if rows else 0.0
        return [np.flatnonzero(self.stream.uniform(rows) < sampling) for _ in range(steps)]

    def gradient(self, program: Program, params: Tensors, batch: Batch) -> tuple[torch.Tensor, Dense]:
        """Return a loss [1] that means nothing, and the noised gradient of one client."""
        total = self.clipped(program, params, batch)
        size = sum(t.numel() for t in total)
        noise = torch.from_numpy(self.stream.normal(size) * (self.noise * self.bound))
        parts = torch.split(noise.to(total[0]), [t.numel() for t in total])
        made = [(t + n.view_as(t)) / self.expected for t, n in zip(total, parts, strict=True)]
        return torch.zeros(1, device=total[0].device), Dense(made)

    def clipped(self, program: Program, params: Tensors, batch: Batch) -> Tensors:
        """Return the sum of the clipped gradients of a batch's examples, tensors [1, ...]."""
        if not batch.x.shape[1]:
            return [torch.zeros_like(p) for p in params]
        if isinstance(program, Perceptron):
            ones = Batch(batch.x, batch.y, torch.ones_like(batch.scale))
            _, gradient = program.gradient(params, ones)
            assert isinstance(gradient, Factored)
            return self._by_rows(gradient)
        assert isinstance(program, Single)
        return self._by_examples(program, params, batch)

    def _by_rows(self, gradient: Factored) -> Tensors:
        layers = list(zip(gradient.inputs, gradient.deltas, strict=True))
        squares = sum(e.double().square().sum(2) * (h.double().square().sum(2) + 1.0) for h, e in layers)
        assert isinstance(squares, torch.Tensor)
        factor = self._factor(squares.sqrt()).unsqueeze(2)
        return Factored(gradient.inputs, [e * factor.to(e) for e in gradient.deltas]).tensors()

    def _by_examples(self, program: Single, params: Tensors, batch: Batch) -> Tensors:
        names = program.names
        own = {n: p[0].detach() for n, p in zip(names, params, strict=True)}

        def loss(values: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            found = functional_call(program.model, values, (x.unsqueeze(0),))
            return program.task.total(found, y.unsqueeze(0))

        of_each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
        most = max(1, MOST // max(sum(p.numel() for p in params), 1))
        total = [torch.zeros_like(p) for p in params]
        for x, y in zip(torch.split(batch.x[0], most), torch.split(batch.y[0], most), strict=True):
            each = of_each(own, x, y)
            flat = [each[n].flatten(1) for n in names]
            norms = torch.stack([g.double().square().sum(1) for g in flat]).sum(0).sqrt()
            factor = self._factor(norms)
            for into, g in zip(total, flat, strict=True):
                into += (factor.to(g) @ g).view_as(into)
        return total

    def _factor(self, norms: torch.Tensor) -> torch.Tensor:
        """Return min(1, C / norm) of each example, a little less so that rounding cannot exceed C."""
        return (self.bound * ROUNDED / norms.clamp(min=1e-300)).clamp(max=1.0)


def private_program(model: torch.nn.Module, program: Program) -> Program:
    """Return the program by which the clients of a private run train, one at a time."""
    if program.task.plain and isinstance(model, torch.nn.Sequential) and Perceptron.takes(model):
        return Perceptron(model, program.task)
    return Single(_plain(model), program.task)


def _plain(model: torch.nn.Module) -> torch.nn.Module:
    """Return a copy with PyTorch's own convolutions: ours choose a memory format, which `vmap` cannot."""
    made = copy.deepcopy(model)
    for module in made.modules():
        if type(module) is Conv2d:
            module.__class__ = torch.nn.Conv2d  # type: ignore[assignment]
    return made


class PoissonSchedule:
    """Which rows a client takes in each step; the interface is that of the loop's own schedule."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, batches: Sequence[np.ndarray], scale: float) -> None:
        self.x, self.y, self.scale = x, y, torch.tensor([scale], device=x.device)
        self.rows = [torch.from_numpy(rows).to(x.device) for rows in batches]
        self.active, self.passes = [1] * len(batches), [1]  # each step draws from all examples
        self.counts = np.array([[len(rows)] for rows in batches])

    def batch(self, step: int) -> Batch:
        """Return the batch of one step."""
        rows = self.rows[step]
        x, y = self.x.index_select(0, rows), self.y.index_select(0, rows)
        return Batch(x.unsqueeze(0), y.unsqueeze(0), self.scale, rows=rows.unsqueeze(0))
