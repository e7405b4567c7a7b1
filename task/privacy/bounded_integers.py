"""Updates as integers of bounded norm, on the grid that the noise lives on.

The noise on a sum has the standard deviation z C. Its grid has the unit 2^-g with g = 20 - floor(log2(z C)),
so that the noise is 2^20 to 2^21 units wide: rounding it to integers has no visible effect, and a sum of
integers plus an integer has no low-order bits that could reveal the sum (Mironov 2012).

===========  =============================  ======================================  ==========
symbol       variable                       meaning                                 where
===========  =============================  ======================================  ==========
C            ``bound``                      largest L2 norm of a client's update    dp.clip
z C          ``std``                        standard deviation of the sum's noise   dp.noise
g            ``exponent``                   the grid's unit is 2^-g                 the order
===========  =============================  ======================================  ==========
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from task.catalogue.entry import Algorithm
from task.catalogue.record import Record
from task.catalogue.stages import UNCLIPPED
from task.errors import FieldError
from task.numerics.arrays import Arrays, NamedArrays, flattened, squared_norm
from task.wire.norms import NormBound

WIDTH = 20  # the noise is at least 2^WIDTH units wide
LEAST_NOISE = 2.0**-9  # of z, so that a clipped number fits an int32
SMALLER = 1.0 - 2.0**-40
BIT = 1 << 24  # the upload for the bit +1/2 of adaptive clipping, in units of 2^-25
BITS = 25

CLIP, GRID = "dp-clip", "dp-grid"  # entries of an order: C and g


def exponent(std: float) -> int:
    """Return g of noise with this standard deviation."""
    _, e = math.frexp(std)  # std = m 2^e with 1/2 <= m < 1
    return WIDTH - (e - 1)


def clipped(
    changes: Mapping[str, NamedArrays], bound: float, exponent: int
) -> tuple[dict[str, Arrays], bool]:
    """Return changes, scaled to an L2 norm of `bound` at most, as int32 in units of 2^-exponent.

    The norm is that of all arrays of all records together; numbers are truncated towards zero, which makes
    none larger. The bound holds of the integers, exactly. Also says whether the norm was within the bound.

    Raises:
        FieldError: The norm is beyond the range of a float64.
    """
    wide = {r: {n: a.astype(np.float64) for n, a in arrays.items()} for r, arrays in changes.items()}
    flat = flattened(wide)
    with np.errstate(over="ignore"):  # of float64 models alone; infinity is refused
        norm = math.sqrt(squared_norm(flat))
    if not math.isfinite(norm):
        raise FieldError("", "an update of a finite norm", f"{norm}")
    factor = min(1.0, bound / norm) if norm else 1.0
    most = int(math.ldexp(bound, exponent) ** 2)
    while True:
        scale = math.ldexp(factor, exponent)
        found = {
            r: {n: np.trunc(a * scale).astype(np.int64) for n, a in arrays.items()}
            for r, arrays in wide.items()
        }
        # The factors were rounded: without this loop a norm could exceed the bound by a unit.
        if square(found) <= most:
            break
        factor *= SMALLER
    return {r: {n: a.astype(np.int32) for n, a in arrays.items()} for r, arrays in found.items()}, (
        norm <= bound
    )


def square(records: Mapping[str, NamedArrays]) -> int:
    """Return the squared L2 norm of integers over all records, exactly while it is below 2^63."""
    flat = [a.reshape(-1).astype(np.int64) for arrays in records.values() for a in arrays.values()]
    return sum(int(np.dot(a, a)) for a in flat)


def bound_of(entry: Algorithm, scalars: Mapping[str, float]) -> "ClipBound | None":
    """Return the bound on what clients send under a contract; None if they do not send clipped records."""
    if not entry.noised:
        return None
    return ClipBound(scalars.get(CLIP, 0.0), int(scalars.get(GRID, 0)))


class ClipBound(NormBound):
    """The bound on a client's clipped records, or on the sum of a node's number of clients."""

    def __init__(self, bound: float, exponent: int) -> None:
        super().__init__(math.ldexp(bound, exponent), {}, frozenset())

    def check(
        self,
        field: Record,
        arrays: NamedArrays,
        rows: Sequence[Mapping[str, float]],
        weights: Sequence[int] = (1,),
        low: NamedArrays = MappingProxyType({}),
    ) -> None:
        """Refuse a client's record, or the sum of several, that is larger than clipped ones can be.

        Raises:
            FieldError: It is.
        """
        most = (BIT if field == UNCLIPPED else self.most) * len(rows)
        norm = math.sqrt(squared_norm(arrays))
        if not norm <= most * (1 + 1e-9):
            raise FieldError(
                field.name,
                f"integers of an L2 norm of {most:.6g} at most, which is that of clipped updates (run-config "
                'key "dp.clip")',
                f"{norm:.6g}",
            )
