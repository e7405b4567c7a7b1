"""What a run with XGBoost at its clients asks for: columns, target, loss, and XGBoost's own settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from task.classical.columns import Floats
from task.config.algorithm_sections import XGBConfig
from task.config.knobs import Config
from task.errors import ConfigError
from task.extras import from_extra
from task.numerics import seeds
from task.trees.declared import Declared, columns_in, objective_of
from task.trees.ensemble import TreeEnsemble, Values
from task.trees.objectives import SOFTMAX
from task.trees.xgboost_json import OBJECTIVES, from_xgboost, to_xgboost

MOST_LEVELS = 1024
_SEEDS = 2**31  # XGBoost's seeds are below
# Keys of the section that are XGBoost's own, by its names where these are others.
_OWN = {
    "eta": "eta", "max_depth": "max_depth", "min_child_weight": "min_child_weight",
    "reg_lambda": "lambda", "reg_alpha": "alpha", "gamma": "gamma", "subsample": "subsample",
    "colsample_bytree": "colsample_bytree", "max_bin": "max_bin",
}  # fmt: skip


@dataclass(frozen=True)
class XGBoosting(Declared):
    """Settings of a run with XGBoost at its clients."""

    keys: XGBConfig
    local_epochs: int  # boosting rounds of a client in a round
    seed: int

    @property
    def trees_a_round(self) -> int:
        """How many trees a client grows in a round."""
        return self.local_epochs * self.objective.classes

    def most_nodes(self, rows: int) -> int:
        """Return how many nodes the trees of one client have at most in a round; it has so many rows."""
        full: int = 2 ** (self.keys.max_depth + 1) - 1
        return self.trees_a_round * min(full, max(2 * rows - 1, 1))


def xgb_of(config: Config) -> XGBoosting:
    """Return what a run asks for.

    Raises:
        ConfigError: Its columns or its target are not declared as they should be.
    """
    keys = config.xgb
    variables, target = columns_in("xgb.columns", keys.columns, keys.target)
    if wide := [v.name for v in variables if len(v.levels) > MOST_LEVELS]:
        raise ConfigError(
            f'run-config key "xgb.columns": expected at most {MOST_LEVELS} levels of a column; got more of '
            f"{wide[0]}"
        )
    objective = objective_of(keys.objective, target)
    return XGBoosting(variables, target, objective, keys, config.train.local_epochs, config.seeds.train)


def library() -> Any:
    """Return the package ``xgboost``.

    Raises:
        ConfigError: It is not installed, or too old.
    """
    found = from_extra("trees", "xgboost", "boosted trees")
    if tuple(int(part) for part in found.__version__.split(".")[:2]) < (3, 1):
        raise ConfigError(f"expected xgboost 3.1 or later; got {found.__version__}")
    return found


def grown(
    asked: XGBoosting, trees: TreeEnsemble, x: Values, y: Floats, server_round: int, client: str
) -> TreeEnsemble:
    """Return the trees that XGBoost grows from a client's rows on top of those that it gets.

    The same arguments give the same bits: XGBoost has one thread, and a seed by round and client.
    """
    xgboost = library()
    objective, classes = asked.objective.name, asked.objective.classes
    booster = xgboost.Booster({"nthread": 1})
    names = [str(j) for j in range(len(asked.variables))]  # XGBoost refuses some names of columns
    booster.load_model(bytearray(to_xgboost(trees, objective, names, asked.categorical)))
    types = ["c" if c else "float" for c in asked.categorical]
    rows = xgboost.DMatrix(
        x, y.astype(np.float32), feature_names=names, feature_types=types, nthread=1, enable_categorical=True
    )
    settings = {theirs: getattr(asked.keys, ours) for ours, theirs in _OWN.items()}
    settings |= {
        "objective": OBJECTIVES[objective],
        "tree_method": "hist",
        "nthread": 1,
        "seed": seeds.seed_for(asked.seed, seeds.TREE_ROWS, server_round, client) % _SEEDS,
    }
    settings |= {"num_class": classes} if objective == SOFTMAX else {}
    more = xgboost.train(settings, rows, asked.local_epochs, xgb_model=booster)
    text = bytes(more.save_raw("json"))
    return from_xgboost(text, objective, len(asked.variables), classes, first=trees.trees)


ANALYSES = {"trees": xgb_of}
