"""Class prototypes: what a model makes of a class on average, in features that models of unlike kinds share.

A *feature* is what the last linear layer reads. A table of prototypes has two arrays:

============  ====================  ==========================================================
name          shape, dtype          meaning
============  ====================  ==========================================================
``features``  float32 [C, f]        mean features by class, or of an upload their weighted sum
``counts``    int64 [C]             what stands behind them; 0 = the class has no prototype
============  ====================  ==========================================================
"""

import numpy as np

from task.numerics.arrays import Arrays

FEATURES, COUNTS = "features", "counts"


def no_prototypes(classes: int, width: int) -> Arrays:
    """Return the table before any client sent a prototype, for a number of classes and features."""
    return {FEATURES: np.zeros((classes, width), np.float32), COUNTS: np.zeros(classes, np.int64)}
