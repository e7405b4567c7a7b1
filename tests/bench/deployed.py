"""A deployed round: link, warm nodes, TLS and node keys, against stock Flower with TLS and node keys."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from server_app.engines.federation import federation
from tests.bench.readings import Row, median, paired
from tests.bench.rounds import W1, Bench
from tests.support.stock import stock

NODES = 3
LOOK_S = 0.05
FIRST_S, ROUND_S = 15.0, 4.0  # targets of ours, in seconds


def deployed(bench: Bench) -> Iterator[Row]:
    """Compare the time from submission to the end of round 1, and the rounds after it; nodes are online."""
    rounds = bench.rounds or (2 if bench.quick else 6)
    keys = W1 | {"num-server-rounds": rounds, "progress": "none", "run-name": "deployed"}
    os.environ.update(
        {name: bench.env[name] for name in ("BOUQUET_DATA", "BOUQUET_CACHE") if name in bench.env}
    )
    firsts: dict[str, list[float]] = {"ours": [], "theirs": []}
    steady: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(1 if bench.quick else min(bench.repetitions, 3)):
        for side, measure in {"ours": _ours, "theirs": _theirs}.items():
            first, after = measure(bench.folder(f"deployed-{side}"), keys)
            firsts[side].append(first)
            steady[side].append(median(after))
    what = f"{NODES} nodes, W1, TLS and node keys, {{}} : Flower's own processes"
    yield paired(
        "deployed-first-round", what.format("submission to the end of round 1"), *firsts.values(), None,
        detail=f"ours at most {FIRST_S:g} s",
    )  # fmt: skip
    yield paired(
        "deployed-round", what.format("a round after the first"), *steady.values(), None,
        detail=f"ours at most {ROUND_S:g} s",
    )  # fmt: skip


def _ours(runs: Path, keys: dict[str, Any]) -> tuple[float, list[float]]:
    shares = {f"node-{i}": ["--partition", f"{i}/{NODES}"] for i in range(NODES)}
    with federation(shares, runs) as fed:
        _await_nodes(lambda: sum(n["online"] for n in _status(fed.kit.state / "status.json")))
        return _watch(runs / "deployed", lambda: fed.run(keys))


def _theirs(runs: Path, keys: dict[str, Any]) -> tuple[float, list[float]]:
    shares = [{"partition-id": i, "num-partitions": NODES} for i in range(NODES)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home, stock(Path(home), shares) as link:
        _await_nodes(lambda: link.call("flwr", "supernode", "list", "local").count("online"))
        return _watch(runs / "deployed", lambda: link.run(keys | {"runs-dir": str(runs), "min-nodes": NODES}))


def _status(path: Path) -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = json.loads(path.read_text())["nodes"]
    return nodes


def _await_nodes(online: Callable[[], int]) -> None:
    deadline = time.monotonic() + 120
    while online() < NODES:
        if time.monotonic() > deadline:
            raise RuntimeError(f"expected {NODES} nodes online within 120 s; got {online()}")
        time.sleep(0.2)


def _watch(folder: Path, run: Callable[[], None]) -> tuple[float, list[float]]:
    """Return the seconds from now to the end of round 1, and those of each round after it."""
    began, path = time.perf_counter(), folder / "rounds.jsonl"
    first = 0.0
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        while not running.done():
            if not first and path.exists() and len(path.read_text().splitlines()) > 1:
                first = time.perf_counter() - began
            time.sleep(LOOK_S)
        running.result()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return first or time.perf_counter() - began, [row["seconds"]["total"] for row in rows[2:]]
