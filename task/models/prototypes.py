"""Class prototypes: what a model makes of a class on average, in features that models of unlike kinds share.

A *feature* is what the last linear layer reads. A table of prototypes has two arrays:

============  ====================  ==========================================================
name          shape, dtype          meaning
============  ====================  ==========================================================
``features``  float32 [C, f]        mean features by class, or of an upload their weighted sum
``counts``    int64 [C]             what stands behind them; 0 = the class has no prototype
============  ====================  ==========================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from task.models.layer_split import last_linear, no_last_linear
from task.numerics.arrays import Arrays
from task.references import is_reference

if TYPE_CHECKING:
    from torch import nn

FEATURES, COUNTS = "features", "counts"


def no_prototypes(classes: int, width: int) -> Arrays:
    """Return the table before anybody sent a prototype, of so many classes and features."""
    return {FEATURES: np.zeros((classes, width), np.float32), COUNTS: np.zeros(classes, np.int64)}


def feature_width(model: nn.Module, name: str, shape: tuple[int, ...], who: str) -> int:
    """Return f, the inputs of a model's last linear layer; the model is the one of this `name`.

    `shape` is that of one example.

    Raises:
        ConfigError: The model does not end with a linear layer, which `who` needs.
    """
    if not is_reference(name):
        return last_linear(model, who).in_features
    from task.models.brought import examples, output_layer

    path = output_layer(model, examples(shape, 2, text=False))
    if path is None:
        raise no_last_linear(who, model)
    return int(dict(model.named_modules())[path].in_features)  # type: ignore[arg-type]
