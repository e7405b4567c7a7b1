"""Random entries of an update, from a seed, scaled by n / k so that their mean over seeds is the update.

Konecny et al. 2016, arXiv 1610.05492, section 3. The seed is in the header, so that no position travels.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from task.codecs.codec import HEADER, Codec, Left, Reader, finite
from task.codecs.draws import Draws
from task.codecs.flat import Flat, filled
from task.codecs.rotation import NoRotation, Rotation
from task.numerics.arrays import Arrays
from task.numerics.held import Base, Held


class RandK(Codec):
    """k_i = max(1, ceil(p n_i)) entries of each tensor as float32; the others stay.

    No table. Plane: a float32 for each entry drawn, not yet scaled.
    """

    name, number, seeded = "rand-k", 6, True

    @property
    def sparse(self) -> bool:
        """Whether only some entries travel: yes."""
        return True

    def most_bytes(self, shapes: Sequence[Sequence[int]]) -> int:
        """Return the length of every code."""
        return HEADER.size + 4 * sum(self.kept(math.prod(shape)) for shape in shapes)

    def _encode(self, x: Arrays, values: Arrays, seed: int) -> tuple[int, bytes, dict[str, Left]]:
        draws = Draws(seed)
        sent = [a.reshape(-1)[draws.places(a.size, self.kept(a.size))] for a in x.values()]
        return 0, b"".join(a.astype("<f4").tobytes() for a in sent), {}

    def _decode(
        self, reader: Reader, bits: int, seed: int, bases: Mapping[str, Base]
    ) -> dict[str, np.ndarray | Held]:
        self._check_length(reader, bits, bases)
        draws, out = Draws(seed), dict[str, np.ndarray | Held]()
        for name, start in bases.items():
            size = start.flat.size
            places = draws.places(size, self.kept(size))
            new = start.flat[places] + self._scaled(reader.take("<f4", places.size, "entries"), size)
            out[name] = finite(reader, name, Held(start, places, new))
        return out

    def _scaled(self, sent: np.ndarray, size: int) -> np.ndarray:
        return sent.astype(np.float32) * np.float32(size / max(1, self.kept(size)))


class RotatedRandK(Flat):
    """Rotate, draw max(1, ceil(p N)) of the N rotated entries, and round each to one of 2^b levels by chance.

    The levels of a block go from the least of its drawn entries to the largest in 2^b - 1 steps.

    Table: for each block the least, then for each block the largest, float32; 0 and 0 of a block with none.
    Planes, of a bit for each drawn entry: its level, lowest bit first.
    """

    name, number, widths, seeded = "rand-k", 7, tuple(range(1, 9)), True
    rotation: ClassVar[type[Rotation]] = Rotation

    def _length(self, size: int) -> int:
        blocks, block = self._blocks(size)
        return 8 * blocks + self.bits * -(-self.kept(blocks * block) // 8)

    def _pack(self, x: np.ndarray, seed: int) -> bytes:
        draws, (blocks, block) = Draws(seed), self._blocks(x.size)
        y = self.rotation(draws, blocks, block).forth(filled(x, blocks, block)).reshape(-1)
        places = draws.places(y.size, self.kept(y.size))
        y, of = y[places], places // block
        least, most = np.zeros(blocks, "<f4"), np.zeros(blocks, "<f4")
        some, begins = np.unique(of, return_index=True)
        if some.size:
            least[some], most[some] = np.minimum.reduceat(y, begins), np.maximum.reduceat(y, begins)
        top = 2**self.bits - 1
        step = (most.astype(np.float64) - least) / top
        parts = np.divide(
            y - least.astype(np.float64)[of], step[of], out=np.zeros(y.size), where=step[of] > 0
        )
        whole = np.floor(parts)
        whole += draws.uniforms(y.size) < parts - whole
        levels = np.minimum(whole, top).astype(np.uint8)
        planes = [np.packbits((levels >> i) & 1).tobytes() for i in range(self.bits)]
        return b"".join([least.tobytes(), most.tobytes(), *planes])

    def _unpack(self, reader: Reader, size: int, seed: int) -> np.ndarray:
        draws, (blocks, block) = Draws(seed), self._blocks(size)
        least, most = (reader.take("<f4", blocks, "levels").astype(np.float64) for _ in range(2))
        if not np.all(np.isfinite(least) & np.isfinite(most) & (least <= most)):
            raise reader.refuse("finite levels, the least first", "others")
        count = self.kept(blocks * block)
        level = np.zeros(count, np.uint8)
        for i in range(self.bits):
            level |= reader.bits(count, "plane") << i
        rotation = self.rotation(draws, blocks, block)
        places = draws.places(blocks * block, count)
        of = places // block
        y = np.zeros(blocks * block, np.float32)
        step = (most - least) / (2**self.bits - 1)
        y[places] = (least[of] + step[of] * level) * (y.size / max(1, count))
        return rotation.back(y.reshape(blocks, block)).reshape(-1)[:size]


class PlainRandK(RotatedRandK):
    """The same of the entries as they are: the paper's other curve, to see what the rotation gains."""

    number, rotation = 11, NoRotation
