"""Models as programs over explicit parameters, with a client axis.

A program computes a batch's loss and gradient for K clients at once, each with parameters of its own: every
tensor has the clients as its leading axis. A solver is therefore written once, for a client that trains alone
(K = 1) and for a cohort that trains as one program. `Single` takes any module, `Layers` and the faster
`Perceptron` take chains of known layers.

On one CPU thread a perceptron's client gets the same bytes whatever K is and whichever clients are in the
stack; a test holds it to that. It needs hidden layers of a multiple of `ALIGNED` units: otherwise each client
but the first is at an address for which MKL's kernels round differently, so these train one by one.
"""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from client_app.training.convolution import convolve
from client_app.training.graphs import graphs_of
from task.models.layer_split import last_linear, linear_calls, no_last_linear
from task.models.layers import Conv2d
from task.numerics.arrays import Arrays, NamedArrays, state_of, trainable_names
from task.tasks.base import Task, counted
from task.tasks.kinds import CLASSIFICATION

Tensors = list[torch.Tensor]
# Arrays that lie in a model's memory and were handed out, by model.
_LENT: WeakKeyDictionary[nn.Module, list[weakref.ref[np.ndarray]]] = WeakKeyDictionary()


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

    @abstractmethod
    def states(self, params: Tensors) -> list[Arrays]:
        """Return each client's parameters and buffers as arrays."""

    def lent(self, params: Tensors) -> list[Arrays]:
        """Return `states`, perhaps in the memory that they are computed in: the next step may change them.

        The next `load` does not, as long as any of these arrays is in use.
        """
        return self.states(params)

    def train(self, training: bool) -> None:
        """Choose how layers that have two ways behave (dropout, moving statistics)."""
        self.model.train(training)


def _leaves(names: Sequence[str], params: Tensors, frozen: Collection[str]) -> Tensors:
    """Return parameters to differentiate by; those that are frozen hold autograd up."""
    return [p.detach().requires_grad_(n not in frozen) for n, p in zip(names, params, strict=True)]


def _grad(loss: torch.Tensor, leaves: Tensors) -> Tensors:
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

    def load(self, received: NamedArrays, clients: int, own: Sequence[NamedArrays] = ()) -> Tensors:
        """Return views of the model's own parameters, after loading the received and the personal state."""
        state = {**received, **own[0]} if own else received
        if any(array() is not None for array in _LENT.pop(self.model, ())):
            for tensor in (*self.model.parameters(), *self.model.buffers()):
                tensor.data = torch.empty_like(tensor)
        self._own = [p.detach().unsqueeze(0) for p in self._leaves]
        with torch.no_grad():
            for name, tensor in self.model.state_dict().items():
                tensor.copy_(torch.from_numpy(state[name]))
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
        own = not frozen and all(a is b for a, b in zip(params, self._own, strict=True))
        leaves = self._leaves if own else _leaves(self.names, [p[0] for p in params], frozen)
        loss = self.task.total(self._forward(leaves, batch.x[0]), batch.y[0])
        loss = loss * batch.scale[0]
        return loss.detach().unsqueeze(0), Dense([g.unsqueeze(0) for g in _grad(loss, leaves)])

    def states(self, params: Tensors) -> list[Arrays]:
        """Return the parameters and the model's buffers, copied."""
        state = state_of(self.model)
        if not self._holds(params):
            values = zip(self.names, params, strict=True)
            state |= {name: p[0].detach().cpu().numpy().copy() for name, p in values}
        return [state]

    def lent(self, params: Tensors) -> list[Arrays]:
        """Return the parameters and the model's buffers in its memory, where they lie there."""
        if not self._holds(params) or any(t.device.type != "cpu" for t in params):
            return self.states(params)
        state = {name: t.detach().numpy() for name, t in self.model.state_dict().items()}
        _LENT.setdefault(self.model, []).extend(weakref.ref(a) for a in state.values())
        return [state]


class Layers(Program):
    """An ``nn.Sequential`` of `LAYERS`, for any number of clients, through autograd.

    Pictures travel as [K, channels, b, height, width], as `convolve` takes them.
    """

    stacks: ClassVar[bool] = True
    LAYERS = (nn.Conv2d, Conv2d, nn.Flatten, nn.Linear, nn.MaxPool2d, nn.ReLU)

    def __init__(self, model: nn.Sequential, task: Task = CLASSIFICATION) -> None:
        super().__init__(model, task)
        self.layers = list(model)
        self.device = next(model.parameters()).device

    @classmethod
    def takes(cls, model: nn.Module) -> bool:
        """Return whether the model is made of known layers, with all parameters trainable."""
        if type(model) is not nn.Sequential or not all(p.requires_grad for p in model.parameters()):
            return False
        plain = all(type(m) in cls.LAYERS for m in model) and next(iter(model.parameters()), None) is not None
        weighted = [m for m in model if isinstance(m, nn.Linear | nn.Conv2d)]
        # in this order: what PyTorch's older weight_norm leaves is none of it
        named = [
            [name for name, _ in m.named_parameters(recurse=False)] == ["weight", "bias"] for m in weighted
        ]
        ungrouped = [m.groups == 1 and m.padding_mode == "zeros" for m in model if isinstance(m, nn.Conv2d)]
        flat = [m.start_dim == 1 and m.end_dim == -1 for m in model if isinstance(m, nn.Flatten)]
        unhooked = [not any(held for name, held in vars(m).items() if name.endswith("_hooks")) for m in model]
        # PyTorch applies a linear layer to the last dimension, and `_through` to all of them together.
        kinds = [type(m) for m in model]
        flattened = [nn.Flatten in kinds[:i] for i, kind in enumerate(kinds) if kind is nn.Linear]
        return plain and all(named + ungrouped + flat + unhooked + flattened)

    def load(self, received: NamedArrays, clients: int, own: Sequence[NamedArrays] = ()) -> Tensors:
        """Return K copies of the received parameters, with each client's personal ones in their place."""
        given = (torch.from_numpy(received[name]).to(self.device) for name in self.names)
        params = [t.expand(clients, *t.shape).clone() for t in given]
        for k, personal in enumerate(own):
            for name, p in zip(self.names, params, strict=True):
                if name in personal:
                    p[k].copy_(torch.from_numpy(personal[name]))
        return params

    def logits(self, params: Tensors, x: torch.Tensor) -> torch.Tensor:
        """Return logits [K, b, C]."""
        return self._through(self.layers, params, x)

    def features(self, params: Tensors, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the last layer's inputs [K, b, f] and the logits [K, b, C]."""
        last_linear(self.model, "MOON")
        *body, weight, bias = params
        z = self._through(self.layers[:-1], body, x)
        return z, torch.baddbmm(bias.unsqueeze(1), z, weight.transpose(1, 2))

    @staticmethod
    def _through(layers: Sequence[nn.Module], params: Tensors, x: torch.Tensor) -> torch.Tensor:
        K, b = x.shape[:2]
        rest = iter(params)
        flat = x.dim() == 3
        h = x if flat else x.transpose(1, 2)
        for layer in layers:
            match layer:
                case nn.Linear():
                    weight, bias = next(rest), next(rest)
                    h = torch.baddbmm(bias.unsqueeze(1), h, weight.transpose(1, 2))
                case nn.Conv2d():
                    h = convolve(h, next(rest), next(rest), layer)
                case nn.Flatten():
                    h = h if flat else h.transpose(1, 2).reshape(K, b, -1)
                    flat = True
                case nn.MaxPool2d():
                    h = layer(h.flatten(0, 1)).unflatten(0, h.shape[:2])
                case _:
                    h = layer(h)
        return h

    def gradient(self, params: Tensors, batch: Batch, frozen: Collection[str] = ()) -> LossAndGradient:
        """Return losses [K] and gradient; on a GPU as a graph, where that is faster."""
        if self.device.type != "cuda" or not self.task.plain:
            return self.computed(params, batch, frozen)

        def compute(params: Tensors, batch: Batch) -> Computed:
            return self.computed(params, batch, frozen)

        return graphs_of(self.model).gradient(compute, params, batch, (type(self), frozenset(frozen)))

    def computed(self, params: Tensors, batch: Batch, frozen: Collection[str] = ()) -> Computed:
        """Return losses [K] and gradient, kernel after kernel."""
        leaves = _leaves(self.names, params, frozen)
        logits = self.logits(leaves, batch.x)
        each = self.task.each(logits.flatten(0, 1), batch.y.flatten(0, 1), batch.padded)
        loss = each.view(batch.y.shape[:2]).sum(1) * batch.scale
        return loss.detach(), Dense(_grad(loss.sum(), leaves))

    def states(self, params: Tensors) -> list[Arrays]:
        """Return views of each client's slice."""
        whole = [p.cpu().numpy() for p in params]
        return [dict(zip(self.names, (a[k] for a in whole), strict=True)) for k in range(len(whole[0]))]


class Perceptron(Layers):
    """Linear layers with ReLU between them, for any number of clients, with the backward pass written out.

    That of another loss than cross-entropy is autograd's.
    """

    @classmethod
    def takes(cls, model: nn.Module) -> bool:
        """Return whether the model is Flatten, then Linear and ReLU in turns, then Linear."""
        if not super().takes(model) or not isinstance(model, nn.Sequential):
            return False
        kinds = [type(m) for m in model]
        hidden = (len(kinds) - 2) // 2
        return kinds == [nn.Flatten, *[nn.Linear, nn.ReLU] * hidden, nn.Linear]

    def computed(self, params: Tensors, batch: Batch, frozen: Collection[str] = ()) -> Computed:
        """Return losses [K] and the factored gradient, all of it; no autograd, so `params` need none."""
        if not self.task.plain:
            return super().computed(params, batch, frozen)
        with torch.no_grad():
            weights, biases = params[::2], params[1::2]
            inputs = [batch.x.flatten(2)]
            for W, b in zip(weights[:-1], biases[:-1], strict=True):
                inputs.append(torch.baddbmm(b.unsqueeze(1), inputs[-1], W.transpose(1, 2)).relu_())
            logits = torch.baddbmm(biases[-1].unsqueeze(1), inputs[-1], weights[-1].transpose(1, 2))
            # l = -log p_y;  dl/dz = p - onehot(y)
            log_p = torch.log_softmax(logits, 2)
            y = batch.y.unsqueeze(2)
            scale = batch.scale.view(-1, 1, 1)
            if batch.padded:
                scale = scale * (y >= 0)
                y = y.clamp(min=0)
            loss = (log_p.gather(2, y) * scale).sum((1, 2)).neg_()
            delta = log_p.exp_().scatter_add_(2, y, -torch.ones_like(y, dtype=log_p.dtype)).mul_(scale)
            deltas = [delta]
            for W, h in zip(reversed(weights[1:]), reversed(inputs[1:]), strict=True):
                delta = torch.bmm(delta, W).mul_(h.sign())  # ReLU': 0 or 1, as h >= 0
                deltas.append(delta)
            return loss, Factored(inputs, deltas[::-1])


# The best number of clients on one CPU thread: a perceptron's step gains until its weights leave the cache; a
# convolutions of several clients take longer there than one client after another (``make bench``, "stack").
STACK_CPU = {Perceptron: 8, Layers: 1}
STACK_GPU = 128
ALIGNED = 4  # numbers of 4 bytes in 16


def program_of(model: nn.Module, stack: int, task: Task = CLASSIFICATION) -> tuple[Program, int]:
    """Return the program for a model and the most clients that it should take at once.

    A `Single` program trains this very instance. `stack` is the run-config key: 0 = automatic, 1 = one
    client after another through autograd. Other losses than cross-entropy are taken so, too: their last bits
    would depend on how many clients are in the stack, and so on the nodes.
    """
    kind = next((p for p in (Perceptron, Layers) if p.takes(model)), None)
    if kind is None or not isinstance(model, nn.Sequential) or not task.plain:
        return Single(model, task), 1
    on_gpu = next(model.parameters()).device.type == "cuda"
    size = stack or (STACK_GPU if on_gpu else STACK_CPU[kind])
    hidden = [m.out_features for m in model if isinstance(m, nn.Linear)][:-1]
    if kind is Perceptron and size > 1 and not on_gpu and any(units % ALIGNED for units in hidden):
        return kind(model, task), 1
    return (kind(model, task), size) if size > 1 else (Single(model, task), 1)
