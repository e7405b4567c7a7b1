"""Find the channel axis of pictures in an array."""

from typing import Any

import numpy as np
import numpy.typing as npt

from task.errors import DataError, local

_SURE, _OTHER = (1, 3), (2, 4)  # channels: grey and colours; with transparency, or of two sensors


def channels_first(x: npt.NDArray[Any], where: str) -> npt.NDArray[Any]:
    """Turn uint8 pictures ``[N, H, W, C]`` into ``[N, C, H, W]``; leave all else.

    The channels are the first or the last axis of a picture: that with 1 or 3, else that with 2 or 4, else
    the one that is not a side of a square.

    Raises:
        DataError: No axis, or more than one, can have the channels.
    """
    if x.dtype != np.uint8 or x.ndim < 4:
        return x
    first, last = (x.shape[1] in _SURE, x.shape[3] in _SURE) if x.ndim == 4 else (False, False)
    if x.ndim == 4 and not (first or last):
        first, last = x.shape[1] in _OTHER, x.shape[3] in _OTHER
        if not (first or last):
            first, last = x.shape[2] == x.shape[3], x.shape[1] == x.shape[2]
        if first and last:
            first = last = False
    if not (first or last):
        raise DataError(
            f"{local(where)}: expected pictures as uint8 [N, H, W], or [N, C, H, W] or [N, H, W, C] with C "
            f"channels, 1 to 4; got shape {list(x.shape)}, where that is not clear. Save x as float32 "
            "[N, C, H, W], divided by 255"
        )
    return x if first else x.transpose(0, 3, 1, 2)


def channels_last_note(x: npt.NDArray[Any]) -> str:
    """Return a warning if an array of numbers has the shape of pictures with the channels last; else ""."""
    if x.dtype == np.uint8 or x.ndim != 4 or x.shape[3] not in (1, 3, 4) or x.shape[1] in (1, 2, 3, 4):
        return ""
    return (
        f"x has shape {list(x.shape)}, which a convolutional model reads as {x.shape[1]} channels of "
        f"{x.shape[2]}x{x.shape[3]}. If the channels are last, save x.transpose(0, 3, 1, 2)"
    )
