"""``parameters``: memory and CPU time for each further parameter of a model, against a plain loop.

Both are the growth from a small model to a large one, so that libraries and data do not count. CPU time is
that of all processes, so that a busy machine changes it little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from tests.bench.plain import command as plain_command
from tests.bench.processes import Outcome, bouquet, run
from tests.bench.readings import Row, median, paired, short
from tests.bench.rounds import Bench

CLIENTS, ROUNDS, DEPTH = 10, 2, 8
SIZES, QUICK = (5_000_000, 25_000_000), (50_000, 200_000)
MEMORY_TARGET, CPU_TARGET = 36.7, 20.0  # bytes; ns
ROWS = ("parameters-memory", "parameters-cpu")
KEYS: dict[str, Any] = {
    "dataset": "digits",
    "max-examples": 20 * CLIENTS,
    "num-clients": CLIENTS,
    "partition": "iid",
    "local-test-fraction": 0.0,
    "fraction-train": 1.0,
    "local-epochs": 1,
    "batch-size": 20,
    "learning-rate": 0.01,
    "num-server-rounds": ROUNDS,
    "progress": "none",
}


def _perceptron(parameters: int) -> Callable[[tuple[int, ...], int], nn.Module]:
    """Return the maker of a perceptron with `DEPTH` equal layers of so many weights together."""
    width = round((parameters / DEPTH) ** 0.5)

    def make(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten(), nn.LazyLinear(width)]
        for _ in range(DEPTH):
            layers += [nn.ReLU(), nn.Linear(width, width)]
        return nn.Sequential(*layers, nn.Identity(), nn.Linear(width, num_classes))

    return make


# Named by the run-config key "model"; the module `Identity` keeps them from being stacked.
MODELS = {size: _perceptron(size) for size in (*SIZES, *QUICK, 100_000_000, 10_000_000)}
small, large, tiny, less, huge, ten = MODELS.values()
NAMES = dict(zip(MODELS, ("small", "large", "tiny", "less", "huge", "ten"), strict=True))


def keys_of(size: int) -> dict[str, Any]:
    """Return the keys of a run with a model of this size."""
    return KEYS | {"model": f"tests.bench.parameters:{NAMES[size]}"}


def parameters(bench: Bench) -> Iterator[Row]:
    """Compare the growth with the model of a run and of the plain loop, each with two workers, in turns."""
    sizes = QUICK if bench.quick else SIZES
    sides: dict[str, Callable[[int], Outcome]] = {
        "ours": lambda size: _bouquet(bench, keys_of(size)),
        "plain": lambda size: _plain(bench, keys_of(size)),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(1 if bench.quick else 3):
        for name, side in sides.items():
            few, many = (side(size) for size in sizes)
            more = sizes[1] - sizes[0]
            found[name].append(((many.pss - few.pss) / more, (many.cpu - few.cpu) * 1e9 / more / UPDATES))
    for i, (name, what, unit, target) in enumerate(
        (
            (ROWS[0], "peak PSS of all processes for each parameter", "B", MEMORY_TARGET),
            (ROWS[1], "CPU time for each parameter and client update", "ns", CPU_TARGET),
        )
    ):
        ours, theirs = ([pair[i] for pair in found[side]] for side in ("ours", "plain"))
        ratio = f"{short(median(ours))} {unit} (wanted <= {target:g}) : {short(median(theirs))} {unit}"
        words = f"{what}, {CLIENTS} clients : plain loop"
        yield paired(name, words, ours, theirs, None, unit, ratio)


UPDATES = CLIENTS * ROUNDS


def _bouquet(bench: Bench, keys: Mapping[str, Any]) -> Outcome:
    folder = bench.folder("parameters")
    return run(bouquet(folder, keys), folder, bench.env, memory=True)


def _plain(bench: Bench, keys: Mapping[str, Any]) -> Outcome:
    folder: Path = bench.folder("parameters-plain")
    return run(plain_command(folder, keys, ROUNDS), folder, bench.env, memory=True)
