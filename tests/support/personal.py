"""Runs of personalised algorithms over messages and kept files, held against references round by round."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from torch import nn

from client_app.data.node import open_node
from task.catalogue.algorithms import ALGORITHMS
from task.models.layers import BatchNorm1d
from task.numerics.arrays import Arrays
from task.resolve.read import read_config
from tests.reference import mlp
from tests.reference.driver import Reference as Rounds
from tests.reference.driver import Trace, driven
from tests.reference.mlp import Batches, Data, Params
from tests.support.federation import SIZES, Played, batches_of, owners_config, play, read_by, write_owners
from tests.support.grid import LocalGrid
from tests.support.kept import kept_by

SETTINGS: dict[str, Any] = {
    "model": "mlp",
    "num_server_rounds": 3,
    "fraction_train": 0.6,
    "fraction_evaluate": 1.0,
    "local_test_fraction": 0.3,
    "local_epochs": 3,
    "batch_size": 4,
    "learning_rate": 0.2,
    "lr_decay": 0.9,
}
BODY, HEAD = {"1.weight", "1.bias"}, {"3.weight", "3.bias"}
AFTER = frozenset({"test-loss", "test-accuracy", "test-examples"})
Reference = Callable[[list[list[str]]], Trace]
Given = Mapping[str, Any] | Callable[["Case"], Mapping[str, Any]] | None
Score = Callable[[Params, np.ndarray, np.ndarray], tuple[float, float]]


def keys_of(
    folder: Path, algorithm: str, *, owners: Mapping[str, int] = SIZES, **more: Any
) -> dict[str, Any]:
    """Return the config of a run of the owners with a state folder of its own."""
    file = folder / "owners.npz"
    if not file.exists():
        write_owners(file, owners)
    state = tempfile.mkdtemp(dir=folder)
    return read_by(owners_config(file, algorithm=algorithm, state_dir=state, **SETTINGS | more))


@dataclass
class Case:
    """A run, with what a reference needs of it.

    Attributes:
        keys: Its config.
        played: What it left.
        train: Each client's examples.
        test: Each client's own test examples.
        w0: The whole initial model.
    """

    keys: dict[str, Any]
    played: Played
    train: Data
    test: Data
    w0: Params

    @property
    def cohorts(self) -> list[list[str]]:
        """Clients whose work counts, by round: dropped stragglers have none."""
        dropped = self.keys.get("drop-stragglers", False)
        rows = self.played.rows[1:]
        return [[c for c in r["selected"] if not (dropped and c in r["stragglers"])] for r in rows]

    @property
    def common(self) -> dict[str, Any]:
        """Arguments of every reference but data, initial model and cohorts."""
        keys = self.keys
        more = {"batches": self.batches(), "epochs": keys.get("local-epochs", 1)}
        return more | {"lr": keys["learning-rate"], "lr_decay": keys["lr-decay"]}

    def batches(self, *, stragglers: bool = True) -> Batches:
        """Return the batches that the run drew, from the seeds alone; "x again" draws those of x.

        The references do not know stragglers: the passes that those leave out at the end of a phase are
        empty, and the next phase goes on with what they draw next.
        """
        names, full = list(self.played.names), self.keys.get("local-epochs", 1)
        sizes = {c: len(y) for c, (_, y) in self.train.items()}
        drawn = batches_of(self.keys["seed"], names, sizes, self.keys.get("batch-size", 0))
        told = self.played.epochs() if stragglers else {}

        def batches(t: int, k: str, draw: int) -> list[np.ndarray]:
            phase, i = divmod(draw, full)
            client = k.removesuffix(" again")
            epochs = told.get((t, client)) or full
            return drawn(t, names.index(client), phase * epochs + i) if i < epochs else []

        return batches

    def kept(self) -> dict[str, Arrays]:
        return kept_by(self.keys, self.played, "personal")

    def lines(self, phase: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """Yield (round, client, metrics) of ``clients.jsonl``, with the number of examples."""
        for line in self.played.keep.clients:
            if line["phase"] == phase:
                yield line["round"], line["name"], line["metrics"] | {"examples": line["examples"]}


def case_of(folder: Path, algorithm: str, *, nodes: int = 1, grid: Any = LocalGrid, **more: Any) -> Case:
    """Run the owners' federation."""
    keys = keys_of(folder, algorithm, **more)
    played = play(keys, nodes=nodes, grid_type=grid)
    assert [row["quarantined"] for row in played.rows] == [[]] * len(played.rows)
    node = open_node(read_config(keys), {})
    train, test = (
        {c: cast(Any, tuple(a.numpy() for a in node.data(c, part))) for c in played.names}
        for part in ("train", "test")
    )
    return Case(keys, played, train, test, dict(node.initial()))


def close(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray], tolerance: float = 2e-5) -> bool:
    """Return whether models have the same names and, relative to each tensor, the same numbers."""
    assert set(got) == set(want)
    off = {n: np.abs(got[n] - want[n]).max() / max(np.abs(want[n]).max(), 1e-3) for n in want}
    return max(off.values(), default=0.0) <= tolerance


def score(w: Params, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return loss and accuracy."""
    scores = mlp.scores(w, x)
    return mlp.cross_entropy(scores, y)[0], float((scores.argmax(1) == y).mean())


def knobs_of(kind: type[Rounds], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reference's fields from a run's config: ``x.some-knob`` or ``some-knob`` is ``some_knob``."""
    named = {key.rpartition(".")[2].replace("-", "_"): value for key, value in keys.items()}
    renamed = {f: keys[key] for f, key in kind.keys.items() if key in keys}
    return {f.name: v for f in fields(kind) for v in [renamed.get(f.name, named.get(f.name))]
            if v is not None and (f.name in renamed or f.name not in kind.keys)}  # fmt: skip


def reference_of(case: Case, kind: type[Rounds], data: Data | None = None, **given: Any) -> Reference:
    """Return a reference under a run's settings, as a function of the cohorts.

    Args:
        case: The run.
        kind: The reference.
        data: Examples by client, if not those of the run.
        given: Knobs that the run's config has not, and other arguments of ``run``.
    """
    more = case.common | knobs_of(kind, case.keys) | given
    return lambda cohorts: driven(kind)(data or case.train, case.w0, cohorts=cohorts, **more)


def against_reference(
    folder: Path, kind: type[Rounds], given: Given = None, **more: Any
) -> tuple[Case, Trace]:
    """Run a reference's algorithm and hold the app to it, round by round: models, memory and metrics."""
    case = case_of(folder, kind.algorithm, **{"model": kind.model} | more)
    reference = reference_of(case, kind, **(given(case) if callable(given) else given or {}))
    tolerance = kind.tolerance
    trace = reference(case.cohorts)
    size = max(int(case.keys["fraction-train"] * len(case.played.names)), 1)
    if not ALGORITHMS[kind.algorithm].asynchronous:
        assert {len(cohort) for cohort in case.played.selected()} == {size}
    came = {c for cohort in case.cohorts for c in cohort}
    assert not any(close(trace.personal[-1][c], trace.personal[0][c], 1e-2) for c in came)  # they moved
    for t, s in enumerate(trace.at):
        assert close(case.played.arrays(t), s.w, tolerance), t
        if t == 0:
            continue
        for name, want in s.server().items():
            taken = case.played.keep.snapshots[t].arrays
            prefix = f"{name}/"
            got = {n.removeprefix(prefix): a for n, a in taken.items() if n.startswith(prefix)}
            assert close(got, want, tolerance), (t, name)
        row = case.played.rows[t]["metrics"]
        numbers = pytest.approx(s.metrics(), rel=max(1e-5, tolerance), abs=1e-7)
        assert {n: row[n] for n in s.metrics()} == numbers, t
        for name, want in s.told().items():
            got = {c: m[name] for at, c, m in case.lines("train") if at == t}
            assert got == pytest.approx(want, rel=1e-4), (t, name)
    for name, want in trace.at[-1].kept().items():
        kept = kept_by(case.keys, case.played, name)
        assert set(kept) == came, name
        for c, arrays in kept.items():
            assert close(arrays, want[c], tolerance), (name, c)
    if case.keys["fraction-evaluate"] > 0:
        check_metrics(case, trace, reference, kind.score or score)
    return case, trace


def check_metrics(case: Case, trace: Trace, reference: Reference, score: Score = score) -> None:
    """Hold metrics to the reference's models: before, of everybody, and after, of who trained."""
    before = list(case.lines("evaluate"))
    assert len(before) == len(case.played.names) * len(case.cohorts)
    for t, c, got in before:
        x, y = case.test[c]
        assert (got["loss"], got["accuracy"]) == pytest.approx(
            score(trace.personal[t][c], x, y), rel=2e-4, abs=2e-5
        )
        assert got["examples"] == len(y)
    if not ALGORITHMS[case.keys["algorithm"]].personal:
        return
    after = list(case.lines("train"))
    assert [(t, c) for t, c, _ in after] == [(t, c) for t, cs in enumerate(case.cohorts, 1) for c in cs]
    for t, c, got in (line for line in after if line[0] != 2):
        x, y = case.test[c]
        # were it alone in its last round, a client's own model would be the one that it ends with
        own = reference([*case.cohorts[: t - 1], [c]]).personal[t][c]
        assert (got["test-loss"], got["test-accuracy"]) == pytest.approx(score(own, x, y), rel=2e-4, abs=2e-5)
        assert (got["test-examples"], got["examples"]) == (len(y), len(case.train[c][1]))


def told(case: Case, *, hide: Iterable[str] = ()) -> Any:
    """Return what is equal in equal runs: models by round, and each client's metrics but the hidden ones.

    Bytes differ with the nodes, whose messages are for several clients.
    """
    spread = ("bytes_down", "bytes_up")
    lines = [{k: v for k, v in line.items() if k not in spread} for line in case.played.keep.clients]
    return [row["model_sha256"] for row in case.played.rows], [
        line | {"metrics": {m: v for m, v in line["metrics"].items() if m not in hide}} for line in lines
    ]


CASES: dict[str, dict[str, Any]] = {
    "stragglers in a stack": {"stragglers": 0.7},
    "alone, with momentum and decay": {
        "stack": 1, "momentum": 0.7, "weight_decay": 0.02, "learning_rate": 0.05, "nodes": 2,
    },
    "one batch": {"batch_size": 0},
}  # fmt: skip


def small_bn(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(shape[0], 5), BatchNorm1d(5), nn.ReLU(), nn.Linear(5, classes)
    )
