"""The character LSTM of several clients as one program: what autograd gives for each of them."""

import pytest
import torch

from client_app.training import graphs
from client_app.training.choice import program_of
from client_app.training.graphs import graphs_of
from client_app.training.programs import Batch, Single, Tensors
from client_app.training.recurrent import Recurrent
from task.models.layers import CharLSTM
from task.tasks.kinds import CLASSIFICATION

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]
CLASSES, T = 11, 7


@pytest.fixture(autouse=True)
def whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have cuDNN's own LSTM keep all bits, as in a run."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def drawn(model: CharLSTM, clients: int, rows: int = 3) -> tuple[Tensors, Batch]:
    """Return parameters that differ by client, and a batch with positions that do not count."""
    draw = torch.Generator().manual_seed(clients)
    device = next(model.parameters()).device
    params = [
        (p.detach().cpu() + 0.3 * torch.randn(clients, *p.shape, generator=draw)).to(device)
        for p in model.parameters()
    ]
    x = torch.randint(0, CLASSES, (clients, rows, T), generator=draw)
    y = torch.randint(0, CLASSES, (clients, rows, T), generator=draw)
    y[:, 0, 4:] = -100  # a text that ends
    y[0, 2] = -100  # a row that fills up
    scale = 1.0 / (y >= 0).sum((1, 2))
    return params, Batch(x.to(device), y.to(device), scale.to(device), padded=True)


def alone(model: CharLSTM, params: Tensors, batch: Batch, k: int) -> tuple[torch.Tensor, Tensors]:
    single = Single(model, CLASSIFICATION)
    own = Batch(batch.x[k : k + 1], batch.y[k : k + 1], batch.scale[k : k + 1])
    loss, gradient = single.gradient([p[k : k + 1] for p in params], own)
    return loss[0], [g[0] for g in gradient.tensors()]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("clients", [1, 3])
def test_each_clients_gradient_is_autograds(device: str, clients: int) -> None:
    torch.manual_seed(1)
    model = CharLSTM(CLASSES).to(device)
    params, batch = drawn(model, clients)
    losses, gradient = Recurrent(model, CLASSIFICATION).gradient(params, batch)
    for k in range(clients):
        loss, want = alone(model, params, batch, k)
        torch.testing.assert_close(losses[k], loss)
        for got, tensor in zip(gradient.tensors(), want, strict=True):
            torch.testing.assert_close(got[k], tensor, atol=2e-6, rtol=2e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_its_logits_are_the_modules(device: str) -> None:
    torch.manual_seed(1)
    model = CharLSTM(CLASSES).to(device)
    params, batch = drawn(model, 2)
    with torch.no_grad():
        got = Recurrent(model, CLASSIFICATION).logits(params, batch.x)
        for k in range(2):
            for p, own in zip(model.parameters(), params, strict=True):
                p.copy_(own[k])
            torch.testing.assert_close(got[k], model(batch.x[k]))


@pytest.mark.parametrize("device", DEVICES)
def test_it_takes_cohorts_on_gpus_only(device: str) -> None:
    model = CharLSTM(CLASSES).to(device)
    kind, size = program_of(model, 0)
    assert (type(kind), size) == ((Recurrent, 128) if device == "cuda" else (Single, 1))
    model.output.bias.requires_grad_(requires_grad=False)
    assert type(program_of(model, 0)[0]) is Single


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_graph_for_more_clients_gives_what_its_kernels_give() -> None:
    torch.manual_seed(1)
    program = Recurrent(CharLSTM(CLASSES).to("cuda"), CLASSIFICATION)
    for clients in (3, 4, 3):
        for _ in range(graphs.AFTER + 1):
            params, batch = drawn(program.model, clients)
            losses, gradient = program.gradient(params, batch)
            want_losses, want = program.computed(params, batch)
            torch.testing.assert_close(losses, want_losses)
            for a, b in zip(gradient.tensors(), want.tensors(), strict=True):
                torch.testing.assert_close(a, b, atol=2e-6, rtol=2e-4)
    assert [g is not None for g in graphs_of(program.model)._kept.values()] == [True]
