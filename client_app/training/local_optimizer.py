"""What a local step makes of a batch's gradient, for K clients at once and in place.

The state (velocity, moments) is fresh in each `client_app.training.loop.train`, so in each round, and in each
phase of a round that has several: nothing of it is kept or sent. All clients of a cohort have taken the same
number of steps, so that one bias correction serves them all; those that are done are cut off the end.

No object of ``torch.optim`` is used, since its first use imports torch._dynamo (see the loop). Each class is
``torch.optim``'s of the same keys, without AMSGrad, dampening and maximisation, on parameters [K, ...]:
elementwise, so that what a client computes does not depend on K. A user's own optimizer is an object of
``torch.optim``, sees one client's parameters in the model's shapes, and trains it alone.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch

from client_app.training.programs import Tensors
from task.config.algorithm_sections import AdamConfig
from task.config.sections import TrainConfig
from task.errors import ConfigError
from task.references import is_reference, load_reference

if TYPE_CHECKING:  # importing it is what costs
    from torch.optim import Optimizer


class LocalOptimizer(Protocol):
    """A rule of local steps with its state."""

    def step(self, params: Tensors, grads: Tensors, lr: float) -> None:
        """Take one step of rate `lr` in place; `grads` may be overwritten."""

    def cut(self, clients: int) -> None:
        """Go on with the first clients only."""


def local_optimizer(train: TrainConfig, adam: AdamConfig, params: Tensors) -> LocalOptimizer | None:
    """Return the optimizer of a run with fresh state; None = plain SGD, which the loop has itself."""
    if is_reference(train.optimizer):
        return OwnOptimizer(own_optimizer(train.optimizer))
    if train.optimizer != "sgd":
        return Adam(adam, train.weight_decay, decoupled=train.optimizer == "adamw", params=params)
    if train.momentum or train.clip_norm:
        return SGD(train, params)
    return None


class SGD:
    """``torch.optim.SGD``: v <- rho v + g + lambda w;  w <- w - eta v, or with Nesterov's form more."""

    def __init__(self, train: TrainConfig, params: Tensors) -> None:
        self.momentum, self.weight_decay = train.momentum, train.weight_decay
        self.nesterov = bool(self.momentum) and train.nesterov
        self.velocity = [torch.zeros_like(p) for p in params] if train.momentum else []

    def step(self, params: Tensors, grads: Tensors, lr: float) -> None:
        """Take one step."""
        if self.weight_decay:
            torch._foreach_add_(grads, params, alpha=self.weight_decay)
        direction = grads
        if self.velocity:
            torch._foreach_mul_(self.velocity, self.momentum)
            torch._foreach_add_(self.velocity, grads)
            if self.nesterov:  # g + rho v
                torch._foreach_add_(grads, self.velocity, alpha=self.momentum)
            else:
                direction = self.velocity
        torch._foreach_add_(params, direction, alpha=-lr)

    def cut(self, clients: int) -> None:
        """Go on with the first clients only."""
        self.velocity = [v[:clients] for v in self.velocity]


class Adam:
    """``torch.optim.Adam`` (Kingma and Ba 2015) and ``AdamW`` (Loshchilov and Hutter 2019).

    m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;  in step s, with c_i = 1 - b_i^s,
    w <- w - (eta / c_1) m / (sqrt(v / c_2) + eps).  The decay lambda w is part of g, or `decoupled`: then
    w <- (1 - eta lambda) w comes first.
    """

    def __init__(self, config: AdamConfig, weight_decay: float, *, decoupled: bool, params: Tensors) -> None:
        self.config, self.weight_decay, self.decoupled = config, weight_decay, decoupled
        self.first = [torch.zeros_like(p) for p in params]
        self.second = [torch.zeros_like(p) for p in params]
        self.steps = 0

    def step(self, params: Tensors, grads: Tensors, lr: float) -> None:
        """Take one step."""
        beta1, beta2 = self.config.beta1, self.config.beta2
        self.steps += 1
        if self.weight_decay and self.decoupled:
            torch._foreach_mul_(params, 1.0 - lr * self.weight_decay)
        elif self.weight_decay:
            torch._foreach_add_(grads, params, alpha=self.weight_decay)
        torch._foreach_mul_(self.first, beta1)
        torch._foreach_add_(self.first, grads, alpha=1.0 - beta1)
        torch._foreach_mul_(grads, grads)
        torch._foreach_mul_(self.second, beta2)
        torch._foreach_add_(self.second, grads, alpha=1.0 - beta2)
        below = torch._foreach_sqrt(self.second)
        torch._foreach_div_(below, math.sqrt(1.0 - beta2**self.steps))
        torch._foreach_add_(below, self.config.epsilon)
        torch._foreach_addcdiv_(params, self.first, below, value=-lr / (1.0 - beta1**self.steps))

    def cut(self, clients: int) -> None:
        """Go on with the first clients only."""
        self.first, self.second = [m[:clients] for m in self.first], [v[:clients] for v in self.second]


class OwnOptimizer:
    """A user's optimizer of ``torch.optim``'s kind, for one client; its rate is eta_t in every group."""

    def __init__(self, make: Callable[..., Optimizer]) -> None:
        self.make = make
        self.made: Optimizer | None = None

    def step(self, params: Tensors, grads: Tensors, lr: float) -> None:
        """Take one step.

        Raises:
            ConfigError: It cannot be made, or its steps need more than a gradient.
        """
        if self.made is None:
            self.leaves = [p[0].detach() for p in params]
            self.made = self._made(lr)
        for leaf, grad in zip(self.leaves, grads, strict=True):
            leaf.grad = grad[0]
        try:
            self.made.step()
        except TypeError as err:  # a closure that evaluates the loss again
            raise _refused(f"an optimizer whose step() takes no argument; got {err}") from err

    def _made(self, lr: float) -> Optimizer:
        from torch.optim import Optimizer

        try:
            made = self.make(self.leaves, lr=lr)
        except Exception as err:  # whatever the user's code raises
            raise _refused(f"it to make an optimizer of (params, lr={lr:g}); got {err!r}") from err
        if not isinstance(made, Optimizer):
            raise _refused(f"it to make a torch.optim.Optimizer; got {type(made).__name__}")
        return made

    def cut(self, clients: int) -> None:
        """Do nothing: it has one client."""


def own_optimizer(reference: str) -> Callable[..., Optimizer]:
    """Return what makes a user's optimizer from the parameters and ``lr``.

    Raises:
        ConfigError: There is none, or it cannot be called so.
    """
    make = load_reference("optimizer", reference)
    if not callable(make):
        raise _refused(f"a callable (params, lr) -> torch.optim.Optimizer; got {type(make).__name__}")
    try:
        inspect.signature(make).bind([], lr=0.1)
    except TypeError as err:
        raise _refused(f"a callable (params, lr) -> torch.optim.Optimizer; got {reference}: {err}") from err
    except ValueError:  # no signature to look at
        pass
    found: Callable[..., Optimizer] = make
    return found


def check_optimizer(reference: str) -> None:
    """Take a step with a user's optimizer, so that what cannot train is refused before round 1.

    Raises:
        ConfigError: It cannot be made, or cannot take a step.
    """
    grads = [torch.ones(1, 2, 2)]
    OwnOptimizer(own_optimizer(reference)).step([torch.zeros(1, 2, 2)], grads, 0.1)


def _refused(expected_and_got: str) -> ConfigError:
    return ConfigError(f'run-config key "optimizer": expected {expected_and_got}')


def norms_of(grads: Tensors) -> torch.Tensor:
    """Return each client's norm over all its tensors together, [K].

    A sum over a client's slice alone is the same in any cohort; one over an axis of [K, ...] is not,
    in its last bits.
    """
    clients = len(grads[0])
    each = torch._foreach_norm([g[k] for k in range(clients) for g in grads])
    norms: torch.Tensor = torch.linalg.vector_norm(torch.stack(each).view(clients, -1), dim=1)
    return norms


def clip(grads: Tensors, most: float) -> None:
    """Scale each client's gradient, in place, to a norm of at most `most` over all its tensors together.

    As ``torch.nn.utils.clip_grad_norm_`` does for one client.
    """
    factors = (most / (norms_of(grads) + 1e-6)).clamp(max=1.0)
    for g in grads:
        g.mul_(factors.view(-1, *[1] * (g.dim() - 1)))
