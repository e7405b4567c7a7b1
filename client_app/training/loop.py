"""The one training loop, for one client or for a cohort of K that trains as one program.

The gradient comes from a `client_app.training.programs.Program`; the update is made in place, by plain SGD or
a `client_app.training.local_optimizer.LocalOptimizer`. There is no ``torch.optim`` object unless a user
brings one (its first use imports torch._dynamo, 3 s and 150 MB in every process) and no ``DataLoader``: a
batch is one gather from the decoded examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
import torch

from client_app.training.local_optimizer import clip, local_optimizer
from client_app.training.private import PoissonSchedule, PrivateSteps
from client_app.training.programs import Batch, Gradient, LossAndGradient, Program, Tensors
from client_app.training.sharpness import gradient_of
from task.config.knobs import Config
from task.config.sections import TrainConfig
from task.numerics.arrays import Arrays
from task.tasks.base import counted, fill

if TYPE_CHECKING:
    from client_app.training.augment import Augmentation
    from client_app.training.restriction import Restriction
    from task.datasets.public import PublicExamples

CHUNK = 512  # examples of a client whose activations are alive at once in `full_gradient`
Terms = list[tuple[float, Tensors]]
"""Linear terms of a gradient: the sum of factor * tensors."""


class Hooks(Protocol):
    """The interface that the loop needs of a solver, see `client_app.solvers.sgd.Solver`."""

    config: Config
    training: ClassVar[bool]

    @property
    def plain_gradient(self) -> bool:
        """Whether its gradient is the loss's, without terms."""

    def gradient(self, task: LocalTask, batch: Batch) -> LossAndGradient:
        """Return the batch's losses [K] and gradient."""

    def terms(self, task: LocalTask) -> Terms:
        """Return the linear terms to add to a gradient."""


@dataclass
class Examples:
    """The training examples of K clients, one client's after the other's."""

    # What augmentation begins with, [n_1 + ... + n_K, ...], or a function that reads that of some rows.
    given: torch.Tensor | Callable[[np.ndarray], torch.Tensor]
    y: torch.Tensor  # targets [n_1 + ... + n_K, ...], int64 or float32
    sizes: Sequence[int]  # n_k, rows of each client
    # Makes a model's inputs of what is given; None = that is what a model reads.
    finish: Callable[[torch.Tensor], torch.Tensor] | None = None

    def __post_init__(self) -> None:
        self.offsets = np.concatenate([[0], np.cumsum(self.sizes)])
        text = self.y.dim() > 1 and not self.y.is_floating_point()
        self.targets = counted(self.y).cpu().numpy() if text else np.ones(len(self.y), np.int64)
        """Targets that count by row: 1, or of text the bytes that are predicted; padding does not count."""

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.y.device

    @cached_property
    def x(self) -> torch.Tensor:
        """Inputs [n_1 + ... + n_K, ...] as a model reads them, without augmentation."""
        return self.finish(self.held) if self.finish else self.held

    @cached_property
    def held(self) -> torch.Tensor:
        """All that is given, in memory."""
        return self.given(np.arange(len(self.y))) if callable(self.given) else self.given

    def of(self, rows: torch.Tensor) -> torch.Tensor:
        """Return what is given of some rows; the others are not read for that."""
        if callable(self.given) and "held" not in vars(self):
            return self.given(rows.cpu().numpy())
        return self.held.index_select(0, rows)

    def counted(self, k: int) -> int:
        """Return how many targets of client k count."""
        return int(self.targets[self.offsets[k] : self.offsets[k + 1]].sum())


@dataclass
class LocalTask:
    """The training of K clients in one round; all tensors have the clients as their first axis."""

    program: Program
    received: Arrays  # w^t by name, parameters and buffers
    examples: Examples  # those of clients with more steps first
    epochs: Sequence[int]  # E of each client, or fewer for a straggler
    lr: float  # eta_t
    config: TrainConfig
    rngs: Sequence[np.random.Generator]  # draw the order of each client's examples, and nothing else
    own: Sequence[Arrays] = ()  # by client, its private part, which replaces received values
    private: frozenset[str] = frozenset()  # names of the tensors that never leave the client
    frozen: Collection[str] = ()  # names of the parameters that stay as they are in the present `train`
    memory: dict[str, Tensors] = field(default_factory=dict)
    """What a solver holds during the round, tensors [K, ...]; cut to the clients that still train."""
    steps: PrivateSteps | None = None  # draws the batches and makes their gradients, for privacy
    restriction: Restriction | None = None  # a restriction of every gradient
    public: PublicExamples | None = None  # the same for all
    augmentation: Augmentation | None = None  # augmentation of each step's examples
    lends: bool = False  # whether w_k may go up as it lies in the model's memory

    def __post_init__(self) -> None:
        self.clients = self.training = len(self.examples.sizes)
        """Clients, and how many of them still train."""

        self.num_examples = [self.examples.counted(k) for k in range(self.clients)]
        """n_k: examples, or of text the bytes that are predicted."""

        self.start_from(self.own)

    def start_from(self, own: Sequence[Arrays]) -> None:
        """Take these values in place of received ones, by client, and start from them."""
        self.own = own
        self._start: Tensors | None = None
        self.load(own)

    @property
    def start(self) -> Tensors:
        """w^t, what a proximal term refers to: [1, ...], or [k, ...] where it differs by client.

        Made when it is asked for first, as plain training does not need it.
        """
        if self._start is None:
            device, own = self.examples.device, self.own
            differ = {n for mine in own for n in mine} - self.private
            self._start = [
                torch.stack([torch.tensor(mine.get(n, self.received[n]), device=device) for mine in own])
                if n in differ
                else torch.tensor(self.received[n], device=device).unsqueeze(0)
                for n in self.program.names
            ]
        k = self.training
        return self._start if k == self.clients else [s[:k] if len(s) > 1 else s for s in self._start]

    def load(self, own: Sequence[Arrays] = ()) -> None:
        """Set the parameters, and buffers, to the received values but for each client's `own`."""
        self.all_params: Tensors = self.program.load(self.received, self.clients, own)
        self.params: Tensors = self.all_params
        """w of the clients that still train, [k, ...]; w_k of all of them after `train`."""

    def moved(self) -> Tensors:
        """Return w - w^t, float64."""
        with torch.no_grad():
            return [p.double() - w.double() for p, w in zip(self.params, self.start, strict=True)]

    def states(self) -> list[Arrays]:
        """Return each client's present parameters and buffers."""
        return self.program.states(self.params)

    def named(self, tensors: Tensors) -> list[Arrays]:
        """Return tensors that are parallel to the parameters as arrays by name, for each client."""
        whole = [t.detach().cpu().numpy() for t in tensors]
        return [
            {n: np.array(a[k]) for n, a in zip(self.program.names, whole, strict=True)}
            for k in range(self.clients)
        ]


def steps_of(config: TrainConfig, rows: int, epochs: int) -> int:
    """Return the local steps of a client: ``local-steps``, or those of `epochs` passes over its rows."""
    return config.local_steps or epochs * math.ceil(rows / (config.batch_size or rows))


class _Schedule:
    """Which rows each client takes in each step.

    A client's batches are padded to B where K > 1 is possible, so that the shapes that it is computed in,
    and with them its last bits, do not depend on the other clients in the stack. Those that will be
    `augmented` have what augmentation begins with as inputs.
    """

    def __init__(self, task: LocalTask, epochs: int, *, augmented: bool = False) -> None:
        config, sizes, self.data = task.config, task.examples.sizes, task.examples
        self.finish = None if augmented else self.data.finish
        passes = [epochs] * len(sizes) if epochs else task.epochs
        steps = [steps_of(config, n, e) for n, e in zip(sizes, passes, strict=True)]
        assert steps == sorted(steps, reverse=True), "clients with more steps come first"
        width = config.batch_size or max(sizes)
        self.whole = width >= max(sizes)  # each batch is all the examples
        rows = np.full((steps[0], task.clients, width), -1, np.int64)
        for k, (n, rng) in enumerate(zip(sizes, task.rngs, strict=True)):
            per_epoch = math.ceil(n / width)
            for first in range(0, steps[k], per_epoch):
                order = np.full(per_epoch * width, -1, np.int64)
                # a full-batch step needs no order
                order[:n] = (np.arange(n) if width >= n else rng.permutation(n)) + self.data.offsets[k]
                last = min(first + per_epoch, steps[k])
                rows[first:last, k] = order.reshape(per_epoch, width)[: last - first]
        if 2 * rows.size > len(self.data.y):  # fewer are read step by step, the others never
            _ = self.data.held  # reads them at once
        self.passes = [math.ceil(n / width) for n in sizes]  # steps of an epoch
        self.counts = np.where(rows >= 0, self.data.targets[rows], 0).sum(2)  # [S, K]
        self.active = [sum(n > s for n in steps) for s in range(steps[0])]
        self.filled = (rows >= 0).sum(2).max(1) if not task.program.stacks else np.full(steps[0], width)
        device = self.data.device
        training = np.arange(task.clients) < np.array(self.active)[:, None]  # [S, K]
        short = np.logical_and((rows < 0).any(axis=2), training).sum(axis=1)
        self.padded = [task.program.stacks and n > 0 for n in short.tolist()]
        self.rows = torch.from_numpy(rows).to(device).unbind(0)
        scale = torch.from_numpy(1.0 / np.maximum(self.counts, 1)).to(device, torch.float32)
        self.scale = scale.unbind(0)

    def batch(self, step: int) -> Batch:
        """Return the batch of one step for the clients that still train."""
        k, b = self.active[step], int(self.filled[step])
        rows, scale = self.rows[step], self.scale[step]
        if rows.shape != (k, b):
            rows, scale = rows[:k, :b], scale[:k]
        padded = self.padded[step]
        flat = (rows.clamp(min=0) if padded else rows).reshape(-1)
        if self.whole and k * b == len(self.data.y):  # everything, in order
            x, y = self.data.held, self.data.y
        else:
            x, y = self.data.of(flat), self.data.y.index_select(0, flat)
        x = self.finish(x) if self.finish else x
        x, y = x.view(k, b, *x.shape[1:]), y.view(k, b, *y.shape[1:])
        if padded:
            fill(y, rows < 0)
        return Batch(x, y, scale, padded, flat.view(k, b))


def train(
    task: LocalTask, solver: Hooks, *, epochs: int = 0, frozen: Collection[str] = ()
) -> list[dict[str, float]]:
    """Run the local steps; ``task.params`` are w_k afterwards.

    ``local-steps`` > 0 is the number of steps, over as many passes as needed; else ``epochs`` passes.
    Each pass takes the examples in a new order and ends with a short batch if B does not divide n_k.
    B = 0 (infinity) makes each pass one step on all examples.

    `epochs` > 0 stands for ``task.epochs``; parameters named in `frozen` stay as they are.

    Returns:
        ``train-loss`` of each client: mean over all examples, as they were trained on.
    """
    augmentation, private = task.augmentation, task.steps
    schedule = (
        _poisson(task, epochs) if private else _Schedule(task, epochs, augmented=augmentation is not None)
    )
    update = _Update(task, solver.config, frozen)
    memory, losses, k = task.memory, [], task.clients
    task.frozen = frozen
    task.program.train(solver.training)
    plain = solver.plain_gradient and update.plain and not private
    if augmentation:
        augmentation.begin()
    for step, active in enumerate(schedule.active):
        if active != k:
            k = task.training = active
            task.params = [p[:k] for p in task.all_params]
            task.memory = {name: [t[:k] for t in held] for name, held in memory.items()}
            update.cut(k)
        batch = schedule.batch(step)
        if augmentation:
            batch = augmentation.batch(batch, [step // n for n in schedule.passes[:k]])
        if plain and (taken := task.program.stepped(task.params, batch, task.lr)) is not None:
            losses.append(taken)
            continue
        loss, gradient = (
            private.gradient(task.program, task.params, batch)
            if private
            else gradient_of(solver, task, batch, frozen)
        )
        losses.append(loss)
        with torch.no_grad():
            update.take(task, gradient, solver.terms(task))
        del gradient  # or it would be there while the next one is made
    task.params, task.memory, task.training = task.all_params, memory, task.clients
    return _mean_losses(losses, schedule)


class _Update:
    """How a step changes the parameters: by plain SGD, or by an optimizer, within what may change."""

    def __init__(self, task: LocalTask, config: Config, frozen: Collection[str]) -> None:
        self.restriction, self.frozen = task.restriction, frozen
        self.moving = [i for i, name in enumerate(task.program.names) if name not in frozen]
        # Weight decay is part of a restricted gradient: an optimizer's own would leave the restricted space.
        stepping = replace(task.config, weight_decay=0.0) if self.restriction else task.config
        self.optimizer = local_optimizer(stepping, config.adam, [task.params[i] for i in self.moving])
        self.decay = task.config.weight_decay if self.restriction or not self.optimizer else 0.0
        self.clip_norm = task.config.clip_norm

    @property
    def plain(self) -> bool:
        """Whether the gradient itself is the step."""
        return not (self.optimizer or self.frozen or self.restriction or self.decay)

    def cut(self, k: int) -> None:
        """Go on with the first k clients."""
        if self.optimizer:
            self.optimizer.cut(k)

    def take(self, task: LocalTask, gradient: Gradient, terms: Terms) -> None:
        """Change the parameters by a gradient and the solver's terms."""
        params = task.params
        if self.decay:
            terms = [*terms, (self.decay, params)]
        if self.restriction:
            gradient, terms = self.restriction.within(gradient, terms), []
        if not (self.frozen or self.optimizer):  # the gradient is added to the parameters as it is made
            _add(params, terms, -task.lr)
            gradient.add_to(params, -task.lr)
            return
        params, terms = _only(self.moving, params, terms)
        whole = gradient.tensors()
        grads = [whole[i] for i in self.moving]
        if not self.optimizer:
            _add(params, terms, -task.lr)
            torch._foreach_add_(params, grads, alpha=-task.lr)
            return
        _add(grads, terms, 1.0)
        if self.clip_norm:
            clip(grads, self.clip_norm)
        self.optimizer.step(params, grads, task.lr)


def _poisson(task: LocalTask, epochs: int) -> PoissonSchedule:
    """Return the schedule of a private client: as many steps, with batches of any size."""
    assert task.steps is not None
    assert task.clients == 1
    (n,), config, data = task.examples.sizes, task.config, task.examples
    batches = task.steps.batches(n, steps_of(config, n, epochs or task.epochs[0]))
    x = data.held if task.augmentation else data.x
    return PoissonSchedule(x, data.y, batches, 1.0 / task.steps.expected)


def first_batch(task: LocalTask) -> Batch:
    """Return the batch that each client's training would begin with."""
    return _Schedule(task, 1).batch(0)


def _only(moving: Sequence[int], params: Tensors, terms: Terms) -> tuple[Tensors, Terms]:
    """Return the tensors that move; a term of the parameters themselves stays one."""
    few = [params[i] for i in moving]
    return few, [(f, few if t is params else [t[i] for i in moving]) for f, t in terms]


def _add(into: Tensors, terms: Terms, scale: float) -> None:
    """Add `scale` times the terms; those that are `into` itself first, as they read it."""
    own = math.fsum(factor for factor, tensors in terms if tensors is into)
    if own:
        torch._foreach_mul_(into, 1.0 + scale * own)
    for factor, tensors in terms:
        if tensors is not into:
            torch._foreach_add_(into, tensors, alpha=scale * factor)


def _mean_losses(
    losses: Sequence[torch.Tensor], schedule: _Schedule | PoissonSchedule
) -> list[dict[str, float]]:
    """Return the mean over examples of each client's batch losses; one transfer from the device."""
    found = np.zeros(schedule.counts.shape)  # [S, K]
    if losses:
        training = np.arange(found.shape[1]) < np.array(schedule.active)[:, None]
        found[training] = torch.cat(list(losses)).double().cpu().numpy()
    sums = map(math.fsum, (found * schedule.counts).T.tolist())
    return [{"train-loss": s / max(int(n), 1)} for s, n in zip(sums, schedule.counts.sum(0), strict=True)]


def full_gradient(task: LocalTask, *, training: bool = False) -> tuple[list[float], Tensors]:
    """Return each client's mean loss over all its examples, and the gradient at the present parameters.

    Accumulated over chunks, so that memory does not grow with n_k. Clients of equal size go together.

    With `training` it is that of a training step, with dropout and moving statistics. Without, it is a
    measurement: nothing is drawn and no buffer moves.
    """
    grads = [torch.zeros_like(p) for p in task.params]
    sizes = task.examples.sizes
    K = task.clients
    groups = [range(K)] if len(set(sizes)) == 1 else [range(k, k + 1) for k in range(K)]
    task.program.train(training)
    losses: list[float] = []
    for group in groups:
        part = slice(group.start, group.stop)
        params, into = [p[part] for p in task.params], [g[part] for g in grads]
        totals = [[0.0] for _ in group]
        for batch in _chunks(task, group):
            loss, gradient = task.program.gradient(params, batch)
            with torch.no_grad():
                gradient.add_to(into, 1.0)
            for total, value in zip(totals, loss.tolist(), strict=True):
                total.append(value)
        losses += [math.fsum(total) for total in totals]
    return losses, grads


def full_loss(task: LocalTask, model: Arrays | None = None) -> list[float]:
    """Return each client's mean loss of a model over all its examples; nothing is drawn.

    The model is the received one, or `model`; parameters are then to be loaded again.
    """
    at = task.start if model is None else task.program.load(model, 1)
    task.program.train(False)
    losses: list[float] = []
    with torch.no_grad():
        for k in range(task.clients):
            sums = []
            for batch in _chunks(task, range(k, k + 1)):
                sums.append(float(task.program.total(at, batch)))
            losses.append(math.fsum(sums) / max(task.num_examples[k], 1))
    return losses


def _chunks(task: LocalTask, group: range) -> list[Batch]:
    """Return all examples of clients of one size in chunks, each scaled by one over n_k."""
    data, n = task.examples, task.examples.sizes[group.start]
    begin, end = int(data.offsets[group.start]), int(data.offsets[group.stop])
    counts = [max(task.num_examples[k], 1) for k in group]
    scale = torch.tensor([1.0 / c for c in counts], device=data.device)
    x = data.x[begin:end].view(len(group), n, *data.x.shape[1:])
    y = data.y[begin:end].view(len(group), n, *data.y.shape[1:])
    return [Batch(x[:, i : i + CHUNK], y[:, i : i + CHUNK], scale) for i in range(0, n, CHUNK)]


def norms(tensors: Tensors) -> list[float]:
    """Return each client's Euclidean norm over all tensors together, summed in float64."""
    squares = [t.double().square().reshape(len(t), -1).sum(1).tolist() for t in tensors]
    return [math.sqrt(math.fsum(of_client)) for of_client in zip(*squares, strict=True)]


def per_client(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    """Return one float64 number per client, [K, 1, ...], ready to scale a tensor [K, ...]."""
    numbers = torch.tensor(values, dtype=torch.float64, device=like.device)
    return numbers.view(-1, *[1] * (like.dim() - 1))
