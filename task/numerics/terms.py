"""The units of exact sums, and the limits on a client's terms in them, with the words for these in errors."""

import numpy as np

FINITE = "finite number"  # in the expectation of every check that fails if a model diverged
MAX_TERM, MAX_INTEGER_TERM = 2.0**31, 2.0**55  # |weight * value| of a client that fits an exact sum
LOW_UNIT, HIGH_UNIT = 2.0**-51, 2.0**-20
# x + GRID rounds x to a multiple of the unit, and the bits of the sum, less those of GRID, count the units.
LOW_GRID, HIGH_GRID = 3.0, 1.5 * 2.0**32  # |x| <= 1, |x| <= 2^31
LOW_BITS, HIGH_BITS = (int(np.float64(grid).view(np.int64)) for grid in (LOW_GRID, HIGH_GRID))
