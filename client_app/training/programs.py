"""Models as programs over explicit parameters, with a client axis.

A program computes a batch's loss and gradient for K clients at once, each with parameters of its own: every
tensor has the clients as its leading axis. A solver is therefore written once, for a client that trains alone
(K = 1) and for a cohort that trains as one program. `Single` takes any module; `client_app.training.stacked`
and `client_app.training.recurrent` have those that take several clients.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import nn
from torch.func import functional_call

from task.models.layer_split import linear_calls, no_last_linear
from task.numerics import pages
from task.numerics.arrays import Arrays, NamedArrays, frozen_in, state_of, trainable_names
from task.numerics.tensors import lent_by, load_into
from task.tasks.base import Task, counted
from task.tasks.kinds import CLASSIFICATION

Tensors = list[torch.Tensor]


@dataclass
class Batch:
    """Examples of K clients."""

    x: torch.Tensor  # inputs [K, b, ...]
    y: torch.Tensor  # targets [K, b, ...]; -100 does not count, nor NaN among floats
    scale: torch.Tensor  # factor of each client's summed loss [K]: one over the targets that count
    padded: bool = False  # whether rows were filled up to b, with targets that do not count
    rows: torch.Tensor | None = None  # which of all clients' examples [K, b]; a filled up one is any

    def counting(self) -> torch.Tensor:
        """Return which rows have targets that count, bool [K, b]."""
        return counted(self.y, 2) > 0


class Gradient(Protocol):
    """The gradient of a batch's loss; perhaps factored."""

    def add_to(self, into: Tensors, scale: float) -> None:
        """Add `scale` times the gradient in place."""

    def tensors(self) -> Tensors:
        """Return it as tensors that are parallel to the parameters."""


class Dense(list[torch.Tensor]):
    """A gradient that is there as tensors: a list of them."""

    def add_to(self, into: Tensors, scale: float) -> None:
        """Add `scale` times the gradient in place."""
        torch._foreach_add_(into, self, alpha=scale)

    def tensors(self) -> Tensors:
        """Return the tensors themselves."""
        return self

    values = property(tensors)


@dataclass
class Factored:
    """Gradient of linear layers: per layer the inputs [K, b, in] and the loss's derivatives [K, b, out].

    dW = delta^T h is added to the weights within one matrix product; the update then reads and writes the
    weights once, where a gradient of its own would be written, read and added.
    """

    inputs: Tensors
    deltas: Tensors

    def add_to(self, into: Tensors, scale: float) -> None:
        """Add `scale` times the gradient in place."""
        for i, (h, delta) in enumerate(zip(self.inputs, self.deltas, strict=True)):
            into[2 * i].baddbmm_(delta.transpose(1, 2), h, alpha=scale)
            into[2 * i + 1].add_(delta.sum(1), alpha=scale)

    def tensors(self) -> Tensors:
        """Return it multiplied out."""
        pairs = zip(self.inputs, self.deltas, strict=True)
        return [t for h, delta in pairs for t in (torch.bmm(delta.transpose(1, 2), h), delta.sum(1))]


LossAndGradient = tuple[torch.Tensor, Gradient]
Computed = tuple[torch.Tensor, Dense | Factored]


class Program(ABC):
    """What every program offers.

    Args:
        model: The module; which numbers its own parameters hold is the program's business.
        task: What it is trained for, with the loss.
    """

    stacks: ClassVar[bool]
    """Whether K may exceed 1."""

    def __init__(self, model: nn.Module, task: Task = CLASSIFICATION) -> None:
        self.model = model
        self.task = task
        self.names = trainable_names(model)
        """Names of the parameters, in the model's order."""

    @abstractmethod
    def load(self, received: NamedArrays, clients: int, own: Sequence[NamedArrays] = ()) -> Tensors:
        """Return fresh parameters [K, ...] that hold the whole `received` model.

        `own` is, for each client, what it has instead of received arrays: its personal part.
        """

    @abstractmethod
    def logits(self, params: Tensors, x: torch.Tensor) -> torch.Tensor:
        """Return logits [K, b, C] (text [K, b, C, T]) of inputs [K, b, ...], differentiable."""

    def total(self, params: Tensors, batch: Batch) -> torch.Tensor:
        """Return the sum of one client's losses over a batch without padding, a scalar, differentiable."""
        return self.task.total(self.logits(params, batch.x)[0], batch.y[0])

    @abstractmethod
    def features(self, params: Tensors, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the last layer's inputs [K, b, f] and the logits [K, b, C], differentiable.

        Raises:
            ConfigError: The model does not end with a linear layer.
        """

    @abstractmethod
    def gradient(self, params: Tensors, batch: Batch, frozen: Collection[str] = ()) -> LossAndGradient:
        """Return each client's scaled loss [K], detached, and its gradient; `params` stay as they are.

        The entries of parameters in `frozen` have no meaning.
        """

    def stepped(self, params: Tensors, batch: Batch, lr: float) -> torch.Tensor | None:
        """Take the step of plain SGD, params <- params - lr * gradient; return each client's scaled loss [K].

        None where nothing is gained over `gradient` and what is done with it; then nothing was done.
        """
        return None

    @abstractmethod
    def states(self, params: Tensors) -> list[Arrays]:
        """Return each client's parameters and buffers as arrays."""

    def lent(self, params: Tensors) -> list[Arrays]:
        """Return `states`, perhaps in the memory that they are computed in: the next step may change them.

        The next `load` does not, as long as any of these arrays is in use. What is on a GPU may come as
        `task.numerics.stack.StackRow`.
        """
        return self.states(params)

    def train(self, training: bool) -> None:
        """Choose how layers that have two ways behave (dropout, moving statistics)."""
        self.model.train(training)


def losses_of(task: Task, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return the loss of each example [K, b] of outputs [K, b, ...], differentiable; 0 of what is padding."""
    each = task.each(outputs.flatten(0, 1), batch.y.flatten(0, 1), batch.padded)
    return each.view(batch.y.shape[:2])


def differentiated(loss: torch.Tensor, leaves: Tensors) -> tuple[torch.Tensor, "Dense"]:
    """Return the clients' losses [K], detached, and the gradient of their sum by the `leaves`."""
    return loss.detach(), Dense(gradient_by(loss.sum(), leaves))


def leaves_of(params: Tensors, names: Sequence[str] = (), frozen: Collection[str] = ()) -> Tensors:
    """Return parameters to differentiate by; those of `names` that are `frozen` hold autograd up."""
    still = [name in frozen for name in names] or [False] * len(params)
    return [p.detach().requires_grad_(not holds) for p, holds in zip(params, still, strict=True)]


def gradient_by(loss: torch.Tensor, leaves: Tensors) -> Tensors:
    """Return the gradient, parallel to `leaves`; a frozen one stands for its own."""
    found = iter(torch.autograd.grad(loss, [p for p in leaves if p.requires_grad]))
    return [next(found) if p.requires_grad else p.detach() for p in leaves]


class Single(Program):
    """Any model with its buffers, one client at a time, through autograd.

    `load` returns the model's own parameters, so that the common step calls it as it is. In training, running
    statistics move if the given parameters lie in their memory; at other points, such as w^t, they stay as
    they are, and there are no others to compute with.
    """

    stacks: ClassVar[bool] = False

    def __init__(self, model: nn.Module, task: Task = CLASSIFICATION) -> None:
        super().__init__(model, task)
        self._leaves: Tensors = [p for p in model.parameters() if p.requires_grad]
        self._own = [p.detach().unsqueeze(0) for p in self._leaves]
        self._buffers = dict(model.named_buffers())
        known = all(type(m).__module__.startswith("torch.nn.modules.") for m in model.modules())
        self._in_turn = known and sum(p.nbytes for p in self._leaves) >= pages.LARGE

    def load(self, received: NamedArrays, clients: int, own: Sequence[NamedArrays] = ()) -> Tensors:
        """Return views of the model's own parameters, after loading the received and the personal state."""
        load_into(self.model, {**received, **own[0]} if own else received)
        self._own = [p.detach().unsqueeze(0) for p in self._leaves]  # loading may give it new memory
        if self._in_turn:  # what steps leave free between other things grows from client to client
            pages.trim(always=True)
        return list(self._own)

    def _holds(self, params: Tensors) -> bool:
        """Return whether tensors lie in the memory of the model's own parameters."""
        return all(a.data_ptr() == b.data_ptr() for a, b in zip(params, self._leaves, strict=True))

    def _forward(self, leaves: Tensors, x: torch.Tensor) -> Any:
        tensors = dict(zip(self.names, leaves, strict=True))
        if self._buffers and not self._holds(leaves):
            tensors |= {name: buffer.clone() for name, buffer in self._buffers.items()}
        own = all(a is b for a, b in zip(leaves, self._leaves, strict=True))
        return self.model(x) if own else functional_call(self.model, tensors, (x,))

    def logits(self, params: Tensors, x: torch.Tensor) -> torch.Tensor:
        """Return logits [1, b, ...]; differentiable with respect to `params`."""
        logits: torch.Tensor = self._forward([p[0] for p in params], x[0])
        return logits.unsqueeze(0)

    def total(self, params: Tensors, batch: Batch) -> torch.Tensor:
        """Return the sum of the losses; outputs may be of any form that the loss takes."""
        return self.task.total(self._forward([p[0] for p in params], batch.x[0]), batch.y[0])

    def features(self, params: Tensors, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the last layer's inputs [1, b, f] and the logits, differentiable."""
        with linear_calls(self.model) as calls:
            logits = self._forward([p[0] for p in params], x[0])
        read = next((h for _, h, out in reversed(calls) if out is logits), None)
        if read is None:
            raise no_last_linear("MOON", self.model)
        return read.unsqueeze(0), logits.unsqueeze(0)

    def gradient(self, params: Tensors, batch: Batch, frozen: Collection[str] = ()) -> LossAndGradient:
        """Return loss [1] and gradient."""
        own = not frozen and self._are_own(params)
        leaves = self._leaves if own else leaves_of([p[0] for p in params], self.names, frozen)
        loss = self._loss(leaves, batch)
        return loss.detach().unsqueeze(0), Dense([g.unsqueeze(0) for g in gradient_by(loss, leaves)])

    def stepped(self, params: Tensors, batch: Batch, lr: float) -> torch.Tensor | None:
        """Move each parameter as soon as its gradient is whole, so that few gradients are there at once.

        Every use of a parameter that autograd knows of is then over. Code that is not PyTorch's may use the
        numbers without autograd, so this is for modules of PyTorch's alone. For small ones it does not pay.
        """
        if not (self._in_turn and self._are_own(params)):
            return None

        def step(leaf: torch.Tensor) -> None:
            with torch.no_grad():
                leaf.add_(cast(torch.Tensor, leaf.grad), alpha=-lr)
            leaf.grad = None

        leaves: list[Any] = self._leaves
        handles = [leaf.register_post_accumulate_grad_hook(step) for leaf in leaves]
        try:
            loss = self._loss(self._leaves, batch)
            loss.backward()  # type: ignore[no-untyped-call]
        finally:
            for handle, leaf in zip(handles, leaves, strict=True):
                handle.remove()
                leaf.grad = None  # after an error some are still there
        return loss.detach().unsqueeze(0)

    def _are_own(self, params: Tensors) -> bool:
        """Return whether these are what `load` returned last."""
        return all(a is b for a, b in zip(params, self._own, strict=True))

    def _loss(self, leaves: Tensors, batch: Batch) -> torch.Tensor:
        return self.task.total(self._forward(leaves, batch.x[0]), batch.y[0]) * batch.scale[0]

    def states(self, params: Tensors) -> list[Arrays]:
        """Return the parameters and the model's buffers, copied, without what is frozen."""
        state = state_of(self.model, frozen_in(self.model))
        if not self._holds(params):
            values = zip(self.names, params, strict=True)
            state |= {name: p[0].detach().cpu().numpy().copy() for name, p in values}
        return [state]

    def lent(self, params: Tensors) -> list[Arrays]:
        """Return the parameters and the model's buffers in its memory, where they lie there."""
        here = self._holds(params) and all(p.device.type == "cpu" for p in params)
        return [lent_by(self.model)] if here else self.states(params)
