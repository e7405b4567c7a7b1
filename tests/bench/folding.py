"""``fold``: what the server does with one reply, and what it keeps of many."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from strategies.engine.fold import Fold
from task.catalogue.algorithms import ALGORITHMS
from task.numerics.arrays import Arrays
from task.numerics.reduce import Mean
from task.wire import checks
from task.wire import messages as wire
from tests.bench.readings import Row, median, paired, short
from tests.bench.rounds import Bench

# The CNN of McMahan et al. on MNIST: 1,663,370 float32, 6.65 MB.
CNN = {
    "0.weight": (32, 1, 5, 5), "0.bias": (32,), "3.weight": (64, 32, 5, 5), "3.bias": (64,),
    "7.weight": (512, 3136), "7.bias": (512,), "9.weight": (10, 512), "9.bias": (10,),
}  # fmt: skip
SMALL = {"w": (100, 10), "b": (10,)}
REPLIES = 42  # different ones, 279 MB: none is in a cache any more when its turn comes again
ASK = 600  # examples of each client


def fold(bench: Bench) -> Iterator[Row]:
    """Compare the work on one reply with reading its bytes, from memory; memory with 10 and 200 replies."""
    shapes, replies, passes = (SMALL, 5, 2) if bench.quick else (CNN, REPLIES, max(7, bench.repeat))
    models = [random_model(shapes, i) for i in range(replies)]
    size = sum(a.nbytes for a in models[0].values()) / 1e6
    mean = Mean(models[0])

    tensors = [[torch.from_numpy(a) for a in arrays.values()] for arrays in models]
    threads = torch.get_num_threads()

    def read(i: int) -> None:  # torch's sum by one thread; numpy's takes longer and is no limit
        for tensor in tensors[i]:
            tensor.sum()

    def checked(i: int) -> None:
        peaks = checks.check_arrays("arrays", models[i], models[0])
        found = mean.check(models[i], ASK, f"client-{i}", peaks)
        mean.add(models[i], ASK, f"client-{i}", found)

    messages = [_reply(arrays, i) for i, arrays in enumerate(models)]
    asked = {str(i): [f"client-{i}"] for i in range(replies)}
    work: list[Fold] = []

    def whole(i: int) -> None:
        if i == 0:
            work[:] = [Fold(ALGORITHMS["fedavg"], {"arrays": models[0]}, asked, 1)]
        work[0].take(messages[i])

    sides = {"read": read, "fold": checked, "whole": whole}

    def start_side(name: str) -> None:
        torch.set_num_threads(1 if name == "read" else threads)

    cold = in_turns(sides, range(replies), passes, start_side)
    assert work[0].answered == replies, work[0].quarantined[:1]
    hot = in_turns({k: sides[k] for k in ("read", "fold")}, [0] * replies, passes, start_side)
    a, b = median(hot["fold"]), median(hot["read"])
    cached = f"one reply again and again, from the cache: {short(a)} : {short(b)} ms, {short(a / b)} x"
    what = f"{size:.3g} MB : reading them once, from memory"
    yield paired("fold", f"check and fold {what}", cold["fold"], cold["read"], 1.5, "ms", cached)
    yield paired("fold-message", f"decode, check and fold {what}", cold["whole"], cold["read"], 1.5, "ms")
    few, many = (5, 20) if bench.quick else (10, 200)
    peaks = [[_peak(models[0], n) / 1e6 for _ in range(2 if bench.quick else 5)] for n in (many, few)]
    what, detail = f"peak with {many} replies : {few}", f"tracemalloc; a model is {size:.3g} MB"
    yield paired("fold-memory", what, *peaks, 1.1, "MB", detail)


def in_turns(
    sides: dict[str, Callable[[int], object]],
    order: Sequence[int],
    passes: int,
    start_side: Callable[[str], None],
) -> dict[str, list[float]]:
    """Let each side go through all replies, in turns; return its milliseconds a reply by pass.

    The first pass is left out.
    """
    ms: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(passes + 1):
        for name, call in sides.items():
            start_side(name)
            start = time.perf_counter()
            for i in order:
                call(i)
            if number:
                ms[name].append((time.perf_counter() - start) * 1e3 / len(order))
    return ms


def random_model(shapes: dict[str, tuple[int, ...]], seed: int) -> Arrays:
    """Return random weights of the size that a network's have."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape, np.float32) * np.float32(0.05) for name, shape in shapes.items()}


def _request(number: int) -> Message:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    order = wire.TrainOrder(1, {}, {"lr": 0.1}, ("client",), (0,))
    request = wire.message(wire.train_content(order, {}, {}), number + 1, "train", 1, 60.0)
    request.metadata.__dict__["_message_id"] = str(number)
    return request


def _reply(arrays: Arrays, number: int) -> Message:
    scalars = {"num-examples": float(ASK), "train-loss": 1.0}
    upload = wire.ClientUpdate({"arrays": arrays}, scalars)
    content = wire.reply_content(wire.NodeReply([f"client-{number}"], {}, upload=upload))
    return Message(content, reply_to=_request(number))


def _peak(arrays: Arrays, replies: int) -> int:
    """Return the peak bytes while so many replies are made one by one and folded by the round loop's fold."""
    tracemalloc.start()
    try:
        asked = {str(i): [f"client-{i}"] for i in range(replies)}
        work = Fold(ALGORITHMS["fedavg"], {"arrays": arrays}, asked, 1)
        work.run(_reply(arrays, i) for i in range(replies))
        folded = work.finish(late="", lr=0.1, trainable=())
        assert folded.reduced is not None
        assert len(folded.reduced.clients) == replies, folded.quarantined[:1]
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
