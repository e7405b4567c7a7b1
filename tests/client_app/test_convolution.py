"""Convolutions of several clients as matrix products: PyTorch's own numbers, whatever fits in memory."""

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from client_app.training import convolution
from client_app.training.convolution import convolve

LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one pixel": {"kernel_size": 1},
    "padded": {"padding": (2, 1)},
    "same, even": {"kernel_size": (4, 3), "padding": "same"},
    "valid, wide": {"kernel_size": (1, 5), "padding": "valid"},
    "stride": {"stride": (2, 3), "padding": 1},
    "dilation": {"dilation": (2, 1), "padding": "same"},
    "all": {"kernel_size": (2, 3), "stride": 2, "padding": (3, 2), "dilation": (3, 2)},
}
CPU_AND_GPU = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even")
@pytest.mark.parametrize("device", CPU_AND_GPU)
@pytest.mark.parametrize("clients_at_once", [1, 2, 5])
@pytest.mark.parametrize("name", LAYERS)
def test_maps_and_gradients_are_those_of_each_clients_own_layer(
    name: str, clients_at_once: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    K, c, o, b = 5, 3, 4, 6
    torch.manual_seed(1)
    layers = [nn.Conv2d(c, o, **({"kernel_size": 3} | LAYERS[name])).double().to(device) for _ in range(K)]
    x = torch.randn(K, c, b, 9, 11, dtype=torch.float64, device=device, requires_grad=True)
    want = torch.stack([layer(x[k].transpose(0, 1)).transpose(0, 1) for k, layer in enumerate(layers)])
    windows = c * layers[0].weight[0, 0].numel() * want[0, 0].numel() * 8
    monkeypatch.setattr(convolution, "WINDOW_BYTES", clients_at_once * windows + 7)
    copied, sizes = convolution._columns, list[int]()

    def columns(views: torch.Tensor) -> torch.Tensor:
        sizes.append(views.nbytes)
        return copied(views)

    monkeypatch.setattr(convolution, "_columns", columns)
    weight, bias = (
        torch.stack([getattr(m, n) for m in layers]).detach().requires_grad_() for n in ("weight", "bias")
    )
    got = convolve(x, weight, bias, layers[0])
    torch.testing.assert_close(got, want)
    g = torch.randn_like(want)
    of = list(itertools.chain.from_iterable((m.weight, m.bias) for m in layers))
    of_x, *theirs = torch.autograd.grad(want, [x, *of], g)
    ours = torch.autograd.grad(got, [x, weight, bias], g)
    assert max(sizes) == clients_at_once * windows  # forwards and backwards, at once
    for a, e in zip(ours, (of_x, torch.stack(theirs[::2]), torch.stack(theirs[1::2])), strict=True):
        torch.testing.assert_close(a, e)


def test_gradients_of_16_bits_are_near_those_of_32() -> None:
    torch.manual_seed(1)
    layer = nn.Conv2d(3, 4, 3, padding=1)
    x = torch.randn(2, 3, 5, 8, 8, requires_grad=True)
    weight, bias = torch.randn(2, 4, 3, 3, 3, requires_grad=True), torch.zeros(2, 4, requires_grad=True)
    exact = torch.autograd.grad(convolve(x, weight, bias, layer).square().sum(), [x, weight, bias])
    with torch.autocast("cpu", torch.bfloat16):
        maps = convolve(x, weight, bias, layer)
    assert maps.dtype == torch.bfloat16
    near = torch.autograd.grad(maps.float().square().sum(), [x, weight, bias])
    for a, e in zip(near, exact, strict=True):
        assert a.dtype == torch.float32
        assert float((a - e).norm() / e.norm()) < 0.02
