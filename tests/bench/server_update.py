"""``server-update``: a rule's step on 50 clients of 1,663,370 parameters against one read of the same memory.

``python -m tests.bench.server_update`` prints a row for every rule. What is timed is the
pure ``server_update`` alone; folding the replies is the benchmark ``fold``. "The same memory" is what the
rule is given: the state's arrays and the reduced ones, which for rules that need each client are 50 models,
333 MB, spooled as in a round. One pass is the sum of each array, in NumPy on one thread. Memory is the peak
of what NumPy allocates during the step (tracemalloc); pages of the spool are not in it.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer

from strategies import STRATEGIES, Strategy
from strategies.engine.state import AggregatedReplies, ServerState
from strategies.rules.fsvrg import FSVRG, FSVRGSparse
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.entry import Algorithm
from task.numerics.arrays import Arrays
from task.numerics.collect import Collect, release
from task.resolve.read import read_config
from task.wire.layouts import Forms
from tests.bench import readings
from tests.bench.folding import CNN, SMALL
from tests.bench.rounds import Bench
from tests.support.horizontal import HORIZONTAL

CLIENTS = 50


def _is_measured(entry: Algorithm) -> bool:
    """Return whether a round's replies can be made up from the entry alone, and the step is of models."""
    phases = not entry.phases or issubclass(STRATEGIES[entry.rule].rule_type, FSVRG | FSVRGSparse)
    return bool(entry.up) and phases and not entry.asynchronous and entry.up[0].layout.of != "shared-table"


RULES = sorted(n for n, entry in HORIZONTAL.items() if entry.rule == n and _is_measured(entry))
TARGETS = {"fedatt": 6.0, "geometric-median": 6.0, "krum": 10.0, "multi-krum": 10.0, "bulyan": 10.0}


@dataclass(frozen=True)
class Row:
    """One rule.

    Attributes:
        name: Of the catalogue.
        ratio: Time of ``server_update`` over time of one pass; medians.
        target: At most so much; None = no target (median, trimmed mean).
        update_ms: Milliseconds of ``server_update``.
        pass_ms: Milliseconds of one pass.
        given_mb: Size of what the rule is given.
        peak_mb: Most that the step allocates, its result included.
    """

    name: str
    ratio: float
    target: float | None
    update_ms: float
    pass_ms: float
    given_mb: float
    peak_mb: float


def server_update(quick: bool = False, only: str = "", repeat: int = 5) -> list[Row]:
    """Measure every rule.

    Args:
        quick: A small model and few clients: does it all run?
        only: Only this rule; "" = all.
        repeat: Steps that count, after one that does not.
    """
    shapes, clients = (SMALL, 8) if quick else (CNN, CLIENTS)
    return [_measure(ALGORITHMS[n], shapes, clients, repeat) for n in RULES if only in ("", n)]


def server_updates(bench: Bench) -> Iterator[readings.Row]:
    """Measure every rule, as rows of ``make bench``."""
    for row in server_update(quick=bench.quick, repeat=1 if bench.quick else bench.repeat):
        what = f"server_update of {row.name}, {row.given_mb:.0f} MB : reading them once"
        detail = f"medians of {bench.repeat}; allocates {row.peak_mb:.3g} MB"
        sides = [row.update_ms], [row.pass_ms]
        yield readings.paired(f"server-update-{row.name}", what, *sides, row.target, "ms", detail)


def target_of(entry: Algorithm) -> float | None:
    """Return the rule's target: 2 for rules of means and sums, others by name."""
    if any(f.reduce == "collect" for f in entry.up):
        return TARGETS.get(entry.name)
    return 2.0


def _measure(entry: Algorithm, shapes: dict[str, tuple[int, ...]], clients: int, repeat: int) -> Row:
    strategy, state, reduced = given(entry, shapes, clients)

    def step() -> ServerState:
        made: ServerState = type(strategy).update(state, reduced, strategy.config)[0]
        return made

    arrays = [a for field in vars(state).values() if isinstance(field, dict) for a in field.values()]
    arrays += [a for field in reduced.arrays.values() for a in field.values()]

    def once() -> None:
        for a in arrays:
            for row in a if a.ndim > 1 else [a]:
                row.sum()
            release(a)

    times: dict[str, list[float]] = {"step": [], "once": []}
    for i in range(repeat + 1):
        for side, call in (("step", step), ("once", once)):
            start = time.perf_counter()
            call()
            if i:
                times[side].append((time.perf_counter() - start) * 1e3)
    tracemalloc.start()
    step()
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    update, read = (float(np.median(times[side])) for side in ("step", "once"))
    size = sum(a.nbytes for a in arrays) / 1e6
    return Row(entry.name, update / read, target_of(entry), update, read, size, peak)


def given(
    entry: Algorithm, shapes: dict[str, tuple[int, ...]], clients: int
) -> tuple[Strategy, ServerState, AggregatedReplies]:
    """Return a rule with a state and a round's replies, made up from its catalogue entry alone."""
    strategy = STRATEGIES[entry.rule](read_config({"algorithm": entry.name}))
    # A matrix first: some rules treat the first layer's columns as features.
    model = _random(dict(sorted(shapes.items(), key=lambda item: len(item[1]) != 2)), 0)
    rule = strategy.rule
    state, reduced = rule.initial_state(model, tuple(model)), _replies(entry, model, clients)
    phases = [_replies(contract, model, clients) for contract in entry.phases.values()]
    # What a state holds of earlier rounds (momentum, control variates) is there, and is not zero.
    for earlier in (True, False):
        for replies in phases:
            assert isinstance(rule, FSVRG | FSVRGSparse)
            state = rule.take_in(state, replies)
        if earlier:
            state, _ = rule.update(state, reduced, strategy.config)
    return strategy, state, reduced


def _replies(entry: Algorithm, model: Arrays, clients: int) -> AggregatedReplies:
    names = tuple(f"client-{k:02}" for k in range(clients))
    forms = Forms(model, tuple(model), clients)
    arrays: dict[str, Arrays] = {}
    for f in entry.up:
        like = forms.like(f.layout)
        if f.reduce == "collect":
            stack = Collect(like)
            for k, name in enumerate(names):
                stack.add(_near(like, k), 1, name)
            arrays[f.name] = stack.result()
        else:
            arrays[f.name] = _near(like, 0)
    rng = np.random.default_rng(1)
    scalars = {s.name: (1 + rng.random(clients)).tolist() for s in (*entry.up_scalars,)}
    scalars["train-loss"] = (1 + rng.random(clients)).tolist()
    counts = np.full(clients, 600, np.int64)
    return AggregatedReplies(
        arrays, names, counts, scalars, 1, 0.1, tuple(model), population=2 * clients, seconds=1.0, bytes=1,
        asked=clients, names=names, reduce={s.name: s.reduce for s in entry.up_scalars},
    )  # fmt: skip


def _random(shapes: dict[str, tuple[int, ...]], seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def _near(like: Arrays, seed: int) -> Arrays:
    """Return arrays of the same shapes and dtypes, close to these."""
    rng = np.random.default_rng(seed + 10)
    return {
        n: a + (0.01 * rng.standard_normal(a.shape, np.float32)).astype(a.dtype) if a.dtype.kind == "f" else a
        for n, a in like.items()
    }


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Small model: does it all run?")] = False,
    only: Annotated[str, typer.Option(help="Only this rule.")] = "",
    repeat: Annotated[int, typer.Option(min=1, help="Steps that count.")] = 5,
) -> None:
    """Time server_update of every rule against one pass over the same memory; none of it is asserted."""
    print(f"{'rule':<18} {'ratio':>6} {'target':>6} {'update':>10} {'one pass':>10} {'given':>9} {'peak':>9}")
    for name in RULES:
        for row in server_update(quick, name, repeat) if only in ("", name) else []:
            target = f"{row.target:g}" if row.target else "-"
            print(
                f"{row.name:<18} {row.ratio:>6.2f} {target:>6} {row.update_ms:>7.1f} ms "
                f"{row.pass_ms:>7.1f} ms {row.given_mb:>6.1f} MB {row.peak_mb:>6.1f} MB",
                flush=True,
            )


if __name__ == "__main__":
    typer.run(main)
