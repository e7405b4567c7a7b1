"""A step's gradient on a GPU as one CUDA graph.

The gradient of a few clients is about a hundred kernels, each shorter than the time that PyTorch needs to
launch it; a graph launches them all at once. It computes in its own memory, so a step's inputs and outputs
are copied. With many clients that costs more than it saves, and there is no graph. The kernels are the same
with a graph and without, and so are the bits.

Milliseconds of a step at batch 10 on an H200, without a graph and with one: `cnn` of 1, 10, 20, 50 and 100
clients 3.0 : 0.3, 2.7 : 1.2, 3.0 : 2.0, 3.9 : 4.1, 7.6 : 8.1; `2nn` 0.3 : 0.2 up to 50.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from task.text import logger

if TYPE_CHECKING:
    from client_app.training.programs import Batch, Computed, Tensors

    Compute = Callable[[Tensors, Batch], Computed]

PARAMETERS, INPUTS = 2**25, 2**20  # numbers of all clients; with more of either there is no graph
AFTER = 10  # steps of one form come before its graph, which takes about as long to make
KEPT = 8  # graphs of a model

_LOCK = threading.Lock()  # all threads compute on one stream, in the order in which they ask for it


class _Graph:
    """The gradient of batches of one form, for a number of clients or fewer."""

    def __init__(self, compute: Compute, params: Tensors, batch: Batch, clients: int, pool: Any) -> None:
        # Zeros: places without a client are computed, too.
        self.params = [p.new_zeros(clients, *p.shape[1:]) for p in params]
        x, y, scale = (t.new_zeros(clients, *t.shape[1:]) for t in (batch.x, batch.y, batch.scale))
        self.batch = replace(batch, x=x, y=y, scale=scale, rows=None)
        self.graph = torch.cuda.CUDAGraph()
        # Other threads may use the GPU in the meantime.
        with torch.cuda.graph(self.graph, pool, capture_error_mode="thread_local"):
            self.loss, self.gradient = compute(self.params, self.batch)

    def run(self, params: Tensors, batch: Batch) -> Computed:
        """Return a batch's loss and gradient, which later runs leave alone."""
        k = len(batch.x)
        with torch.no_grad():
            into = [*self.params, self.batch.x, self.batch.scale]
            torch._foreach_copy_([t[:k] for t in into], [*params, batch.x, batch.scale])
            self.batch.y[:k].copy_(batch.y)
            self.graph.replay()
            loss, made = self.loss[:k].clone(), self.gradient
            if isinstance(made, list):
                return loss, type(made)([t[:k].clone() for t in made])
            held = {f.name: getattr(made, f.name) for f in fields(made)}
            copies: Any = {name: [t[:k].clone() for t in tensors] for name, tensors in held.items()}
            return loss, replace(made, **copies)


class Graphs:
    """The graphs of one model in this process, those last used."""

    def __init__(self) -> None:
        self._seen: Counter[Hashable] = Counter()
        self._kept: dict[Hashable, _Graph | None] = {}  # None: it could not be made
        self._pool: Any = None  # memory that the graphs share: nothing in it outlasts a run

    def gradient(
        self,
        compute: Compute,
        params: Tensors,
        batch: Batch,
        form: Hashable,
        clients: int,
        most: int | None = None,
    ) -> Computed:
        """Return what `compute` returns for K clients, with a graph once the form is a usual one.

        `form` is what the computation depends on in addition to the shapes of its arguments; a graph is for
        `clients`, which may be more than there are, and for at most so many parameters of all of them.
        """
        x, y = batch.x, batch.y
        long = (
            sum(p[0].numel() for p in params) * clients > (most or PARAMETERS)
            or x[0].numel() * clients > INPUTS
        )
        if long or not all(p.is_contiguous() for p in params):
            return compute(params, batch)
        key = form, clients, x.shape[1:], x.dtype, y.shape[1:], y.dtype, batch.padded
        with _LOCK:
            if key not in self._kept:
                self._seen[key] += 1
                if self._seen[key] <= AFTER:
                    return compute(params, batch)
                self._add(key, compute, params, batch, clients)
            graph = self._kept[key] = self._kept.pop(key)  # now the last one
            return graph.run(params, batch) if graph else compute(params, batch)

    def _add(self, key: Hashable, compute: Compute, params: Tensors, batch: Batch, clients: int) -> None:
        self._seen.clear()
        while len(self._kept) >= KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = None
        try:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            self._kept[key] = _Graph(compute, params, batch, clients, self._pool)
        except RuntimeError as err:  # for lack of memory, for example: only speed is affected
            logger.warning("a step could not be recorded as a CUDA graph, which is slower: %s", err)


_OF: WeakKeyDictionary[nn.Module, Graphs] = WeakKeyDictionary()


def graphs_of(model: nn.Module) -> Graphs:
    """Return the graphs of a model, which are gone when it is."""
    return _OF.setdefault(model, Graphs())
