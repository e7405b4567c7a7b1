"""``python -m tests.bench``: run the benchmarks, print a table, append to runs/bench.jsonl."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tests.bench import folding, rounds, startup
from tests.bench.data import mnist_folder
from tests.bench.readings import Reading, append, busy, machine, show

BENCHMARKS: dict[str, Callable[[rounds.Bench], list[Reading]]] = {
    "first-round": startup.first_round,
    "fold": folding.fold,
    "memory": startup.memory,
    "population": rounds.population,
    "w1-round": rounds.w1_round,
    "w2-round": rounds.w2_round,
}
Name = StrEnum("Name", list(BENCHMARKS))  # type: ignore[misc]


def main(
    only: Annotated[list[Name] | None, typer.Option(help="Only this; may be repeated.")] = None,
    rounds_: Annotated[int, typer.Option("--rounds", help="Rounds that count; 0 = each its own.")] = 0,
    repeat: Annotated[int, typer.Option(min=1, help="Repetitions where whole commands are timed.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Little work: does it all run?")] = False,
    out: Annotated[Path, typer.Option(help="JSON lines are appended here.")] = Path("runs/bench.jsonl"),
    work: Annotated[Path, typer.Option(help="Data, caches and runs.")] = Path("runs/bench"),
) -> None:
    """Time Bouquet as ratios within this run; every number with its target, none asserted.

    All of it takes about twelve minutes on two cores; the machine should have nothing else to do.
    """
    console = Console()
    before = machine()
    shutil.rmtree(work / "runs", ignore_errors=True)  # of the last time
    data, kind = mnist_folder(work.resolve())
    cpus = (
        f"{before['cpus']} CPUs, {before['busy_percent']:.0f} % busy, {before['torch_threads']} torch threads"
    )
    console.print(f"data: {kind}; {cpus}, load {before['load']}, torch {before['torch']}")
    if warning := busy(before["busy_percent"]):
        console.print(f"[red]{warning}")
    bench = rounds.Bench(work.resolve(), data, rounds_, repeat, quick)
    readings: list[Reading] = []
    for name in only or list(Name):
        console.print(f"{name.value} ...")
        readings += (found := BENCHMARKS[name.value](bench))
        append(out, found, {**before, "load_after": list(os.getloadavg()), "data": kind, "quick": quick})
    show(console, readings)
    console.print(f"appended to {out}")


if __name__ == "__main__":
    typer.run(main)
