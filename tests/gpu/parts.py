"""Where the time of a node's answer goes on a GPU: 100 clients with `2nn`, whose models are summed there.

Run ``python -m tests.gpu.parts``; with a folder as argument, the lines go to ``parts.md`` there, and the
calls of one answer to ``profile.txt``. For comparison models and examples are also copied each round.
"""

import cProfile
import hashlib
import pstats
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch

from client_app.answer import answer
from client_app.data.node import Node, open_node
from client_app.solvers import sgd
from client_app.stages.merge import Merge
from client_app.training.stacked import Stacked
from task.datasets import Dataset, base
from task.numerics import pages
from task.resolve.read import read_config
from task.wire import messages as wire
from tests.gpu.rounds import DEVICE, MNIST

KEYS: dict[str, Any] = {**MNIST, "model": "2nn", "local-epochs": 1, "stack": 100, "device": DEVICE}
PARTS = {
    "examples": (Dataset, "inputs"), "load": (Stacked, "load"), "steps and examples": (sgd, "train"),
    "models": (Stacked, "lent"), "fold": (Merge, "add"),
}  # fmt: skip
COPIES = ((Stacked, "lent", Stacked.states), (base, "LEAVES", 1 << 40))


def _waited() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _timed(work: Callable[..., Any], seconds: Counter[str], part: str) -> Callable[..., Any]:
    def timed(*args: Any, **more: Any) -> Any:
        began = _waited()
        try:
            return work(*args, **more)
        finally:
            seconds[part] += _waited() - began  # type: ignore[assignment]

    return timed


def _answer(node: Node) -> Any:
    clients = tuple(node.clients.names)
    order = wire.TrainOrder(1, {}, {"lr": 0.1}, clients, (0,) * len(clients))
    return answer(node, wire.train_content(order, {"arrays": wire.pack_arrays(node.initial())}, KEYS))


def _digest(node: Node) -> str:
    reply = wire.read_reply(_answer(node), list(node.clients.names), 1)
    arrays = [(n, a.tobytes()) for part in reply.partials["arrays"].values() for n, a in part.items()]
    return hashlib.sha256(repr((arrays, sorted(reply.scalars.items()))).encode()).hexdigest()[:12]


def line(node: Node, copied: bool) -> str:
    """Return an answer's seconds, its parts' with the GPU waited for, and a digest of what is in it."""
    seconds: Counter[str] = Counter()
    with ExitStack() as stack:
        for where, name, value in COPIES if copied else ():
            stack.enter_context(patch.object(where, name, value))
        node.dataset._held.clear()
        whole = []
        for _ in range(8):
            began = _waited()
            _answer(node)
            whole.append(_waited() - began)
        for part, (where, name) in PARTS.items():
            stack.enter_context(patch.object(where, name, _timed(getattr(where, name), seconds, part)))
        _answer(node)
        words = ", ".join(f"{part} {value:.4f}" for part, value in seconds.items())
        way = "copied" if copied else "summed there"
        return f"| {way} | {median(whole[2:]):.4f} | {words} | {_digest(node)} |"


if __name__ == "__main__":
    torch.set_num_threads(1)
    pages.in_use(use=True)
    here = open_node(read_config(KEYS), {})
    found = [line(here, copied) for copied in (True, False)]
    print(*found, sep="\n", flush=True)
    profile = cProfile.Profile()
    profile.runcall(_answer, here)
    if len(sys.argv) > 1:
        (Path(sys.argv[1]) / "parts.md").write_text("\n".join(found) + "\n")
        with (Path(sys.argv[1]) / "profile.txt").open("w") as file:
            pstats.Stats(profile, stream=file).sort_stats("tottime").print_stats(50)
