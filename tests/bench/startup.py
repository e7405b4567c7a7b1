"""What whole commands cost in time and memory, against Flower's stock quickstart and the fastest others."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.bench.peers.install import python_of
from tests.bench.plain import command as plain_command
from tests.bench.processes import Outcome, bouquet, run
from tests.bench.readings import Row, failed, median, paired, short
from tests.bench.rounds import W1, Bench

MEGABYTE = 1e6


def stock(bench: Bench, rounds: int, *, memory: bool = False) -> Outcome:
    """Run the stock app."""
    folder = bench.folder("stock")
    command = [sys.executable, "-m", "tests.bench.stock", str(bench.data), str(folder), str(rounds)]
    return run(command, folder, bench.env, memory=memory)


def plain(bench: Bench, rounds: int, *, workers: int = 2, memory: bool = False) -> Outcome:
    """Run the plain loop as a command of its own."""
    folder = bench.folder("plain")
    return run(plain_command(folder, W1, rounds, workers), folder, bench.env, memory=memory)


def fedjax(bench: Bench, python: Path, rounds: int) -> Outcome:
    """Run W1 in FedJAX."""
    folder = bench.folder("fedjax")
    command = [str(python), "-m", "tests.bench.peers.w1_fedjax", str(bench.data), str(folder), str(rounds)]
    return run(command, folder, bench.env)


def first_round(bench: Bench) -> Iterator[Row]:
    """Compare the time from the start of the command to the end of round 1, in turns."""
    keys = W1 | {"num-server-rounds": 1}
    bench.simulate("first-round-warm", keys)  # data and partition in the cache, byte code compiled
    ours: dict[str, list[Outcome]] = {"w1": [], "demo": []}
    theirs: list[Outcome] = []
    broken: dict[str, RuntimeError] = {}
    for _ in range(bench.repetitions):
        for name, side in ours.items():
            try:
                side.append(bench.simulate("first-round", keys) if name == "w1" else _demo(bench))
            except RuntimeError as error:
                broken[name] = error
        theirs.append(stock(bench, 1))
    what = {"w1": "W1", "demo": "make demo"}
    for name, side in ours.items():
        if name in broken:
            yield failed(f"first-round-{name}", broken[name])
            continue
        walls = f"whole commands {median(o.wall for o in side):.3g} : {median(o.wall for o in theirs):.3g} s"
        times = [[o.until_round_1 for o in each] for each in (side, theirs)]
        words = f"{what[name]}, start to the end of round 1 : stock app"
        yield paired(f"first-round-{name}", words, *times, 0.4, detail=walls)


def _demo(bench: Bench) -> Outcome:
    folder = bench.folder("demo")
    return run(bouquet(folder, {}, "--recipe", "demo"), folder, bench.env)


def whole_run(bench: Bench) -> Iterator[Row]:
    """Compare whole commands of 20 rounds with the fastest of the plain loop and FedJAX, in turns."""
    rounds = 3 if bench.quick else 20
    keys = W1 | {"num-server-rounds": rounds}
    bench.simulate("whole-warm", keys | {"num-server-rounds": 1})
    python = python_of(bench.work, "fedjax")
    runs: dict[str, list[Outcome]] = {"Bouquet": [], "plain loop": []}
    if python:
        runs["FedJAX"] = []
    for _ in range(bench.repetitions):
        runs["Bouquet"].append(bench.simulate("whole", keys))
        runs["plain loop"].append(plain(bench, rounds))
        if python:
            runs["FedJAX"].append(fedjax(bench, python, rounds))
    walls = {name: [o.wall for o in each] for name, each in runs.items()}
    fastest = min((name for name in runs if name != "Bouquet"), key=lambda name: median(walls[name]))
    words = [f"{k} {short(median(v))} s, accuracy {runs[k][-1].accuracy:.4f}" for k, v in walls.items()]
    if not python:
        words.append("FedJAX not installed, see make bench-peers")
    what = f"W1, command of {rounds} rounds, start to end : {fastest}"
    yield paired("w1-20-rounds", what, walls["Bouquet"], walls[fastest], 1.0, detail="; ".join(words))


def memory(bench: Bench) -> Iterator[Row]:
    """Compare the peak of all processes of a run of a few rounds."""
    rounds = bench.rounds or 3
    ours, theirs = [], []
    for _ in range(bench.repetitions):
        ours.append(bench.simulate("memory", W1 | {"num-server-rounds": rounds}, memory=True))
        theirs.append(stock(bench, rounds, memory=True))
    sizes = [[o.pss / MEGABYTE for o in side] for side in (ours, theirs)]
    summed = " : ".join(short(median(o.rss / MEGABYTE for o in side)) for side in (ours, theirs))
    number = " and ".join(short(median(o.processes for o in side)) for side in (ours, theirs))
    detail = f"PSS, shared pages counted once; sums of RSS {summed} MB; {number} processes"
    yield paired("memory", "W1, peak of all processes : stock app", *sizes, 0.5, "MB", detail)
