"""Boosted trees over tables in memory: the real rule and the real sums, without messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from client_app.classical.trees import check_pivots
from strategies import strategy_of
from strategies.engine.rule import Phase, RoundContext
from task.catalogue.trees import BASE, COUNTS, HISTOGRAMS, PIVOTS
from task.classical.columns import NamedColumns
from task.config.knobs import Config
from task.resolve.read import read_config
from task.trees.boosting import boosting_of
from task.trees.ensemble import TreeEnsemble
from task.trees.orders import read_order
from task.trees.rows import BoostedRows
from tests.classical.support import ROWS, answered


def config_of(columns: str, target: str, rounds: int = 3, seed: int = 1, **more: Any) -> Config:
    """Return a run's config; further keys of the section by name."""
    keys = {"seed": seed, "algorithm": "gbdt", "dataset": "csv", "num-server-rounds": rounds}
    keys |= {"gbdt.columns": columns, "gbdt.target": target}
    return read_config(keys | {f"gbdt.{k.replace('_', '-')}": v for k, v in more.items()})


@dataclass
class Asked:
    """A question, and what it took."""

    name: str
    up: int  # bytes of a site's answer
    down: int


class PlayedTrees:
    """The result over parts of a table: frames of numbers, in which a level is its place."""

    def __init__(self, config: Config, parts: Sequence[pd.DataFrame], base: Sequence[float] = ()) -> None:
        self.config, self.boosting = config, boosting_of(config)
        levels = {v.name: v.levels for v in (*self.boosting.variables, self.boosting.target) if v.levels}
        self.sites = []
        for i, part in enumerate(parts):
            numbers = {n: part[n].to_numpy(np.float64) for n in part.columns if n not in levels}
            places = {n: (part[n].fillna(-1).to_numpy(np.int64), of) for n, of in levels.items()}
            table = NamedColumns(numbers, places)
            self.sites.append(BoostedRows.of(self.boosting, f"site-{i}", table))
        self.rule: Any = strategy_of(config.entry.rule)(config).rule
        if base:
            self.rule._base = lambda: np.array(base, np.float64)
        names = tuple(f"site-{i}" for i in range(len(parts)))
        self.context = context = RoundContext(
            self.rule, config.entry, 0, 1.0, (), names, (), lambda names: {}
        )
        self.asked: list[Asked] = []
        self._run(self.rule.opening(context))
        self.state: Any = self.rule.initial_state({}, ())
        self.rows: list[Any] = []
        while not self.rule.finished(self.state) and len(self.rows) < config.server.num_server_rounds:
            self.state, metrics = self._run(self.rule.round(self.state, context))
            self.rows.append(metrics)
        self.arrays = self.state.arrays
        self.bits = {name: array.tobytes() for name, array in self.arrays.items()}
        self.trees = TreeEnsemble.from_arrays(self.arrays, len(self.boosting.variables))

    def _run(self, phases: Any) -> Any:
        return answered(phases, self._sums)

    def _sums(self, name: str, phase: Phase) -> list[Any]:
        sent = {record: arrays[ROWS] for record, arrays in phase.records.items()}
        (size, width), down = phase.rows[name], sum(a.nbytes for a in sent.values())
        self.asked.append(Asked(name, 8 * size * width, down))
        if name == BASE:
            return [site.base() for site in self.sites]
        if name == COUNTS:
            check_pivots(self.boosting, sent[PIVOTS])
            return [site.counts(sent[PIVOTS]) for site in self.sites]
        order = read_order(self.boosting, sent.__getitem__)
        if name == HISTOGRAMS:
            return [site.histograms(order, size) for site in self.sites]
        return [site.losses(order) for site in self.sites]
