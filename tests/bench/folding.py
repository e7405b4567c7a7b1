"""``fold``: what the server does with one reply, and what it keeps of many."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from strategies.fold import Fold
from task import checks, wire
from task.algorithms import ALGORITHMS
from task.arrays import Arrays
from task.reduce import Mean
from tests.bench.readings import Reading, median, ratio
from tests.bench.rounds import Bench

# The CNN of McMahan et al. on MNIST: 1,663,370 float32, 6.65 MB.
CNN = {
    "0.weight": (32, 1, 5, 5), "0.bias": (32,), "3.weight": (64, 32, 5, 5), "3.bias": (64,),
    "7.weight": (512, 3136), "7.bias": (512,), "9.weight": (10, 512), "9.bias": (10,),
}  # fmt: skip
SMALL = {"w": (100, 10), "b": (10,)}


def fold(bench: Bench) -> list[Reading]:
    """Compare the work on one reply with reading its bytes and with a plain sum; memory with 10 and 200."""
    shapes = SMALL if bench.quick else CNN
    repeat = max(5, bench.repeat) if bench.quick else 30
    arrays = _model(shapes, 0)
    record = wire.pack_arrays(arrays)
    size = sum(a.nbytes for a in arrays.values()) / 1e6
    mean = Mean(arrays)
    total = {name: np.zeros(a.shape) for name, a in arrays.items()}

    def checked() -> None:
        checks.check_arrays("arrays", arrays, arrays)
        mean.add(arrays, 600, "client")

    def plain() -> None:
        for name, a in arrays.items():
            total[name] += a * np.float64(600)

    sides: dict[str, Callable[[], object]] = {
        "read": lambda: [a.sum() for a in arrays.values()],
        "plain": plain,
        "fold": checked,
        "decode": lambda: wire.read_arrays(record),
    }
    ms = _in_turns(sides, repeat)
    decode = f"decoding the record {median(ms['decode']):.3g} ms more"
    few, many = (5, 20) if bench.quick else (10, 200)
    peaks = [_peak(shapes, n) / 1e6 for n in (few, many)]
    return [
        ratio(
            "fold", f"check, fold {size:.3g} MB : read it once", ms["fold"], ms["read"], None, "ms", decode
        ),
        ratio("fold", "the same : plain float64 sum", ms["fold"], ms["plain"], None, "ms"),
        ratio("fold", f"peak with {many} replies : {few}", [peaks[1]], [peaks[0]], 1.1, "MB", "tracemalloc"),
    ]


def _in_turns(sides: dict[str, Callable[[], object]], repeat: int) -> dict[str, list[float]]:
    """Call the sides in turns and return the milliseconds of each call, the first round left out."""
    ms: dict[str, list[float]] = {name: [] for name in sides}
    for i in range(repeat + 1):
        for name, call in sides.items():
            start = time.perf_counter()
            call()
            if i:
                ms[name].append((time.perf_counter() - start) * 1e3)
    return ms


def _model(shapes: dict[str, tuple[int, ...]], seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def _peak(shapes: dict[str, tuple[int, ...]], replies: int) -> int:
    """Return the peak bytes while so many replies are made one by one and folded by the round loop's fold."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    arrays = _model(shapes, 0)
    order = wire.TrainOrder(1, {}, {"lr": 0.1}, ("client",), (0,))
    requests = {}
    for i in range(replies):
        request = wire.message(wire.train_content(order, {}, {}), i + 1, "train", 1, 60.0)
        request.metadata.__dict__["_message_id"] = str(i)
        requests[str(i)] = request

    def stream() -> Iterator[Message]:
        scalars = {"num-examples": 600.0, "train-loss": 1.0}
        for request in requests.values():
            upload = wire.Upload({"arrays": arrays}, scalars)
            yield Message(wire.reply_content(wire.NodeReply(["c"], {}, upload=upload)), reply_to=request)

    tracemalloc.start()
    try:
        asked = {i: [f"client-{i}"] for i in requests}
        work = Fold(ALGORITHMS["fedavg"], {"arrays": arrays}, asked, 1)
        work.run(stream())
        folded = work.finish(late="", lr=0.1, trainable=())
        assert folded.reduced is not None
        assert len(folded.reduced.clients) == replies, folded.quarantined[:1]
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
