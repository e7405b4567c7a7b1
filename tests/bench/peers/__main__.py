"""``python -m tests.bench.peers``: W1 in every simulator that installs, the plain loops and Bouquet."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tests.bench import readings, startup
from tests.bench.data import mnist_folder
from tests.bench.peers import install
from tests.bench.processes import Outcome, run
from tests.bench.readings import median, short
from tests.bench.rounds import W1, Bench

SKIP = 3  # first rounds that do not count as steady
NOISE = 0.01  # of the accuracy, around the median of all
MEMORY_ROUNDS = 3
Start = Callable[[Bench, int, bool], Outcome]


@dataclass
class Peer:
    """One line of the table.

    Attributes:
        title: What it is called there.
        start: Runs it for so many rounds, with the memory measured or not.
        venv: The environment that it needs; "" = ours.
        runs: The timed runs.
        peak: The run whose memory was measured.
        error: Why it could not run.
        version: Of what is installed in `venv`.
    """

    title: str
    start: Start
    venv: str = ""
    runs: list[Outcome] = field(default_factory=list)
    peak: Outcome | None = None
    error: str = ""
    version: str = ""

    @property
    def accuracy(self) -> float:
        """Median of the accuracies after the last round."""
        return median(o.accuracy for o in self.runs)

    @property
    def round_s(self) -> float:
        """Median of the seconds of a steady round, over the runs."""
        return median(self.samples)

    @property
    def samples(self) -> list[float]:
        """The median of each run."""
        return [median(o.seconds(SKIP) or o.seconds(0)) for o in self.runs]


def _script(peer: str, module: str, *launcher: str) -> Start:
    def start(bench: Bench, rounds: int, memory: bool) -> Outcome:
        python = install.python_of(bench.work, peer)
        folder = bench.folder(f"peer-{peer}")
        words = [str(python), *launcher, "-m", module, str(bench.data), str(folder), str(rounds)]
        return run(words, folder, bench.env, memory=memory)

    return start


def _bouquet(bench: Bench, rounds: int, memory: bool) -> Outcome:
    return bench.simulate("peer-bouquet", W1 | {"num-server-rounds": rounds}, memory=memory)


def _plain(workers: int) -> Start:
    return lambda bench, rounds, memory: startup.plain(bench, rounds, workers=workers, memory=memory)


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def peers() -> dict[str, Peer]:
    """Return all of them, Bouquet and the plain loops first."""
    here = "tests.bench.peers.w1_"
    return {
        "bouquet": Peer("Bouquet", _bouquet),
        "r2": Peer("R2: plain loop, 2 processes", _plain(2)),
        "r": Peer("R: plain loop, 1 process", _plain(1)),
        "fedjax": Peer("FedJAX", _script("fedjax", f"{here}fedjax"), "fedjax"),
        "pfl": Peer("pfl-research", _script("pfl", f"{here}pfl"), "pfl"),
        "pfl-2": Peer("pfl-research, 2 processes", _script("pfl", f"{here}pfl", *TORCHRUN), "pfl"),
        "fluke": Peer("fluke", _script("fluke", f"{here}fluke"), "fluke"),
        "fedlab": Peer("FedLab", _script("fedlab", f"{here}fedlab"), "fedlab"),
        "flower": Peer("Flower, stock, 2 actors", _script("flower", "tests.bench.stock"), "flower"),
    }


Name = StrEnum("Name", list(peers()))  # type: ignore[misc]


def main(
    only: Annotated[list[Name] | None, typer.Option(help="Only this; may be repeated.")] = None,
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of a run.")] = 20,
    repeat: Annotated[int, typer.Option(min=1, help="Timed runs of each.")] = 5,
    quick: Annotated[
        bool, typer.Option("--quick", help="One run of 5 rounds each: does it all run?")
    ] = False,
    work: Annotated[Path, typer.Option(help="Results, environments, data, runs.")] = Path("runs/bench"),
) -> None:
    """Run W1 in each, in turns, and write peers.json into the folder of --work (quick-peers.json if quick).

    What cannot be installed or run is a line that says why. The first time takes minutes to install.
    """
    console = Console()
    rounds, repeat = (5, 1) if quick else (rounds, repeat)
    data, kind = mnist_folder(work.resolve())
    bench = Bench(work.resolve(), data)
    all_of_them = peers()
    chosen = {name.value: all_of_them[name.value] for name in only or list(Name)}
    for peer in chosen.values():
        if peer.venv:
            console.print(f"install {peer.venv} ...")
            _try(peer, lambda peer=peer: install.install(bench.work, peer.venv))
            peer.version = install.version_of(bench.work, peer.venv)
    before = readings.now()
    if words := readings.warning(before["busy"]):
        console.print(f"[red]{words}")
    for turn in range(repeat + 1):
        for name, peer in chosen.items():
            console.print(f"{name}: {'memory' if turn == repeat else f'run {turn + 1} of {repeat}'} ...")
            if turn < repeat:
                _try(peer, lambda peer=peer: peer.runs.append(peer.start(bench, rounds, False)))
            else:
                _try(peer, lambda peer=peer: setattr(peer, "peak", peer.start(bench, MEMORY_ROUNDS, True)))
    about = readings.machine() | {"data": kind, "quick": quick, "rounds": rounds} | before
    objects = describe(chosen, check=not quick)
    out = work / f"{'quick-' if quick else ''}peers.json"
    text = json.dumps([each | {"about": about} for each in objects], indent=1)
    out.write_text(text + "\n", encoding="utf-8")
    show(console, objects)
    console.print(f"wrote {out}")


def _try(peer: Peer, call: Callable[[], object]) -> None:
    """Call unless the peer failed before; keep the reason if it fails now."""
    if peer.error:
        return
    try:
        call()
    except Exception as error:  # a line of the table, no end of the others
        peer.error = f"{type(error).__name__}: {error}"


def describe(chosen: dict[str, Peer], *, check: bool) -> list[dict[str, Any]]:
    """Return an object per peer; one whose accuracy differs from the others' is void."""
    middle = median(p.accuracy for p in chosen.values() if p.runs)
    base = {name: chosen[name].round_s for name in ("r", "r2", "bouquet") if name in chosen}
    objects = []
    for name, peer in chosen.items():
        void = ""
        if check and peer.runs and abs(peer.accuracy - middle) > NOISE:
            void = f"accuracy {peer.accuracy:.4f} where the median of all is {middle:.4f}"
        numbers = {
            "round_s": peer.round_s,
            **{f"round_to_{each}": peer.round_s / seconds for each, seconds in base.items()},
            "round_min_s": min(peer.samples, default=math.nan),
            "round_max_s": max(peer.samples, default=math.nan),
            "until_round_1_s": median(o.until_round_1 for o in peer.runs),
            "wall_s": median(o.wall for o in peer.runs),
            "pss_mb": peer.peak.pss / 1e6 if peer.peak else math.nan,
            "rss_mb": peer.peak.rss / 1e6 if peer.peak else math.nan,
            "accuracy": peer.accuracy,
        }
        known = {k: v if math.isfinite(v) else None for k, v in numbers.items()}
        words = {"void": void, "error": peer.error, "runs": len(peer.runs)}
        objects.append({"name": name, "title": peer.title, **known, **words, "version": peer.version})
    return objects


def show(console: Console, objects: list[dict[str, Any]]) -> None:
    """Print a table."""
    heads = ("s a round", "to R2", "to R", "round 1 after, s", "whole, s", "MB", "RSS sum, MB", "accuracy")
    keys = ("round_s", "round_to_r2", "round_to_r", "until_round_1_s", "wall_s", "pss_mb", "rss_mb")
    table = Table("W1", *heads, "note", title="The same work in other simulators")
    for each in objects:
        cells = ["-" if each.get(k) is None else short(each[k]) for k in keys]
        cells.append("-" if each["accuracy"] is None else f"{each['accuracy']:.4f}")
        note = each["error"] and f"could not run: {each['error'].splitlines()[-1][-160:]}"
        note = note or (each["void"] and f"void: {each['void']}")
        table.add_row(f"{each['title']} {each['version']}", *cells, note.replace("[", r"\["))
    console.print(table)
    for each in objects:
        if each["error"]:
            console.print(f"{each['title']} could not run:\n{each['error']}", markup=False)


if __name__ == "__main__":
    typer.run(main)
