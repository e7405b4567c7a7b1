"""Regressions on tables in memory: the real rule and the real sums, without messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from client_app.app import make_app
from server_app.app import run as run_server
from strategies import strategy_of
from strategies.engine.rule import Phase, RoundContext
from strategies.engine.state import AggregatedReplies
from task.classical.columns import NamedColumns
from task.classical.families import Rows
from task.classical.fit import Model, model_of, rows_of
from task.classical.printed import Printed
from task.classical.sums import sums_of
from task.classical.table import fitted
from task.config.knobs import Config
from task.config.read import as_run_config
from task.numerics.arrays import Arrays
from task.numerics.row_sums import to_wire
from task.resolve.read import read_config
from tests.support.grid import LocalGrid

ROWS = "rows"


def patients(name: str) -> pd.DataFrame:
    """Return a table that lifelines brings; it is installed without what its code needs, and not imported."""
    return pd.read_csv(str(distribution("lifelines").locate_file(f"lifelines/datasets/{name}.csv")))


def answered(phases: Any, sums: Callable[[str, Phase], Sequence[Sequence[int] | np.ndarray]]) -> Any:
    """Play a rule's phases to their end; `sums` are the sites' integers for a question. Return the result.

    They are integers, or as they travel.
    """
    replies = None
    while True:
        try:
            phase: Phase = phases.send(replies)
        except StopIteration as done:
            return done.value
        (record,) = phase.contract.up
        sent = [of if isinstance(of, np.ndarray) else to_wire(of) for of in sums(record.name, phase)]
        assert all(a.shape == phase.rows[record.name] for a in sent)
        arrays = {record.name: {ROWS: np.sum(sent, axis=0)}}
        replies = AggregatedReplies(arrays, phase.to, np.ones(len(sent), np.int64))


def declared(frame: pd.DataFrame, *names: str) -> str:
    """Return columns with ranges that hold their values: whole numbers, wider than the data."""
    return ", ".join(
        f"{n}({int(np.floor(min(frame[n].min(), 0)))}..{int(np.ceil(frame[n].max())) + 1})" for n in names
    )


def config_of(algorithm: str, columns: str, target: str, **more: Any) -> Config:
    """Return a run's config; further keys of the section by name."""
    keys = {"algorithm": algorithm, "dataset": "csv", "num-server-rounds": 25}
    keys |= {"regression.columns": columns, "regression.target": target}
    return read_config(keys | {f"regression.{k}": v for k, v in more.items()})


def rows_in(model: Model, frame: pd.DataFrame) -> Rows:
    """Return the rows of a frame of numbers."""
    return rows_of(model, NamedColumns({n: frame[n].to_numpy(np.float64) for n in frame.columns}, {}))


class Played:
    """The result of a regression over parts of a table."""

    def __init__(self, config: Config, parts: Sequence[pd.DataFrame]) -> None:
        self.model = model_of(config)
        self.questions: list[str] = []
        self.replies: dict[str, list[int]] = {}  # of the last question of each kind
        self.parts = {f"site-{i}": rows_in(self.model, part) for i, part in enumerate(parts)}
        rule = strategy_of(config.entry.rule)(config).rule
        self.rule = rule
        context = RoundContext(rule, config.entry, 0, 1.0, (), tuple(self.parts), (), lambda names: {})
        self._run(rule.opening(context))
        state: Any = rule.initial_state({}, ())
        self.rows: list[Mapping[str, Any]] = []
        while not rule.finished(state) and len(self.rows) < config.server.num_server_rounds:
            state, metrics = self._run(rule.round(state, context))
            self.rows.append(metrics)
        self.state = state
        self.arrays: Arrays = state.arrays

    @property
    def table(self) -> Printed:
        """The table."""
        return fitted(self.model, self.arrays)

    def column(self, name: str) -> list[float]:
        """Return a column of the table."""
        at = self.table.head.index(name)
        return [line[at] for line in self.table.rows]

    def _run(self, phases: Any) -> Any:
        return answered(phases, self._sums)

    def _sums(self, name: str, phase: Phase) -> list[Sequence[int]]:
        self.questions.append(name)
        beta = phase.records["coefficients"][ROWS][:, 0].tolist() if phase.records else ()
        model = self.model
        sent = [sums_of(name, model.family, r, beta, by_site=model.by_site) for r in self.parts.values()]
        self.replies[name] = [sum(of) for of in zip(*sent, strict=True)]
        return sent


def splits(frame: pd.DataFrame) -> dict[str, list[pd.DataFrame]]:
    """Return the pooled frame, three and ten parts of it, and every tenth row."""
    at = {k: np.array_split(np.arange(len(frame)), k) for k in (1, 3, 10)}
    found = {str(k): [frame.iloc[rows] for rows in parts] for k, parts in at.items()}
    return found | {"every tenth": [frame.iloc[i::10] for i in range(10)]}


def at_sites(
    folder: Path,
    frames: Sequence[pd.DataFrame],
    keys: Mapping[str, Any],
    least: int = 5,
    grid_type: type[LocalGrid] = LocalGrid,
    each: Sequence[Mapping[str, Any]] = (),
    **policy: Any,
) -> Path:
    """Run on nodes with files of their own, whose owners set a bound; their state stays for the next run.

    `policy` is that of all owners, and `each` has further rules of each of them. The columns of the frames
    are the header of the files. Returns the result folder.
    """
    nodes = []
    for i, frame in enumerate(frames):
        frame.to_csv(folder / f"ward-{i}.csv", index=False)
        where = {"data-path": str(folder / f"ward-{i}.csv"), "client-name": f"ward-{i}"}
        where |= {"cache-dir": str(folder / "cache"), "state-dir": str(folder / f"state-{i}")}
        nodes.append(where | {"min-examples": least} | policy | dict(each[i] if each else {}))
    config = read_config({**keys, "runs-dir": str(folder / "runs"), "min-nodes": len(frames)})
    return run_server(grid_type(make_app(), nodes, as_run_config(config)), config)
