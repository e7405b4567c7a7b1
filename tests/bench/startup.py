"""``first-round`` and ``memory``: what it costs to get going, against Flower's stock quickstart app."""

from __future__ import annotations

import sys

from tests.bench.processes import Outcome, bouquet, environment, run
from tests.bench.readings import Reading, median, ratio
from tests.bench.rounds import W1, Bench

MEGABYTE = 1e6


def stock(bench: Bench, rounds: int, *, memory: bool = False) -> Outcome:
    """Run the stock app."""
    folder = bench.folder("stock")
    command = [sys.executable, "-m", "tests.bench.stock", str(bench.data), str(folder), str(rounds)]
    return run(command, folder, environment(bench.work, bench.data), memory=memory)


def first_round(bench: Bench) -> list[Reading]:
    """Compare the time from the start of the command to the end of round 1, in turns."""
    repeat = 1 if bench.quick else bench.repeat
    keys = W1 | {"num-server-rounds": 1}
    bench.simulate("first-round-warm", keys)  # data and partition in the cache, byte code compiled
    ours, theirs, demo = [], [], []
    for _ in range(repeat):
        ours.append(bench.simulate("first-round", keys))
        theirs.append(stock(bench, 1))
        folder = bench.folder("demo")
        command = bouquet(folder, {}, "--recipe", "demo")
        demo.append(run(command, folder, environment(bench.work, bench.data)))
    t_ours, t_theirs, t_demo = ([o.until_round_1 for o in side] for side in (ours, theirs, demo))
    wall = f"whole commands {median(o.wall for o in ours):.3g} s : {median(o.wall for o in theirs):.3g} s"
    whole = f"20 rounds and the report in {median(o.wall for o in demo):.3g} s"
    what = "to the end of round 1 : stock app"
    return [
        ratio("first-round", f"W1 {what}", t_ours, t_theirs, 0.6, detail=wall),
        ratio("first-round", f"make demo {what}", t_demo, t_theirs, None, detail=whole),
    ]


def memory(bench: Bench) -> list[Reading]:
    """Compare the peak of all processes of a run of a few rounds; one run each, as it varies little."""
    rounds = bench.rounds or 5
    ours = bench.simulate("memory", W1 | {"num-server-rounds": rounds}, memory=True)
    theirs = stock(bench, rounds, memory=True)
    detail = f"{ours.processes} and {theirs.processes} processes, sampled 5 times a second"
    sizes = [[o.peak / MEGABYTE] for o in (ours, theirs)]
    return [ratio("memory", "peak of all processes : stock app", *sizes, None, "MB", detail)]
