"""Steps in a restricted space: structured updates, Konečný et al. 2016, arXiv 1610.05492, section 2.

A layer's update is a matrix H = W - w^t in R^(d1 x d2), with d1 inputs (of a convolution inputs x height x
width) and d2 outputs; PyTorch's layout, [outputs, inputs, ...], is H^T. Vectors, such as biases, are free.
The paper's "mode", here ``structured.keep``, is the share of a matrix's numbers that travels, for both kinds.

=========  ===================================================  ==============================================
kind       H                                                    a step along the batch gradient G
=========  ===================================================  ==============================================
mask       0 outside a random mask M of k = keep d1 d2 entries  W <- W - eta M * G
low-rank   A B, A [d1, r] random and fixed, r = keep d1,        B <- B - eta A^T G, as dF/dB = A^T dF/dW,
           B [r, d2] trained from 0                             so W <- W - eta A A^T G
=========  ===================================================  ==============================================

So SGD on B, with momentum too, is SGD on W whose gradients pass through A A^T, and so does every linear
term, such as FedProx's. Weight decay is one of them, and part of what ``clip-norm`` bounds. Other optimizers
are not linear and are refused. A's entries are fair signs over the root of d1: E[A A^T] = keep I = E[M], and
both kinds take steps of one expected length.

The gradient of linear layers is a product h^T delta; A A^T h^T delta needs A A^T h^T only, which is cheap. Of
any other, the product costs 4 d1 r d2 operations a step.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch

from client_app.training.loop import Terms
from client_app.training.programs import Dense, Factored, Gradient, Tensors
from task.codecs.structured import count, factor, positions, rank


class Restriction(ABC):
    """The restriction of K clients' gradients in each step.

    `names` and `params` [K, ...] are those of a program, and `seeds` has the seed of each client.
    """

    def __init__(self, names: Sequence[str], params: Tensors, seeds: Sequence[int], keep: float) -> None:
        self.keep = keep
        found = [self.draw(seeds, name, p.shape[1:]) for name, p in zip(names, params, strict=True)]
        self.drawn = [t if t is None else t.to(p) for t, p in zip(found, params, strict=True)]

    @abstractmethod
    def draw(self, seeds: Sequence[int], name: str, shape: Sequence[int]) -> torch.Tensor | None:
        """Return what is drawn for a tensor of each client, [K, ...]; None if it is trained whole."""

    @abstractmethod
    def within(self, gradient: Gradient, terms: Terms) -> Gradient:
        """Return the restricted sum of a batch's gradient and linear terms, of the clients that still train.

        The tensors of `gradient` may be overwritten.
        """


class Masked(Restriction):
    """Steps under each client's own random mask, `keep` of each matrix."""

    def draw(self, seeds: Sequence[int], name: str, shape: Sequence[int]) -> torch.Tensor | None:
        """Return the masks [K, ...] of ones and zeros."""
        if count(shape, self.keep) == math.prod(shape):
            return None
        masks = torch.zeros(len(seeds), *shape)
        for mask, seed in zip(masks, seeds, strict=True):
            mask.view(-1)[torch.from_numpy(positions(seed, name, shape, self.keep))] = 1.0
        return masks

    def within(self, gradient: Gradient, terms: Terms) -> Gradient:
        """Return it with zeros outside the masks."""
        values = _summed(gradient, terms)
        for value, mask in zip(values, self.drawn, strict=True):
            if mask is not None:
                value.mul_(mask[: len(value)])
        return Dense(values)


class LowRank(Restriction):
    """Steps in the range of each client's own random A, of `keep` of each matrix's inputs."""

    def draw(self, seeds: Sequence[int], name: str, shape: Sequence[int]) -> torch.Tensor | None:
        """Return the factors A [K, d1, r]."""
        if not rank(shape, self.keep):
            return None
        return torch.stack([torch.from_numpy(factor(seed, name, shape, self.keep)) for seed in seeds])

    def within(self, gradient: Gradient, terms: Terms) -> Gradient:
        """Return it with each matrix's rows projected by A A^T."""
        if isinstance(gradient, Factored) and not terms:
            layers = zip(gradient.inputs, self.drawn[::2], strict=True)
            return Factored([h if a is None else _projected(h, a) for h, a in layers], gradient.deltas)
        values = _summed(gradient, terms)
        for i, (value, a) in enumerate(zip(values, self.drawn, strict=True)):
            if a is not None:
                values[i] = _projected(value.flatten(2), a).view_as(value)
        return Dense(values)


RESTRICTIONS: Mapping[str, type[Restriction]] = {"low-rank": LowRank, "mask": Masked}


def _projected(rows: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """Return rows [K, n, d1] times A A^T, of the first K clients' A [.., d1, r]."""
    a = a[: len(rows)]
    return torch.bmm(torch.bmm(rows, a), a.transpose(1, 2))


def _summed(gradient: Gradient, terms: Terms) -> Tensors:
    values = gradient.tensors()
    for scale, tensors in terms:
        torch._foreach_add_(values, tensors, alpha=scale)
    return values
