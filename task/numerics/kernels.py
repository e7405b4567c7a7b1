"""Digest of this process's kernels, by the bits of sample computations, to compare machines before a run.

`task.portable` sets the kernels; whether they are the same on an unlike machine, only their results show.
A library of another version, or one that chooses by the size of a cache, is found here. It is a sample of
what runs compute, not a proof.
"""

import hashlib
from functools import cache

import numpy as np
import torch
from torch.nn import functional

from task import portable
from task.errors import ConfigError


def check_kernels() -> None:
    """Refuse to compute a portable run in this process unless its kernels are the portable ones.

    Raises:
        ConfigError: They are not, with what to do.
    """
    portable.check_in_force()
    if (found := torch.backends.cpu.get_cpu_capability()) != "AVX2":
        raise ConfigError(
            f'run-config key "portable": expected torch with AVX2 kernels; got {found}: this build of torch, '
            "or this processor, has no such"
        )


@cache
def kernels() -> str:
    """Return class and SHA-256 of what the portable kernels compute here: equal on machines that may mix.

    Raises:
        ConfigError: As `check_kernels`.
    """
    check_kernels()
    digest = hashlib.sha256()
    for result in (*_numpy(), *(t.detach().numpy() for t in _torch())):
        digest.update(np.ascontiguousarray(result).tobytes())
    return f"{portable.CLASS} {digest.hexdigest()}"


def _values(*shape: int) -> np.ndarray:
    """Return numbers from -0.5 to 0.5 that every processor makes alike, float64."""
    n = int(np.prod(shape))
    return ((np.arange(n, dtype=np.int64) * 7919 + n) % 10007 / 10007 - 0.5).reshape(shape)


def _numpy() -> list[np.ndarray]:
    a, b = _values(50, 300), _values(300, 40)
    single = a.astype(np.float32)
    return [
        *(f(x) for f in (np.exp, np.tanh, np.sin) for x in (a, single)),
        np.log(a + 1), np.linalg.norm(a), a.sum(0), single.sum(1),
        a @ b, single @ b.astype(np.float32), np.linalg.svd(a[:20, :20])[1],
        np.random.default_rng(1).standard_normal(99),
    ]  # fmt: skip


def _torch() -> list[torch.Tensor]:
    """Return results and gradients of the layers of the papers' models, at their sizes."""

    def made(*shape: int) -> torch.Tensor:
        return torch.from_numpy(_values(*shape).astype(np.float32)).requires_grad_()

    def with_gradients(y: torch.Tensor, *of: torch.Tensor) -> list[torch.Tensor]:
        return [y, *torch.autograd.grad(functional.log_softmax(y.flatten(1), 1)[:, 0].sum(), of)]

    x, w, v = made(10, 784), made(200, 784), made(10, 200)
    dense = with_gradients(functional.linear(functional.linear(x, w).relu(), v), x, w, v)
    image, first, second = made(10, 1, 28, 28), made(32, 1, 5, 5), made(64, 32, 5, 5)
    convolved = functional.conv2d(image, first, padding=2).relu()
    convolved = functional.conv2d(functional.max_pool2d(convolved, 2), second, padding=2)
    lstm = torch.nn.LSTM(8, 256, 2, batch_first=True)
    weights = [made(*p.shape) for p in lstm.parameters()]
    named = dict(zip(dict(lstm.named_parameters()), (w * 0.1 for w in weights), strict=True))
    text = torch.func.functional_call(lstm, named, (made(10, 20, 8),))[0]
    a, b = made(7, 10, 50), made(7, 50, 30)
    drawn = torch.Generator().manual_seed(1)
    return [
        *dense, *with_gradients(convolved, image, first, second), *with_gradients(text, *weights),
        *with_gradients(torch.bmm(a, b), a, b),
        *(f(a) for f in (torch.exp, torch.tanh, torch.sigmoid, torch.erf, torch.norm, torch.sum)),
        functional.gelu(a),
        functional.group_norm(made(4, 32, 8, 8), 8), torch.linalg.inv(made(20, 20).double()),
        torch.randn(999, generator=drawn), torch.rand(99, generator=drawn),
    ]  # fmt: skip
