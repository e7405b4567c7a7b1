"""Half precision: the update as float16 with a scale for each tensor."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from task.codecs.codec import HEADER, Codec, Left, Reader, finite
from task.numerics.arrays import Arrays
from task.numerics.held import Base, Held, peak

TOP = 15  # the largest magnitude of a tensor comes to lie between 2^14 and 2^15, below float16's 65504


class Half(Codec):
    """Each entry as float16 times its tensor's scale, a power of two.

    The update travels, not the model: 11 significant bits of it. Entries below 2^-29 of the tensor's largest
    lose bits, those below 2^-40 vanish. Rounding is to nearest; its bias needs no residual.

    Table: a float32 for each tensor. Plane: a float16 for each entry.
    """

    name, number = "fp16", 1

    def most_bytes(self, shapes: Sequence[Sequence[int]]) -> int:
        """Return the length of every code."""
        return HEADER.size + 4 * len(shapes) + 2 * sum(map(math.prod, shapes))

    def _encode(self, x: Arrays, values: Arrays, seed: int) -> tuple[int, bytes, dict[str, Left]]:
        scales = np.array([_scale(peak(a)) for a in x.values()], "<f4")
        halves = [(a / scale).astype("<f2").tobytes() for a, scale in zip(x.values(), scales, strict=True)]
        return 16, b"".join([scales.tobytes(), *halves]), {}

    def _decode(
        self, reader: Reader, bits: int, seed: int, bases: Mapping[str, Base]
    ) -> dict[str, np.ndarray | Held]:
        if bits != 16:
            raise reader.refuse("16 bits", bits)
        scales = reader.take("<f4", len(bases), "scales")
        out: dict[str, np.ndarray | Held] = {}
        for (name, start), scale in zip(bases.items(), scales, strict=True):
            update = reader.take("<f2", start.flat.size, "entries").astype(np.float32)
            update *= scale
            update += start.flat
            out[name] = finite(reader, name, update).reshape(start.array.shape)
        reader.end()
        return out


def _scale(largest: float) -> float:
    """Return the power of two, at least float32's smallest, by which a tensor is divided."""
    if not 0 < largest < np.inf:
        return 1.0
    return float(2.0 ** max(-149, int(np.frexp(largest)[1]) - TOP))
