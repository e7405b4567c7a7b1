"""``python -m tests.bench``: run the benchmarks, print a table, write runs/bench/bench.json and bench.png."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tests.bench import (
    codecs,
    deployed,
    encryption,
    folding,
    parameters,
    patches,
    portable,
    readings,
    rounds,
    scale,
    secagg,
    server_update,
    startup,
    steps,
)
from tests.bench.data import mnist_folder
from tests.bench.readings import Row


@dataclass(frozen=True)
class Benchmark:
    """A function and the rows that it gives."""

    call: Callable[[rounds.Bench], Iterator[Row]]
    rows: tuple[str, ...]


BENCHMARKS: dict[str, Benchmark] = {
    "w1-round": Benchmark(rounds.w1_round, ("w1-round",)),
    "w2-round": Benchmark(rounds.w2_round, ("w2-round",)),
    "steps": Benchmark(steps.steps, steps.ROWS),
    "w1-20-rounds": Benchmark(startup.whole_run, ("w1-20-rounds",)),
    "first-round": Benchmark(startup.first_round, ("first-round-w1", "first-round-demo")),
    "deployed": Benchmark(deployed.deployed, ("deployed-first-round", "deployed-round")),
    "scale": Benchmark(
        scale.scale, ("scale-round", *(f"scale-memory-{role}" for role in scale.SHOWN), "scale-database")
    ),
    "population-link": Benchmark(
        scale.population, ("population-link", "population-link-first", "population-link-memory")
    ),
    "idle-node-memory": Benchmark(scale.idle, ("idle-node-memory",)),
    "population": Benchmark(rounds.population, ("population-10",)),
    "population-1000": Benchmark(rounds.population_1000, ("population-1000",)),
    "population-memory": Benchmark(
        rounds.population_memory, ("population-memory-10", "population-memory-1000")
    ),
    "state-memory": Benchmark(rounds.state_memory, ("state-memory",)),
    "fold": Benchmark(folding.fold, ("fold", "fold-message", "fold-memory")),
    "parameters": Benchmark(parameters.parameters, parameters.ROWS),
    "codecs": Benchmark(codecs.codecs, codecs.ROWS),
    "secagg": Benchmark(secagg.secagg, secagg.ROWS),
    "he": Benchmark(encryption.encryption, encryption.ROWS),
    "coded": Benchmark(rounds.coded, tuple(rounds.CODED)),
    "memory": Benchmark(startup.memory, ("memory",)),
    "server-update": Benchmark(
        server_update.server_updates, tuple(f"server-update-{name}" for name in server_update.RULES)
    ),
    "patches": Benchmark(patches.patches, patches.ROWS),
    "threads": Benchmark(rounds.threads, tuple(f"threads-{a}x{t}" for a, t in rounds.ACTORS_THREADS)),
    "portable": Benchmark(portable.cost, portable.ROWS),
    "stack": Benchmark(rounds.stack, tuple(f"stack-{n}" for n in rounds.STACKS)),
    "gpu": Benchmark(rounds.gpu, tuple(f"gpu-{model}" for model in rounds.ON_GPU)),
}
Name = StrEnum("Name", list(BENCHMARKS))  # type: ignore[misc]


def main(
    only: Annotated[list[Name] | None, typer.Option(help="Only this; may be repeated.")] = None,
    rounds_: Annotated[int, typer.Option("--rounds", help="Rounds that count; 0 = each its own.")] = 0,
    repeat: Annotated[int, typer.Option(min=1, help="Repetitions where whole commands are timed.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Little work: does it all run?")] = False,
    work: Annotated[Path, typer.Option(help="Results, data, caches and runs.")] = Path("runs/bench"),
) -> None:
    """Time Bouquet as ratios within this run; every number with its target, none asserted.

    All of it takes about half an hour on two cores; the machine should have nothing else to do. Results are
    bench.json and bench.png in the folder of --work (quick.json and quick.png with --quick); with --only, the
    other rows of a former run stay. Ends with 1 if something could not run.
    """
    console = Console()
    about = readings.machine()
    shutil.rmtree(work / "runs", ignore_errors=True)  # of the last time
    data, kind = mnist_folder(work.resolve())
    about |= {"data": kind, "quick": quick}
    console.print(f"data: {kind}; {about['cpus']} CPUs, torch {about['torch']}")
    bench = rounds.Bench(work.resolve(), data, rounds_, repeat, quick)
    out = work / f"{'quick' if quick else 'bench'}.json"
    order = [row for each in BENCHMARKS.values() for row in each.rows]
    kept = readings.read(out) if only else []
    rows: list[Row] = []
    for name in only or list(Name):
        before = readings.now()
        busy = readings.warning(before["busy"])
        console.print(f"{name.value} ... {f'[red]{busy}' if busy else ''}")
        rows += readings.stamp(_run(BENCHMARKS[name.value], bench), before)
        rows = readings.merged([], rows, order)
        kept = readings.merged(kept, rows, order)
        readings.write(out, kept, about)
    readings.draw(out.with_suffix(".png"), kept, _title(about, quick))
    readings.show(console, rows)
    console.print(f"wrote {out} and {out.with_suffix('.png')}")
    errors: dict[str, list[str]] = {}
    for row in rows:
        if row.error:
            errors.setdefault(row.error, []).append(row.name)
    for error, names in errors.items():
        console.print(f"{', '.join(names)} could not run:\n{error}", markup=False)
    if errors:
        raise typer.Exit(1)


def _run(benchmark: Benchmark, bench: rounds.Bench) -> list[Row]:
    """Return the rows of a benchmark; those that it fails to give say why."""
    found: list[Row] = []
    try:
        found.extend(benchmark.call(bench))
    except Exception as error:  # whatever it is, the other rows still run
        names = [name for name in benchmark.rows if name not in {row.name for row in found}]
        found += [readings.failed(name, error) for name in names]
    return found


def _title(about: dict[str, object], quick: bool) -> str:
    words = f"{about['cpus']} CPUs, torch {about['torch']}, flwr {about['flwr']}, {about['data']}"
    return f"Bouquet's benchmarks ({words}){', quick: no measurement' if quick else ''}"


if __name__ == "__main__":
    typer.run(main)
