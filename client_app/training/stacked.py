"""Programs that take several clients: chains of known layers."""

from collections.abc import Collection, Sequence
from typing import ClassVar, cast

import torch
from torch import nn

from client_app.training.convolution import convolve
from client_app.training.graphs import graphs_of
from client_app.training.programs import (
    Batch,
    Computed,
    Factored,
    LossAndGradient,
    Program,
    Tensors,
    differentiated,
    leaves_of,
    losses_of,
)
from task.models.layer_split import last_linear
from task.models.layers import Conv2d
from task.numerics.arrays import Arrays, NamedArrays
from task.numerics.stack import rows_of
from task.tasks.base import Task
from task.tasks.kinds import CLASSIFICATION


class Stacked(Program):
    """A program with parameters [K, ...] of its own, on a GPU with graphs where these are faster."""

    stacks: ClassVar[bool] = True
    most_in_graph: ClassVar[int | None] = None
    """Parameters of all clients beyond which there is no graph; None = as the graphs have it."""

    def __init__(self, model: nn.Module, task: Task = CLASSIFICATION) -> None:
        super().__init__(model, task)
        self.device = next(model.parameters()).device

    def load(self, received: NamedArrays, clients: int, own: Sequence[NamedArrays] = ()) -> Tensors:
        """Return K copies of the received parameters, with each client's personal ones in their place."""
        params = []
        for name in self.names:
            t = torch.from_numpy(received[name])
            if any(name in personal for personal in own):  # put together here, for one copy to the device
                t = t.expand(clients, *t.shape).clone()
                for k, personal in enumerate(own):
                    if name in personal:
                        t[k].copy_(torch.from_numpy(personal[name]))
                params.append(t.to(self.device))
            else:
                params.append(t.to(self.device).expand(clients, *t.shape).clone())
        return params

    def gradient(self, params: Tensors, batch: Batch, frozen: Collection[str] = ()) -> LossAndGradient:
        """Return losses [K] and gradient; on a GPU as a graph, where that is faster."""
        if self.device.type != "cuda" or not self.task.plain:
            return self.computed(params, batch, frozen)

        def compute(params: Tensors, batch: Batch) -> Computed:
            return self.computed(params, batch, frozen)

        form, clients = (type(self), frozenset(frozen)), self.graph_of(len(batch.x))
        return graphs_of(self.model).gradient(compute, params, batch, form, clients, self.most_in_graph)

    def graph_of(self, clients: int) -> int:
        """Return for how many clients the graph is that computes this number of them."""
        return clients

    def computed(self, params: Tensors, batch: Batch, frozen: Collection[str] = ()) -> Computed:
        """Return losses [K] and gradient, kernel after kernel."""
        leaves = leaves_of(params, self.names, frozen)
        each = losses_of(self.task, self.logits(leaves, batch.x), batch)
        return differentiated(each.sum(1) * batch.scale, leaves)

    def states(self, params: Tensors) -> list[Arrays]:
        """Return views of each client's slice."""
        whole = [p.cpu().numpy() for p in params]
        return [dict(zip(self.names, (a[k] for a in whole), strict=True)) for k in range(len(whole[0]))]

    def lent(self, params: Tensors) -> list[Arrays]:
        """Return `states`; of several clients on a GPU as rows, which a sum adds up there."""
        if self.device.type == "cpu" or len(params[0]) == 1:
            return self.states(params)
        return cast(list[Arrays], rows_of(dict(zip(self.names, params, strict=True))))


class Layers(Stacked):
    """An ``nn.Sequential`` of `LAYERS`, for any number of clients, through autograd.

    Pictures travel as [K, channels, b, height, width], as `convolve` takes them.
    """

    LAYERS = (nn.Conv2d, Conv2d, nn.Flatten, nn.Linear, nn.MaxPool2d, nn.ReLU)

    def __init__(self, model: nn.Module, task: Task = CLASSIFICATION) -> None:
        super().__init__(model, task)
        self.layers = list(model.children())

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
            loss, delta = cross_entropy(logits, batch.y, batch.scale, padded=batch.padded)
            deltas = [delta]
            for W, h in zip(reversed(weights[1:]), reversed(inputs[1:]), strict=True):
                delta = torch.bmm(delta, W).mul_(h.sign())  # ReLU': 0 or 1, as h >= 0
                deltas.append(delta)
            return loss, Factored(inputs, deltas[::-1])


def cross_entropy(
    logits: torch.Tensor, y: torch.Tensor, scale: torch.Tensor, *, padded: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each client's scaled loss [K] and its derivatives by the logits [K, n, C], of targets [K, n].

    `padded` says that some targets may be -100 and not count. Gradients are not recorded.
    """
    # l = -log p_y;  dl/dz = p - onehot(y)
    log_p = torch.log_softmax(logits, 2)
    y = y.unsqueeze(2)
    scale = scale.view(-1, 1, 1)
    if padded:
        scale = scale * (y >= 0)
        y = y.clamp(min=0)
    loss = (log_p.gather(2, y) * scale).sum((1, 2)).neg_()
    delta = log_p.exp_().scatter_add_(2, y, -torch.ones_like(y, dtype=log_p.dtype)).mul_(scale)
    return loss, delta
