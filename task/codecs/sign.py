"""Signs: a bit for each entry, Bernstein et al. 2018, arXiv 1802.04434.

What is coded are votes, 1 or -1; of other numbers the sign is what remains, and 0 counts as 1.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from task.codecs.codec import HEADER, Codec, Left, Reader, finite
from task.numerics.arrays import Arrays
from task.numerics.held import Base, Held


class Sign(Codec):
    """No table. Plane: a bit for each entry, tensor after tensor, 1 if it is negative."""

    name, number = "sign", 10

    def most_bytes(self, shapes: Sequence[Sequence[int]]) -> int:
        """Return the length of every code."""
        return HEADER.size + -(-sum(map(math.prod, shapes)) // 8)

    def _encode(self, x: Arrays, values: Arrays, seed: int) -> tuple[int, bytes, dict[str, Left]]:
        negative = [(a < 0).reshape(-1) for a in x.values()]
        plane = np.packbits(np.concatenate([np.empty(0, bool), *negative])).tobytes()
        return 1, plane, {}

    def _decode(
        self, reader: Reader, bits: int, seed: int, bases: Mapping[str, Base]
    ) -> dict[str, np.ndarray | Held]:
        if bits != 1:
            raise reader.refuse("1 bit", bits)
        sizes = [start.flat.size for start in bases.values()]
        parts = np.split(reader.bits(sum(sizes), "signs"), np.cumsum(sizes)[:-1])
        reader.end()
        out: dict[str, np.ndarray | Held] = {}
        for (name, start), negative in zip(bases.items(), parts, strict=True):
            vote = np.float32(1) - np.float32(2) * negative
            out[name] = finite(reader, name, (start.flat + vote).reshape(start.array.shape))
        return out
