"""Small federations that run for real: natural owners in an npz file, the real ClientApp, rules and wire.

`play` runs one and keeps all that it left; the references of `tests.reference` are then fed the very
cohorts and the very batches of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message

from client_app.app import make_app
from server_app.app import run as run_server
from server_app.run.public_examples import distiller
from strategies import Strategy, strategy_of
from strategies.engine.journal import Journal, Snapshot
from strategies.engine.loop import EvaluateFn
from strategies.stages.mixed_models import set_family
from task.catalogue.user_algorithm import algorithm_of
from task.config.read import as_run_config
from task.datasets import natural_task
from task.datasets.skew import load_partitioned
from task.errors import BouquetError
from task.numerics import seeds
from task.numerics.arrays import Arrays, only, state_of
from task.numerics.seeds import rng_for
from task.resolve.contract import contract_of
from task.resolve.read import fuse, read_config
from task.resolve.run_model import family_of, initial_of, model_of, parts_of
from task.tasks import task_of
from task.wire import messages as wire
from tests.reference import mlp
from tests.support.grid import LocalGrid

Model = tuple[np.ndarray, np.ndarray]
Data = dict[str, tuple[np.ndarray, np.ndarray]]

SIZES = {"anna": 7, "ben": 12, "cleo": 23, "dora": 5, "emil": 16}


class Keep(Journal):
    """Keeps what the round loop tells."""

    def __init__(self, restore: Snapshot | None = None) -> None:
        self.snapshot = restore
        self.rows: list[dict[str, Any]] = []
        self.clients: list[dict[str, Any]] = []
        self.snapshots: list[Snapshot] = []
        self.lines: list[wire.RejectedReply] = []

    def restore(self) -> Snapshot | None:
        return self.snapshot

    def nothing_trained(self, error: BouquetError) -> None:
        """Let short runs end well whose one round is skipped."""

    def quarantined(self, lines: Any) -> None:
        self.lines += lines

    def round_done(self, row: Any, clients: Any, snapshot: Snapshot, clock: Any) -> None:
        self.rows.append(row)
        self.clients += clients
        self.snapshots.append(snapshot)


def write_owners(
    path: Path, sizes: Mapping[str, int] = SIZES, features: int = 4, classes: int = 3, seed: int = 5
) -> Data:
    """Write an npz file whose training rows belong to the named owners, mixed; return each one's rows.

    Each owner's inputs have a mean of their own and labels follow one noisy linear model, so that the
    owners' optima differ.
    """
    rng = np.random.default_rng(seed)
    names = rng.permutation([name for name, n in sizes.items() for _ in range(n)])
    centres = {name: rng.normal(size=features) for name in sorted(sizes)}
    x = np.stack([rng.normal(centres[name], 1.0) for name in names]).astype(np.float32)
    truth = rng.normal(size=(features, classes))
    y = np.argmax(x @ truth + rng.gumbel(size=(len(x), classes)), axis=1)
    np.savez(path, x=x, y=y, client=names, x_test=x[:6], y_test=y[:6])
    return {name: (x[names == name], y[names == name]) for name in sorted(sizes)}


class OneRun(Keep):
    """A journal of a run that is the same after a resume."""

    run_id = "the-run"


@dataclass
class Played:
    """What a run left: per round (0 = before the first) row and model, and the messages."""

    strategy: Strategy
    grid: LocalGrid
    keep: Keep
    names: tuple[str, ...] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = self.keep.rows

    def arrays(self, server_round: int) -> Arrays:
        """Return the model after a round."""
        return arrays_of(self.keep.snapshots[server_round])

    def linear(self, server_round: int) -> Model:
        """Return the ``logistic`` model after a round as (W [d, C], b [C]) in float64."""
        return linear(self.arrays(server_round))

    def messages(self, kind: str = "train") -> list[Message]:
        """Return the messages that went down, of one kind."""
        return [m for m in self.grid.sent if m.metadata.message_type == kind]

    def selected(self) -> list[list[str]]:
        """Return S_t for t = 1, 2, ..."""
        return [row["selected"] for row in self.rows[1:]]

    def epochs(self) -> dict[tuple[int, str], int]:
        """Return the epochs that each client was given, 0 = as configured, by (round, client)."""
        told = {}
        for m in self.messages():
            config = m.content["config"]
            for client, epochs in zip(config["clients"], config["epochs"], strict=True):  # type: ignore
                told[int(config["server-round"]), client] = int(epochs)  # type: ignore
        return told


def arrays_of(snapshot: Snapshot) -> Arrays:
    """Return the model of a snapshot."""
    taken = snapshot.arrays
    return {k.removeprefix("arrays/"): a for k, a in taken.items() if k.startswith("arrays/")}


def read_by(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the keys that the run reads: settings of a test may be meant for all algorithms."""
    return fuse(keys, {})[0]


def linear(arrays: Mapping[str, np.ndarray]) -> Model:
    """Return the ``logistic`` model's arrays as the references' (W [d, C], b [C])."""
    return arrays["1.weight"].T.astype(np.float64), arrays["1.bias"].astype(np.float64)


def play(
    run_config: Mapping[str, Any],
    *,
    nodes: int = 2,
    seed: int = 0,
    tamper: Callable[[int, Message], Message | None] | None = None,
    journal: Keep | None = None,
    grid_type: type[LocalGrid] = LocalGrid,
    evaluate_fn: EvaluateFn | None = None,
) -> Played:
    """Run a federation through a LocalGrid: real messages, real clients, real rule.

    Args:
        run_config: Run-config keys; data set, model and so on.
        nodes: Nodes of one pool, among which the clients are spread.
        seed: Of node ids and order of replies.
        tamper: See `LocalGrid`.
        journal: Takes the rows.
        grid_type: A grid that watches.
        evaluate_fn: Measures models at the server.
    """
    config = read_config(run_config)
    entry = algorithm_of(config.algorithm)
    strategy = strategy_of(entry.rule)(config)
    configs = [{"partition-id": i, "num-partitions": nodes} for i in range(nodes)]
    grid = grid_type(make_app(simulation=True), configs, as_run_config(config), tamper=tamper, seed=seed)
    strategy.engine.register(grid, 0)
    shape, classes = strategy.registry.shape_of_data()
    model = model_of(config, shape, classes)
    parts = parts_of(model, config)
    strategy.engine.full = state_of(model, parts.frozen)
    strategy.engine.fixed = only(state_of(model), parts.frozen)
    registry = strategy.registry
    set_family(strategy.engine, family_of(model, config, shape, registry.width, registry.model))
    if contract_of(config).distils:
        strategy.engine.distil = distiller(config, model, load_partitioned(config)[0], shape)
    keep = journal or Keep()
    strategy.start(
        grid,
        wire.pack_arrays(initial_of(model, config, shape, classes)),
        num_rounds=config.server.num_server_rounds,
        timeout=config.server.round_timeout,
        evaluate_fn=evaluate_fn,
        journal=keep,
        trainable=parts.trainable,
        measures=task_of(config, natural_task(config.data), classes).measures,
    )
    return Played(strategy, grid, keep, tuple(strategy.registry.names))


def in_one_process(
    keys: Mapping[str, Any],
    folder: Path,
    nodes: int = 2,
    grid_type: Callable[..., LocalGrid] = LocalGrid,
    files: Mapping[str, Path] | None = None,
) -> Path:
    """Do a run with all that it writes, on a LocalGrid; return its result folder, which lies in `folder`.

    With `files` there is a node for each, which brings it as its owner's own data; else clients are spread
    over so many nodes.
    """
    if files:
        config = read_config({**keys, "runs-dir": str(folder)})  # where nodes have state, owners say
        owners = [{"client-name": name, "data-path": str(path)} for name, path in files.items()]
        return run_server(grid_type(make_app(), owners, as_run_config(config)), config)
    own = {**keys, "runs-dir": str(folder), "state-dir": str(folder / "state")}
    configs = [{"partition-id": i, "num-partitions": nodes} for i in range(nodes)]
    return run_server(grid_type(make_app(own), configs), read_config(own))


def owners_config(path: Path, **keys: Any) -> dict[str, Any]:
    """Return the run config of a federation of the file's owners; keys with underscores."""
    base = {
        "dataset": "npz",
        "data-path": str(path),
        "partition": "natural",
        "num-clients": 0,
        "local-test-fraction": 0.0,
        "fraction-evaluate": 0.0,
        "model": "logistic",
        "device": "cpu",
        "num-server-rounds": 4,
        "seed": 3,
    }
    return base | {k.replace("__", ".").replace("_", "-"): v for k, v in keys.items()}


def loss_and_gradient(w: Model, x: np.ndarray, y: np.ndarray) -> tuple[float, Model]:
    """Return the loss of a ``logistic`` model in the form of `linear`, and its gradient."""
    loss, g = mlp.loss_and_gradient({"1.weight": w[0].T, "1.bias": w[1]}, x, y)
    return loss, linear(g)


def batches_of(
    seed: int, names: list[str], sizes: Mapping[str, int], batch_size: int
) -> Callable[[int, int, int], list[np.ndarray]]:
    """Return the reference's ``batches``: the index arrays that the run drew, from the seeds alone."""

    def batches(t: int, k: int, epoch: int) -> list[np.ndarray]:
        name, n = names[k], sizes[names[k]]
        if batch_size == 0 or batch_size >= n:
            return [np.arange(n)]
        rng = rng_for(seed, seeds.BATCHES, t, name)
        order = np.arange(n)
        for _ in range(epoch + 1):
            order = rng.permutation(n)
        return [order[i : i + batch_size] for i in range(0, n, batch_size)]

    return batches


def far(got: Model, want: Model) -> float:
    """Return the largest difference of two models, relative to the largest number of `want`."""
    top = max(float(np.abs(a).max()) for a in want)
    return max(float(np.abs(a - b).max()) for a, b in zip(got, want, strict=True)) / top
