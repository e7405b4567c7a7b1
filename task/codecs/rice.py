"""Sorted positions in two planes of bits, as short as Golomb's code with the same parameter 2^b.

Sattler et al., IEEE TNNLS 31(9) 2020, section IV: gaps between random positions are geometric. A gap g >= 1
takes floor((g - 1) / 2^b) + 1 bits of the unary plane and b of the low plane. Golomb's code has them
interleaved; apart, they are written and read without a loop.

    low plane    for each position a word: the b low bits of g - 1, highest first, then its flag if it has one
    unary plane  for each position (g - 1) >> b zeros and a one; the code ends here, with a byte that is not 0
"""

import math

import numpy as np

from task.codecs.codec import Reader

MOST_B = 31
GOLDEN = (1 + math.sqrt(5)) / 2


def parameter(count: int, size: int) -> int:
    """Return the best b, 1 + floor(log2(ln(phi - 1) / ln(1 - p))), where p = count / size."""
    if not 0 < count < size:
        return 0
    ratio = math.log(GOLDEN - 1) / math.log1p(-count / size)
    return min(MOST_B, max(0, 1 + math.floor(math.log2(ratio))))


def most_bits(count: int, size: int) -> float:
    """Return what both planes without flags do not exceed for up to `count` positions of `size`, in bits.

    With p = k / n and the best b < log2(n / k) + 0.95, 2^b > 0.48 / p unless b is 0 and p > 0.6: the
    unary parts have at most k + (n - k) / 2^b < 3.1 k bits. The bound grows with k.
    """
    return count * (4.1 + math.log2(size / count)) if count else 0.0


def encode(index: np.ndarray, flags: np.ndarray | None, b: int) -> bytes:
    """Return the planes of sorted positions, and of a bool for each of them."""
    gaps = _gaps(index)
    tails = gaps >> b
    words = gaps & ((1 << b) - 1)
    if flags is not None:
        words = (words << 1) | flags
    width = b + (flags is not None)
    word = _word(width)
    bits = 8 * word.itemsize
    padded = np.unpackbits(words.astype(word).view(np.uint8)).reshape(-1, bits)
    low = np.empty((index.size, width), np.uint8)
    for j in range(width):  # by columns, since rows are too short to copy one by one
        low[:, j] = padded[:, bits - width + j]
    ends = np.cumsum(tails) + np.arange(index.size)
    unary = np.zeros(int(ends[-1]) + 1 if index.size else 0, np.uint8)
    unary[ends] = 1
    return np.packbits(low).tobytes() + np.packbits(unary).tobytes()


def decode(reader: Reader, count: int, flagged: bool, b: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `count` positions below `size`, int64, and their flags, bool: the rest of the code.

    Raises:
        FieldError: The planes are not those of this number of positions.
    """
    if not 0 <= b <= MOST_B or (b and not count):
        raise reader.refuse(f"a Rice parameter from 0 to {MOST_B if count else 0}", b)
    width = b + flagged
    low = reader.bits(count * width, "low plane").reshape(count, width)
    packed = reader.take("u1", reader.left, "unary plane")
    ends = np.flatnonzero(np.unpackbits(packed).view(bool))
    if ends.size != count or (packed.size and not packed[-1]):
        expected = f"{count} ones in the unary plane, one in its last byte"
        raise reader.refuse(expected, f"{ends.size} in {packed.size} bytes")
    if not count:
        return ends, np.zeros(0, bool)
    word = _word(width)
    bits = 8 * word.itemsize
    padded = np.zeros((count, bits), np.uint8)
    for j in range(width):
        padded[:, bits - width + j] = low[:, j]
    words = np.packbits(padded.reshape(-1)).view(word).astype(np.uint32)
    rests = words >> flagged
    lows = np.cumsum(rests, dtype=np.int64)
    # In Python's integers: a sum of int64 could overflow.
    last = (int(ends[-1]) + 1 - count << b) + int(lows[-1]) + count - 1
    if last >= size:
        raise reader.refuse(f"positions below {size}", last)
    # The j-th one has ends[j] - j zeros before it: the sum of (g - 1) >> b so far.
    number = np.arange(count)
    index = ends - number
    index <<= b
    index += number
    index += lows
    return index, (words & 1).astype(bool) if flagged else np.zeros(0, bool)


def _gaps(index: np.ndarray) -> np.ndarray:
    """Return g - 1 of sorted positions, the first counted from -1."""
    gaps = index.copy()
    gaps[1:] -= index[:-1] + 1
    return gaps


def _word(width: int) -> np.dtype:
    """Return an unsigned integer of this number of bits in the fewest bytes, highest byte first."""
    return np.dtype(">u1" if width <= 8 else ">u2" if width <= 16 else ">u4")
