"""The character LSTM for K clients at once, with the backward pass written out.

cuDNN's LSTM takes one model, and ``torch.func.vmap`` has no rule for it, so that a cohort would train one
client after another: 160 small matrix products in a row for each of them. Here a layer's step in time is one
batched product [K, b, H] x [K, H, 4H] and one fused cell for all clients; what does not wait for the step
before it (the inputs' part of the gates, every gradient of a weight) is one product over all T steps.

Gates are in PyTorch's order i, f, g, o:

    z_t = W_ih x_t + b_ih + W_hh h_{t-1} + b_hh,
    c_t = sigma(f) c_{t-1} + sigma(i) tanh(g),  h_t = sigma(o) tanh(c_t)    (Hochreiter and Schmidhuber 1997)
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn
from torch.func import functional_call

from client_app.training.programs import Batch, Computed, Dense, Tensors
from client_app.training.stacked import Stacked, cross_entropy
from task.models.layer_split import no_last_linear
from task.models.layers import CharLSTM

if TYPE_CHECKING:
    from task.tasks.base import Task


class Recurrent(Stacked):
    """A `CharLSTM` for any number of clients.

    Inside, rows are ordered by time and then by example, [K, T b, ...], for products over all steps, and a
    copy by step, [T, K b, ...], is what the recurrence goes through.
    """

    # A step is 1,300 kernels: an H100's host takes 39 ms to launch those of 125 clients one by one.
    most_in_graph: ClassVar[int | None] = 2**27

    def __init__(self, model: nn.Module, task: Task) -> None:
        super().__init__(model, task)
        self.depth = (len(self.names) - 3) // 4  # the embedding, four of each layer, the output's two

    @classmethod
    def takes(cls, model: nn.Module) -> bool:
        """Return whether the model is a `CharLSTM` with all parameters trainable, on a GPU.

        On a CPU, oneDNN's LSTM of one client after another is faster.
        """
        return (
            type(model) is CharLSTM
            and all(p.requires_grad for p in model.parameters())
            and next(model.parameters()).is_cuda
        )

    def graph_of(self, clients: int) -> int:
        """Return the next power of two: roles end their training one by one, too fast for a graph each."""
        return 1 << (clients - 1).bit_length()

    def logits(self, params: Tensors, x: torch.Tensor) -> torch.Tensor:
        """Return logits [K, b, C, T], differentiable, one client after another."""
        each = (dict(zip(self.names, own, strict=True)) for own in zip(*params, strict=True))
        return torch.stack([functional_call(self.model, own, (x[k],)) for k, own in enumerate(each)])

    def features(self, params: Tensors, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Refuse: there is a linear layer at each position."""
        raise no_last_linear("MOON", self.model)

    def computed(self, params: Tensors, batch: Batch, frozen: Collection[str] = ()) -> Computed:
        """Return losses [K] and the gradient, all of it; no autograd, so `params` need none."""
        with torch.no_grad():
            return self._computed(params, batch)

    def _computed(self, params: Tensors, batch: Batch) -> Computed:
        embedding, *layers, weight, bias = params
        K, b, T = batch.x.shape
        ids = batch.x.transpose(1, 2).reshape(K, T * b)
        clients = torch.arange(K, device=ids.device).unsqueeze(1)
        hidden = embedding[clients, ids]  # [K, T b, 8]
        passes = []
        for i in range(self.depth):
            lstm = _Pass(layers[4 * i : 4 * i + 4], b)
            hidden = lstm.forward(hidden)
            passes.append(lstm)
        logits = torch.baddbmm(bias.unsqueeze(1), hidden, weight.transpose(1, 2))
        y = batch.y.transpose(1, 2).reshape(K, T * b)
        loss, delta = cross_entropy(logits, y, batch.scale, padded=True)
        made = [torch.bmm(delta.transpose(1, 2), hidden), delta.sum(1)]
        delta = torch.bmm(delta, weight)
        for lstm in reversed(passes):
            delta, gradient = lstm.backward(delta)
            made = [*gradient, *made]
        # A product with one-hot rows adds in a fixed order, which `index_add_` on a GPU does not.
        onehot = nn.functional.one_hot(ids, embedding.shape[1]).to(delta.dtype)
        return loss, Dense([torch.bmm(onehot.transpose(1, 2), delta), *made])


class _Pass:
    """One layer's way through a batch, forward and then back."""

    def __init__(self, params: Tensors, rows: int) -> None:
        self.w_ih, self.w_hh, b_ih, b_hh = params
        self.bias, self.rows = b_ih + b_hh, rows  # rows of a client, b
        self.cells: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return h [K, T b, H] of inputs [K, T b, in]."""
        self.x = x
        K, H, b = len(x), self.w_hh.shape[2], self.rows
        gates = torch.baddbmm(self.bias.unsqueeze(1), x, self.w_ih.transpose(1, 2))
        steps = gates.view(K, -1, b, 4 * H).transpose(0, 1).reshape(-1, K * b, 4 * H)
        h = c = x.new_zeros(K * b, H)
        outputs = [h]  # h_0, ..., h_T
        w = self.w_hh.transpose(1, 2)
        for gate in steps:
            before = c
            recurrent = torch.bmm(h.view(K, b, H), w).view(K * b, 4 * H)
            h, c, held = cell(gate, recurrent, c)
            self.cells.append((before, c, held))
            outputs.append(h)
        self.hidden = torch.stack(outputs).view(-1, K, b, H).transpose(0, 1)  # [K, T + 1, b, H]
        return self.hidden[:, 1:].reshape(K, -1, H)

    def backward(self, delta: torch.Tensor) -> tuple[torch.Tensor, Tensors]:
        """Return the loss's derivatives by the inputs, and the gradient, from those by h [K, T b, H]."""
        K, H, b = len(delta), self.w_hh.shape[2], self.rows
        steps = delta.view(K, -1, b, H).transpose(0, 1).contiguous()  # [T, K, b, H]
        later = None  # derivatives by c_t that come from t + 1
        own, gates = steps[-1], []
        for t in range(len(steps) - 1, -1, -1):
            gate, later = cell_backward(own.reshape(K * b, H), later, *self.cells[t])
            gates.append(gate)
            if t:
                own = torch.baddbmm(steps[t - 1], gate.view(K, b, 4 * H), self.w_hh)
        made = torch.stack(gates[::-1]).view(-1, K, b, 4 * H).transpose(0, 1).reshape(K, -1, 4 * H)
        before = self.hidden[:, :-1].reshape(K, -1, H)
        bias = made.sum(1)
        turned = made.transpose(1, 2)
        gradient = [torch.bmm(turned, self.x), torch.bmm(turned, before), bias, bias.clone()]
        return torch.bmm(made, self.w_ih), gradient


def cell(
    gate: torch.Tensor, recurrent: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return h, c and what the way back needs, of the two parts of the gates [N, 4H] and c [N, H]."""
    if gate.is_cuda:
        h, c, held = torch.ops.aten._thnn_fused_lstm_cell(gate, recurrent, c)
        return h, c, held
    i, f, g, o = (gate + recurrent).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * c + i * g
    return o * c.tanh(), c, torch.cat([i, f, g, o], 1)


def cell_backward(
    by_h: torch.Tensor,
    by_c: torch.Tensor | None,
    before: torch.Tensor,
    c: torch.Tensor,
    held: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the derivatives by the gates [N, 4H] and by the cell before, [N, H]."""
    if by_h.is_cuda:
        made, earlier, _ = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(
            by_h, by_c, before, c, held, False
        )
        return made, earlier
    i, f, g, o = held.chunk(4, 1)
    bent = c.tanh()
    total = by_h * o * (1 - bent * bent)
    if by_c is not None:
        total = total + by_c
    made = [total * g * i * (1 - i), total * before * f * (1 - f), total * i * (1 - g * g)]
    return torch.cat([*made, by_h * bent * o * (1 - o)], 1), total * f
