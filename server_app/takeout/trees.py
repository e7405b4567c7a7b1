"""Take trees out of a run: as a model of XGBoost or ONNX, and what they say of rows.

==========  ===========================================================  ==================================
format      what is written                                              read it with
==========  ===========================================================  ==================================
xgboost     JSON; labels, levels and the run's card as its attributes    ``xgboost.Booster``, then ``shap``
onnx        a graph: input ``x``, output ``probabilities``; the same as  ``onnxruntime``
            metadata
==========  ===========================================================  ==================================

Columns are those that the run declares, in its order, as float32: a category by its place among the declared
levels, NaN where there is no value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from server_app.takeout.declared_rows import OfRows, Reader
from server_app.takeout.export import Exported, checked_difference, importable
from server_app.takeout.taken import Columns, no_trees, out_of
from task.errors import ConfigError
from task.numerics.arrays import NamedArrays
from task.resolve.analyses import declared_of
from task.resolve.model_card import ModelCard
from task.storage.files import replacing
from task.trees.declared import Declared
from task.trees.ensemble import LOWEST, TreeEnsemble, Values
from task.trees.objectives import LOGISTIC
from task.trees.onnx_graph import to_onnx
from task.trees.xgb import library
from task.trees.xgboost_json import to_xgboost

FORMATS = {"xgboost": ".json", "onnx": ".onnx"}
_SAMPLE = 256  # random rows on which an exported model is compared
_GAPS = 0.1  # share of their values that are missing


@dataclass(frozen=True)
class TakenTrees:
    """The trees of a run."""

    card: ModelCard
    declared: Declared
    trees: TreeEnsemble

    def answer(self, x: Values) -> npt.NDArray[np.float64]:
        """Return probabilities of the classes, or a number, of each row; float64 [rows, outputs]."""
        found = self.declared.objective.probabilities(self.trees.margins(x))
        if self.declared.objective.name == LOGISTIC:
            return np.concatenate([1.0 - found, found], axis=1)
        return found


def trees_of(card: ModelCard, arrays: NamedArrays) -> TakenTrees:
    """Return the trees of a model file of which `card` and `arrays` were read.

    Raises:
        DataError: The arrays are not trees over the declared columns.
    """
    declared = declared_of(card.config)
    return TakenTrees(card, declared, TreeEnsemble.from_arrays(arrays, len(declared.variables)))


class GrownTrees(OfRows):
    """The trees of a run."""

    @cached_property
    def grown(self) -> TakenTrees:
        """The trees; raises what `trees_of` does."""
        return trees_of(self.file.card, self.file.arrays)

    def says(self, read: Reader) -> Columns:
        """Return what trees say of each row: a number, or a class and the probability of each."""
        found, names = self.grown.answer(self.x(read)), self.grown.declared.outputs
        if len(names) == 1:
            return [("predicted", found[:, 0].tolist())]
        predicted = [names[k] for k in found.argmax(axis=1)]
        return [("predicted", predicted), *((f"p_{n}", found[:, k].tolist()) for k, n in enumerate(names))]

    def x(self, read: Reader) -> Values:
        """Return what the trees split, of the rows of a file, float32 [rows, columns]."""
        return self.grown.declared.x(read(self.grown.declared.variables))

    def export(self, form: str, out: Path | None, data: Path | None, *, int8: bool) -> list[str]:
        """Write the trees; raises what `export_trees` does."""
        if form not in FORMATS:
            raise self.file.no_model()
        if self.client or data or int8:
            raise no_trees(form)
        return export_trees(self.grown, form, out or out_of(self.file.path, FORMATS[form]))


TAKES = dict.fromkeys(("boosting", "trees"), GrownTrees)


def export_trees(taken: TakenTrees, form: str, path: Path) -> list[str]:
    """Write trees and compare what they say of random rows; return lines for the user.

    Raises:
        ConfigError: There are no trees, or the format needs a package that is not installed.
        BouquetError: The exported model answers otherwise; nothing was written.
    """
    if not taken.trees.trees:
        raise ConfigError("export: expected a run that has grown trees; got none")
    _check_names(form, taken.declared.names)
    x, variables = _random_rows(taken), taken.declared.variables
    said = taken.card.metadata() | {
        "inputs": json.dumps(taken.declared.names),
        "levels": json.dumps({v.name: v.levels for v in variables if v.levels}),
        "outputs": json.dumps(taken.declared.outputs),
    }
    with replacing(path) as temp:
        theirs = (_write_xgboost if form == "xgboost" else _write_onnx)(taken, temp, x, said)
        if theirs is None:
            return [f"{path.resolve()}: not compared with the run's trees, as xgboost is not installed"]
        difference = checked_difference(form, theirs, taken.answer(x))
        return Exported(path, temp.stat().st_size, difference, {}).lines()


def _check_names(form: str, names: Sequence[str]) -> None:
    """Refuse names of inputs by which a reader of the format could not tell them apart.

    Raises:
        ConfigError: A name is there twice, as of a column and a category's value, or XGBoost takes none such.
    """
    wrong = {n for n in names if names.count(n) > 1 or (form == "xgboost" and set(n) & set("[]<"))}
    if wrong:
        without = ", without [, ] and <, which XGBoost refuses" if form == "xgboost" else ""
        raise ConfigError(
            f"export: expected each input by a name of its own{without}; got {', '.join(sorted(wrong))}. "
            "Rename the column or the value in the data, and run again"
        )


def _random_rows(taken: TakenTrees) -> Values:
    """Return rows within the declared ranges, of which some values are missing and some equal to a cut."""
    rng, variables = np.random.default_rng(0), taken.declared.variables
    x = np.empty((_SAMPLE, len(variables)), np.float32)
    for j, v in enumerate(variables):
        x[:, j] = rng.integers(0, len(v.levels), _SAMPLE) if v.levels else rng.uniform(v.low, v.high, _SAMPLE)
        cuts = np.unique(taken.trees.cut[taken.trees.feature == j])
        cuts = cuts[np.abs(cuts) < -LOWEST]
        if not v.levels and len(cuts):
            x[::2, j] = rng.choice(cuts, len(x[::2]))
    x[rng.random(x.shape) < _GAPS] = np.nan
    return x


def _write_xgboost(
    taken: TakenTrees, path: Path, x: Values, said: Mapping[str, str]
) -> npt.NDArray[np.float64] | None:
    declared = taken.declared
    names, categorical = declared.names, declared.categorical
    text = to_xgboost(taken.trees, declared.objective.name, names, categorical, said)
    path.write_bytes(text)
    try:
        xgboost = library()
    except ConfigError:
        return None
    booster = xgboost.Booster()
    booster.load_model(bytearray(text))
    types = ["c" if c else "float" for c in categorical]
    rows = xgboost.DMatrix(x, feature_names=[*names], feature_types=types, enable_categorical=True)
    found = np.asarray(booster.predict(rows), np.float64).reshape(len(x), -1)
    return np.concatenate([1.0 - found, found], axis=1) if declared.objective.name == LOGISTIC else found


def _write_onnx(taken: TakenTrees, path: Path, x: Values, said: Mapping[str, str]) -> npt.NDArray[np.float64]:
    onnx: Any = importable("onnx")
    runtime = importable("onnxruntime")
    model = to_onnx(onnx, taken.trees, taken.declared.objective.name, x.shape[1])
    onnx.helper.set_model_props(model, dict(said))
    onnx.save(model, str(path))
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["probabilities"], {"x": x})[0], np.float64)
