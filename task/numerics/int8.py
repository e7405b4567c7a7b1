"""A model's arrays in 8 bits: a symmetric code for each output channel, about a quarter of the bytes.

An array of two or more axes, such as a layer's matrix or kernels, becomes codes q and, for each entry of its
first axis, which is the output channel of linear and convolution layers, a scale s:

    s_c = max |w_c| / 127,   q_c = round(w_c / s_c) in -127 ... 127,   w_c ~ q_c s_c

so that a weight moves by at most s_c / 2. Vectors, counters and other dtypes than float32 stay as they are.
"""

import numpy as np

from task.numerics.arrays import Arrays, NamedArrays

SCALE = ".scale"  # of the codes of an array: no module has a tensor and a child of one name
HIGHEST = 127


def quantised(arrays: NamedArrays) -> Arrays:
    """Return int8 codes and float32 scales ``<name>.scale`` [out] in place of matrices and kernels."""
    found = Arrays()
    for name, w in arrays.items():
        if w.ndim < 2 or w.dtype != np.float32 or not w.size:
            found[name] = w
            continue
        rows = w.reshape(len(w), -1)
        scale = np.abs(rows).max(1) / np.float32(HIGHEST)
        scale[scale == 0] = 1.0
        codes = np.clip(np.rint(rows / scale[:, None]), -HIGHEST, HIGHEST)
        found[name], found[name + SCALE] = codes.astype(np.int8).reshape(w.shape), scale
    return found


def restored(arrays: NamedArrays) -> Arrays:
    """Return float32 arrays in place of codes and scales; their codes are the same ones again.

    Raises:
        ValueError: The scales do not fit their codes.
    """
    found = Arrays()
    for name, a in arrays.items():
        scale = arrays.get(name + SCALE)
        if scale is None:
            if not (name.endswith(SCALE) and name.removesuffix(SCALE) in arrays):
                found[name] = a
            continue
        if a.dtype != np.int8 or scale.dtype != np.float32 or scale.shape != a.shape[:1]:
            raise ValueError(
                f"{name}: expected int8 codes and a float32 scale for each of their first axis; got "
                f"{a.dtype} {a.shape} and {scale.dtype} {scale.shape}"
            )
        found[name] = a * scale.reshape(-1, *[1] * (a.ndim - 1))
    return found
