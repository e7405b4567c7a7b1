"""``w1-round``, ``w2-round``, ``population`` and the tables: what a steady round costs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import torch

from task.config.read import knobs
from tests.bench.held import Held, accuracy, blocks_for, in_turns
from tests.bench.plain import PlainLoop
from tests.bench.processes import Outcome, bouquet, environment, run
from tests.bench.readings import Row, cpus, growth, left_open, median, paired, short

W1: dict[str, Any] = {
    "dataset": "mnist",
    "model": "2nn",
    "partition": "iid",
    "num-clients": 100,
    "local-test-fraction": 0.0,
    "fraction-train": 0.1,
    "local-epochs": 1,
    "batch-size": 10,
    "learning-rate": 0.1,
    "progress": "none",
}
MANY = 1_000_000
ACTORS_THREADS = ((1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (4, 2), (8, 1))
STACKS = (1, 2, 5, 10)
ON_GPU = {"2nn": 0.1, "cnn": 1 / 3}
_STC = {"codec.up": "stc", "codec.keep": 0.01}
CODED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "codec-none": ({}, ()),
    "codec-stc": (_STC, ()),
    "codec-stc-both": (_STC | {"codec.down": "stc"}, ()),
    "codec-eden": ({"codec.up": "eden"}, ()),
    "codec-int8": ({"codec.up": "int8"}, ()),
}


@dataclass
class Bench:
    """What every benchmark is given.

    Attributes:
        work: Folder for data, caches and result folders.
        data: Data folder with MNIST/raw.
        rounds: Rounds that count; 0 = the benchmark's own number.
        repeat: Repetitions of a whole command.
        quick: Little work: does everything run?
    """

    work: Path
    data: Path
    rounds: int = 0
    repeat: int = 5
    quick: bool = False

    @property
    def env(self) -> dict[str, str]:
        """The environment of the commands."""
        return environment(self.work, self.data)

    @property
    def repetitions(self) -> int:
        """Repetitions of a whole command, one where it is quick."""
        return 1 if self.quick else self.repeat

    def folder(self, name: str) -> Path:
        """Return a folder that is not there yet."""
        taken = {p.stem for p in (self.work / "runs").glob(f"{name}-*")}
        return self.work / "runs" / next(f"{name}-{i}" for i in range(10**6) if f"{name}-{i}" not in taken)

    def simulate(self, name: str, keys: dict[str, Any], *, memory: bool = False) -> Outcome:
        """Run ``bouquet run`` with these keys."""
        folder = self.folder(name)
        return run(bouquet(folder, keys), folder, self.env, memory=memory)

    def held(self, name: str, keys: dict[str, Any], block: int, blocks: int, *more: str) -> Held:
        """Return a ``bouquet run`` with these keys that goes on a block at a time."""
        return Held(self.folder(name), keys, self.env, block=block, blocks=blocks, more=more)


def w1_round(bench: Bench) -> Iterator[Row]:
    """Compare a round of W1 with the plainest loop."""
    yield _against_plain(bench, "w1-round", W1, block=1 if bench.quick else 10, rounds=70, target=0.6)


def w2_round(bench: Bench) -> Iterator[Row]:
    """Compare a round of the CNN with the plainest loop."""
    keys = W1 | {"model": "cnn"} | ({"max-examples": 2_000} if bench.quick else {})
    yield _against_plain(bench, "w2-round", keys, block=1 if bench.quick else 2, rounds=10, target=1.0)


def _against_plain(
    bench: Bench, name: str, keys: dict[str, Any], *, block: int, rounds: int, target: float
) -> Row:
    """Run blocks of Bouquet's and of the plain loop's rounds in turns, so that noise hits both."""
    blocks = blocks_for(bench.rounds or (1 if bench.quick else rounds), block, bench.quick)
    with patch.dict(os.environ, bench.env), PlainLoop(keys) as loop:
        with bench.held(name, keys, block, blocks) as ours:
            sides = in_turns([ours.block, lambda: sum(loop.run(block))], blocks)
        rows = ours.rows
    seconds = [[s / block for s in side] for side in sides]
    theirs = loop.accuracies[rows[-1]["round"] - 1]
    detail = f"blocks of {block} rounds; accuracy {accuracy(rows)}, plain {theirs:.4f}"
    return paired(name, "a round : plain loop, 2 processes x 1 thread", *seconds, target, detail=detail)


# ------------------------------------------------------------------------------------ population


def population(bench: Bench) -> Iterator[Row]:
    """Compare rounds of ten of a million clients with ten of a hundred."""
    few, many = _populations(bench, 10, 100)
    yield _population(bench, "population-10", 10, few, many, block=1 if bench.quick else 10, rounds=50)


def population_1000(bench: Bench) -> Iterator[Row]:
    """Compare rounds of a thousand of a million clients with a thousand of a thousand."""
    few, many = _populations(bench, 1_000, 1_000)
    yield _population(bench, "population-1000", 1_000, few, many, block=1 if bench.quick else 3, rounds=15)


def _populations(bench: Bench, cohort: int, few: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys of the small and of the large population."""
    examples = 600 if cohort == 10 else 20  # few, so that a round of a thousand clients ends soon
    keys = W1 | {"partition": "bootstrap", "examples-per-client": examples}
    many = 10_000 if bench.quick else MANY
    small, large = ({"num-clients": n, "fraction-train": cohort / n} for n in (few, many))
    return keys | small, keys | large


def _population(
    bench: Bench,
    name: str,
    cohort: int,
    few: dict[str, Any],
    many: dict[str, Any],
    *,
    block: int,
    rounds: int,
) -> Row:
    blocks = blocks_for(bench.rounds or (1 if bench.quick else rounds), block, bench.quick)
    with bench.held(name, many, block, blocks) as large, bench.held(name, few, block, blocks) as small:
        sides = in_turns([large.block, small.block], blocks)
        asked = {side.rows[-1]["asked"] for side in (large, small)}
    assert asked == {cohort}, asked
    seconds = [[s / block for s in side] for side in sides]
    what = f"a round with {cohort:,} of {many['num-clients']:,} clients : of {few['num-clients']:,}"
    return paired(name, what, *seconds, 1.1, detail=f"{many['examples-per-client']} examples a client")


def population_memory(bench: Bench) -> Iterator[Row]:
    """Subtract the peak memory of a small population from that of a large one, all processes together."""
    for cohort, few in ((10, 100), (1_000, 1_000)):
        peaks: list[list[Outcome]] = []
        pair = _populations(bench, cohort, few)
        for _ in range(bench.repetitions):
            three = {"num-server-rounds": bench.rounds or 3}
            peaks.append([bench.simulate("population-memory", keys | three, memory=True) for keys in pair])
        small, large = ([o.pss / 1e6 for o in side] for side in zip(*peaks, strict=True))
        what = f"peak with {pair[1]['num-clients']:,} clients - {few:,}, cohort {cohort:,}"
        wall = " : ".join(f"{median(o.wall for o in side):.3g}" for side in zip(*peaks, strict=True))
        detail = f"all processes, PSS; whole commands {wall} s (small : large)"
        yield growth(f"population-memory-{cohort}", what, large, small, 100.0, detail)


def state_memory(bench: Bench) -> Iterator[Row]:
    """Subtract the peak memory of FedAvg from that of FedALA, whose clients all keep a model and weights."""
    clients = 20 if bench.quick else 1_000
    keys = W1 | {"num-clients": clients, "fraction-train": 1.0, "num-server-rounds": bench.rounds or 3}
    keys |= {"local-test-fraction": 0.1, "fraction-evaluate": 0.01}
    peaks: list[list[Outcome]] = []
    for _ in range(bench.repetitions):
        pair = ({"algorithm": "fedavg"}, {"algorithm": "fedala"})
        peaks.append([bench.simulate("state-memory", keys | own, memory=True) for own in pair])
    without, kept = ([o.pss / 1e6 for o in side] for side in zip(*peaks, strict=True))
    what = f"peak with FedALA - FedAvg, {clients:,} clients that all keep state"
    yield growth("state-memory", what, kept, without, 200.0, "all processes, PSS; 2nn, 3 rounds, C = 1")


# ---------------------------------------------------------------------------------------- tables


def threads(bench: Bench) -> Iterator[Row]:
    """Compare actors x threads on this machine's CPUs with one actor of one thread."""
    fit = [(a, t) for a, t in ACTORS_THREADS if max(a, t) <= cpus()]
    for a, t in ACTORS_THREADS:
        if (a, t) not in fit:
            yield left_open(f"threads-{a}x{t}", f"this machine has {cpus()} CPUs")
    options = {f"threads-{a}x{t}": ({"threads": t}, ("--nodes", str(a))) for a, t in fit}
    yield from _table(bench, options, "W1 round, actors x threads")


def stack(bench: Bench) -> Iterator[Row]:
    """Compare clients stacked into one program with one client at a time."""
    if "stack" not in {k.key for k in knobs()}:
        for n in STACKS:
            yield left_open(f"stack-{n}", "no run-config key stack")
        return
    options: dict[str, tuple[dict[str, Any], tuple[str, ...]]]
    options = {f"stack-{n}": ({"stack": n}, ()) for n in STACKS}
    yield from _table(bench, options, "W1 round, clients in one program")


def gpu(bench: Bench) -> Iterator[Row]:
    """Compare a hundred clients as one program on a GPU with one at a time there."""
    block = 1
    blocks = blocks_for(1, block, bench.quick)
    for model, target in ON_GPU.items():
        name = f"gpu-{model}"
        if not torch.cuda.device_count():
            yield left_open(name, "no GPU")
            continue
        keys = W1 | {"model": model, "fraction-train": 1.0, "device": "cuda"}
        env = {k: v for k, v in bench.env.items() if k != "CUDA_VISIBLE_DEVICES"}
        runs = [
            Held(
                bench.folder(f"{name}-{n}"),
                keys | {"stack": n},
                env,
                block=block,
                blocks=blocks,
                more=("--nodes", "1"),
            )
            for n in (0, 1)
        ]
        with runs[0] as ours, runs[1] as theirs:
            sides = in_turns([ours.block, theirs.block], blocks)
            words = f"accuracy {accuracy(ours.rows)}, one at a time {accuracy(theirs.rows)}"
        what = f"{model}, a round of 100 clients as one program : one at a time, one GPU"
        yield paired(name, what, *sides, target, detail=words)


def coded(bench: Bench) -> Iterator[Row]:
    """Compare rounds whose messages carry codes with rounds of plain messages."""
    yield from _table(bench, CODED, "W1 round, codes", {"codec-stc": 1.1})


def _table(
    bench: Bench,
    options: Mapping[str, tuple[dict[str, Any], tuple[str, ...]]],
    what: str,
    wanted: Mapping[str, float] = MappingProxyType({}),
) -> Iterator[Row]:
    """Run W1 with each option in turns; the ratios are to the first."""
    block = 1 if bench.quick else 5
    blocks = blocks_for(bench.rounds or (1 if bench.quick else 25), block, bench.quick)
    with ExitStack() as stack:
        runs = []
        for name, (keys, more) in options.items():
            runs.append(stack.enter_context(bench.held(name, W1 | keys, block, blocks, *more)))
        sides = in_turns([each.block for each in runs], blocks)
        words = [accuracy(each.rows) for each in runs]
    seconds = [[s / block for s in side] for side in sides]
    first = next(iter(options))
    for name, side, word in zip(options, seconds, words, strict=True):
        detail = f"{short(median(side))} s a round; accuracy {word}"
        yield paired(name, f"{what}: {name} : {first}", side, seconds[0], wanted.get(name), detail=detail)
