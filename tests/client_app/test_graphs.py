"""A step's gradient as a CUDA graph: the same bits as without one, in memory that no later step changes."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from client_app.training import graphs
from client_app.training.graphs import Graphs, graphs_of
from client_app.training.programs import Batch, Computed, Dense, Tensors
from client_app.training.stacked import Layers, Perceptron

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def convolutions() -> nn.Sequential:
    body = [
        nn.Conv2d(1, 4, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 8, 3, padding=1),
        nn.ReLU(),
    ]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(8 * 16, 10))


def steps(program: Layers, clients: int, count: int, *, padded: bool) -> Iterator[tuple[Tensors, Batch]]:
    """Yield random parameters and batches."""
    draw = torch.Generator("cuda").manual_seed(1)
    shapes = [p.shape for p in program.model.parameters()]
    for _ in range(count):
        params = [torch.randn(clients, *s, device="cuda", generator=draw) * 0.1 for s in shapes]
        x = torch.randn(clients, 6, 1, 8, 8, device="cuda", generator=draw)
        y = torch.randint(0, 10, (clients, 6), device="cuda", generator=draw)
        scale = torch.full((clients,), 1 / 6, device="cuda")
        if padded:
            y[0, 4:], scale[0] = -100, 1 / 4
        yield params, Batch(x, y, scale, padded)


@GPU
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize(("make", "kind"), [(perceptron, Perceptron), (convolutions, Layers)])
def test_a_graphs_loss_and_gradient_are_those_of_its_kernels(
    make: Any, kind: type[Layers], clients: int, padded: bool
) -> None:
    program = kind(make().to("cuda"))
    told = list(steps(program, clients, graphs.AFTER + 5, padded=padded))
    before = [[p.clone() for p in params] for params, _ in told]
    got = [program.gradient(params, batch) for params, batch in told]  # all are there at once
    assert [g is not None for g in graphs_of(program.model)._kept.values()] == [True]
    for (params, batch), (loss, gradient), were in zip(told, got, before, strict=True):
        want_loss, want = program.computed(params, batch)
        assert loss.equal(want_loss)
        for a, b in zip(gradient.tensors(), want.tensors(), strict=True):
            assert a.equal(b)
        assert all(a.equal(b) for a, b in zip(params, were, strict=True))


@GPU
def test_forms_that_take_turns_have_graphs_of_their_own() -> None:
    program = Layers(convolutions().to("cuda"))
    streams = [list(steps(program, k, graphs.AFTER + 3, padded=False)) for k in (1, 2, 3)]
    for stream in streams:
        for params, batch in stream:
            program.gradient(params, batch)
    assert len(graphs_of(program.model)._kept) == 3
    for at_once in zip(*streams, strict=True):
        for params, batch in at_once:
            (loss, gradient), (want_loss, want) = (
                program.gradient(params, batch),
                program.computed(params, batch),
            )
            assert loss.equal(want_loss)
            assert all(a.equal(b) for a, b in zip(gradient.tensors(), want.tensors(), strict=True))
    frozen = program.gradient(*streams[0][0], frozen=("0.weight", "0.bias"))[1].tensors()
    want = program.computed(*streams[0][0])[1]
    assert frozen[2].equal(want.tensors()[2])


class Fake:
    """A graph that says so."""

    made = 0
    fails = False

    def __init__(self, *given: Any) -> None:
        if Fake.fails:
            raise RuntimeError("out of memory")
        Fake.made += 1

    def run(self, params: Tensors, batch: Batch) -> Computed:
        return torch.ones(1), Dense([])


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    Fake.made, Fake.fails = 0, False
    monkeypatch.setattr(graphs, "_Graph", Fake)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    return Fake


def asked(of: Graphs, width: int, params: Tensors | None = None) -> bool:
    """Return whether a graph answered for batches of a width."""
    batch = Batch(torch.zeros(1, width), torch.zeros(1, 1), torch.ones(1))
    loss, _ = of.gradient(
        lambda params, batch: (torch.zeros(1), Dense([])),
        params or [],
        batch,
        "form",
        len(params[0]) if params else 1,
    )
    return bool(loss)


def test_there_is_a_graph_once_a_form_is_usual(fake: type[Fake]) -> None:
    of = Graphs()
    assert [asked(of, 1) for _ in range(graphs.AFTER + 2)] == [False] * graphs.AFTER + [True] * 2
    assert fake.made == 1


def test_the_graphs_last_used_stay(fake: type[Fake]) -> None:
    of = Graphs()
    for width in range(graphs.KEPT):
        for _ in range(graphs.AFTER + 1):
            asked(of, width)
    assert asked(of, 0)  # so that that of 1 is the oldest
    for _ in range(graphs.AFTER + 1):
        asked(of, graphs.KEPT)
    assert [asked(of, width) for width in (0, 1, 2, graphs.KEPT)] == [True, False, True, True]
    assert fake.made == graphs.KEPT + 1


def test_what_cannot_be_a_graph_is_computed_without(fake: type[Fake]) -> None:
    of, fake.fails = Graphs(), True
    assert not any(asked(of, 1) for _ in range(graphs.AFTER + 2))
    fake.fails = False
    assert not asked(of, 1)  # nor is it tried again


@pytest.mark.parametrize("case", ["many inputs", "many parameters", "expanded parameters"])
def test_no_graph_where_copies_cost_more_than_they_save(
    case: str, fake: type[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "PARAMETERS", 8)
    monkeypatch.setattr(graphs, "INPUTS", 8)
    width, params = 8, [torch.zeros(1, 8)]
    if case == "many inputs":
        width = 9
    elif case == "many parameters":
        params = [torch.zeros(1, 8), torch.zeros(1, 1)]
    else:
        params = [torch.zeros(1, 1).expand(1, 8)]
    of = Graphs()
    assert not any(asked(of, width, params) for _ in range(graphs.AFTER + 2))
    assert any(asked(of, 8, [torch.zeros(1, 8)]) for _ in range(graphs.AFTER + 2))


def test_a_graph_for_more_clients_counts_the_places_that_it_has(
    fake: type[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "PARAMETERS", 8)
    params, batch = [torch.zeros(1, 4)], Batch(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1))

    def made(clients: int) -> bool:
        of = Graphs()
        answers = [
            of.gradient(lambda p, b: (torch.zeros(1), Dense([])), params, batch, "", clients)
            for _ in range(12)
        ]
        return bool(answers[-1][0])

    assert made(2)
    assert not made(3)


def test_graphs_are_gone_with_their_model() -> None:
    model = nn.Linear(1, 1)
    assert graphs_of(model) is graphs_of(model)
    before = len(graphs._OF)
    del model
    assert len(graphs._OF) == before - 1
