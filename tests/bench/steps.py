"""``steps``: a local step of the CNN and of the character LSTM against plain PyTorch's, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch.nn.functional import cross_entropy

from client_app.training.choice import program_of
from client_app.training.programs import Batch
from task.models import build_model
from task.numerics.arrays import state_of
from tests.bench.readings import Row, paired
from tests.bench.rounds import Bench

B, RATE, PAIRS = 10, 0.05, 15
THREADS = (1, 2)
SHAPES = {"cnn": ((1, 28, 28), 10, 15), "char-lstm": ((80,), 256, 3)}  # an example, classes, steps in a block
ROWS = tuple(f"step-{model}-{threads}" for model in SHAPES for threads in THREADS)


def steps(bench: Bench) -> Iterator[Row]:
    """Compare CPU times of blocks of steps, in turns."""
    before = torch.get_num_threads()
    try:
        for model, (shape, classes, block) in SHAPES.items():
            for threads in THREADS:
                torch.set_num_threads(threads)
                sides = _sides(model, shape, classes)
                times: list[list[float]] = [[], []]
                for i in range((1 if bench.quick else PAIRS) + 1):
                    for side, step in zip(times, sides, strict=True):
                        spent = _spent(step, 1 if bench.quick else block)
                        if i:  # the first is not counted
                            side.append(spent)
                what = f"{model}, batch of {B}, {threads} thread(s): our program : torch.optim.SGD"
                detail = "CPU time of a step"
                yield paired(f"step-{model}-{threads}", what, *times, None, "ms", detail)
    finally:
        torch.set_num_threads(before)


def _spent(step: Callable[[], None], steps: int) -> float:
    """Return the CPU time of a step over all threads of the process, in ms."""
    start = time.process_time()
    for _ in range(steps):
        step()
    return (time.process_time() - start) / steps * 1e3


def _sides(name: str, shape: tuple[int, ...], classes: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return our step and the plain one, from the same parameters on the same batch."""
    rng = torch.Generator().manual_seed(1)
    text = len(shape) == 1
    x = torch.randint(classes, (B, *shape), generator=rng) if text else torch.rand(B, *shape, generator=rng)
    y = torch.randint(classes, (B, *shape) if text else (B,), generator=rng)
    model, twin = (build_model(name, shape, classes, 1) for _ in range(2))
    program, _ = program_of(model, 0)
    params = program.load(state_of(model), 1)
    batch = Batch(x[None], y[None], torch.tensor([1 / y.numel()]))
    optimizer = torch.optim.SGD(twin.parameters(), lr=RATE)

    def ours() -> None:
        _, gradient = program.gradient(params, batch)
        with torch.no_grad():
            gradient.add_to(params, -RATE)

    def plain() -> None:
        optimizer.zero_grad()
        cross_entropy(twin(x), y).backward()
        optimizer.step()

    return ours, plain
