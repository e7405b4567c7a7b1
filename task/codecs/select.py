"""The entries of largest magnitude: k of them, whatever the ties, and never one that is 0."""

import numpy as np

SAMPLE = 1 << 11  # magnitudes from which a first threshold is guessed


def largest(x: np.ndarray, k: int) -> np.ndarray:
    """Return the sorted places of the k largest |x|, int64; fewer where fewer are not 0.

    With v the k-th largest |x|: all that are larger, then the first of those equal to v.
    """
    magnitude = np.abs(x)
    places = _candidates(magnitude, k)
    some = magnitude if places is None else magnitude.take(places)
    if not 0 < k <= some.size:
        return np.empty(0, np.int64)
    v = np.partition(some, some.size - k)[some.size - k]
    found: np.ndarray = np.flatnonzero(some >= v if v else some > 0)
    if found.size > k:
        equal = np.flatnonzero(some.take(found) == v)
        found = np.delete(found, equal[k - found.size :])
    return found if places is None else places.take(found)


def _candidates(magnitude: np.ndarray, k: int) -> np.ndarray | None:
    """Return the places of at least k magnitudes that no other one exceeds; None = consider all of them.

    The threshold is guessed from a sample, so that about twice the needed number remain. An odd step
    meets all columns of most matrices.
    """
    n = magnitude.size
    if n < 8 * SAMPLE or k > n // 8:
        return None
    sample = magnitude[:: n // SAMPLE | 1]
    rank = int(1.25 * k * sample.size / n) + 12
    threshold = np.partition(sample, sample.size - rank)[sample.size - rank]
    places = np.flatnonzero(magnitude >= threshold)
    return places if places.size >= k else None
