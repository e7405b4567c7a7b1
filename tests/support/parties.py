"""Parties with columns of one small table: files of their own, and runs over them in this process."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from client_app.app import make_app
from client_app.data.node import open_node
from client_app.memory.memory import Memory
from strategies import strategy_of
from task.catalogue.record import Record
from task.config.read import as_run_config
from task.datasets import natural_task
from task.numerics.arrays import Arrays
from task.resolve.contract import contract_of
from task.resolve.read import read_config
from task.tasks import task_of
from task.wire import messages as wire
from tests.support.federation import Keep, Played
from tests.support.grid import LocalGrid

ROWS, COLUMNS, CLASSES = 40, 6, 3
NAMES = ("ada", "bob", "cyd")


def table(rows: int = ROWS, seed: int = 4) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return ids, columns [rows, 6] and classes of a noisy linear problem."""
    rng = np.random.default_rng(seed)
    x = rng.normal(2.0, 3.0, (rows, COLUMNS)).astype(np.float32)
    y = np.argmax((x - 2.0) @ rng.normal(size=(COLUMNS, CLASSES)) + rng.gumbel(size=(rows, CLASSES)), axis=1)
    return [f"Zoë {i}" for i in range(rows)], x, y


def write(path: Path, ids: Sequence[str], x: np.ndarray, y: np.ndarray | None = None) -> Path:
    """Write a party's file, with a column of ids and perhaps the labels."""
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["who:id", *(f"x{j}" for j in range(x.shape[1])), *(["label"] if y is not None else [])])
        for i, row in enumerate(x):
            out.writerow([ids[i], *(repr(float(v)) for v in row), *([int(y[i])] if y is not None else [])])
    return path


def config(**more: Any) -> dict[str, Any]:
    """Return the keys of a run; names with underscores."""
    base: dict[str, Any] = {
        "algorithm": "splitnn", "dataset": "csv", "num-classes": CLASSES, "model": "logistic",
        "device": "cpu",
        "batch-size": 8, "num-server-rounds": 2, "local-test-fraction": 0.25, "learning-rate": 0.2, "seed": 3,
        "vertical.cut": 4, "vertical.hidden": 5, "roll-call-timeout": 1.0,
    }  # fmt: skip
    return base | {k.replace("__", ".").replace("_", "-"): v for k, v in more.items()}


def owners(folder: Path, orders: Mapping[str, Sequence[int]] | None = None) -> dict[str, Path]:
    """Write one file for each of three parties; `orders` say which rows each has, in which order."""
    ids, x, y = table()
    parts = {"ada": x[:, :2], "bob": x[:, 2:3], "cyd": x[:, 3:]}
    found = {}
    for name, columns in parts.items():
        rows = list((orders or {}).get(name, range(ROWS)))
        labels = y[rows] if name == "ada" else None
        found[name] = write(folder / f"{name}.csv", [ids[i] for i in rows], columns[rows], labels)
    return found


def play_own(
    files: Mapping[str, Path], keys: Mapping[str, Any], journal: Keep | None = None, **more: Any
) -> Played:
    """Run over nodes that bring a file each; `proofs` are further node config, by name, of deployed nodes."""
    settings = read_config(keys)
    entry = contract_of(settings)
    strategy = strategy_of(entry.rule)(settings)
    proofs = more.pop("proofs", {})
    own = {name: {"client-name": name, "data-path": str(path)} for name, path in files.items()}
    nodes = [config | proofs.get(name, {}) for name, config in own.items()]
    grid_type = more.pop("grid_type", LocalGrid)
    grid = grid_type(make_app(simulation=not proofs), nodes, as_run_config(settings), **more)
    keep = journal or Keep()
    rounds = settings.server.num_server_rounds
    data = settings.data
    measures = task_of(settings, natural_task(data), data.num_classes).measures if entry.metrics else None
    packed = wire.pack_arrays({})
    strategy.start(grid, packed, num_rounds=rounds, timeout=60, journal=keep, measures=measures)
    return Played(strategy, grid, keep, tuple(strategy.registry.names))


def part_of(keys: Mapping[str, Any], played: Played, client: str, path: Path | None = None) -> Arrays:
    """Return a party's part of the model as it was kept."""
    own = {"client-name": client, "data-path": str(path)} if path else {}
    node = open_node(read_config(keys), own)
    contract = contract_of(node.config)
    order = wire.TrainOrder(10**6, {}, clients=(client,), run=played.strategy.engine.run_id)
    (kept,) = Memory(node, contract, order).load([client], 0)
    return kept["part"]


def records(played: Played) -> list[Record]:
    """Return all records that may go up in a run."""
    entry = played.strategy.entry
    return [r for contract in (entry, *entry.phases.values()) for r in contract.up]
