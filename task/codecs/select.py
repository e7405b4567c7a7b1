"""The entries of largest magnitude: k of them, whatever the ties, and never one that is 0."""

import numpy as np

SAMPLE = 1 << 10  # magnitudes from which a first threshold is guessed


def largest(x: np.ndarray, k: int) -> np.ndarray:
    """Return the sorted places of the k largest |x|, int64; fewer where fewer are not 0.

    With v the k-th largest |x|: all that are larger, then the first of those equal to v.
    """
    magnitude = np.abs(x)
    places = _candidates(magnitude, k)
    some = magnitude if places is None else magnitude[places]
    v = np.partition(some, some.size - k)[some.size - k] if 0 < k <= some.size else np.inf
    if v == 0:
        chosen = some > 0
    else:
        chosen = some > v
        chosen[np.flatnonzero(some == v)[: k - np.count_nonzero(chosen)]] = True
    found = np.flatnonzero(chosen)
    return found if places is None else places[found]


def _candidates(magnitude: np.ndarray, k: int) -> np.ndarray | None:
    """Return the places of at least k magnitudes that no other one exceeds; None: look at all of them.

    The threshold is guessed from a sample, so that two or three times as many as are needed remain.
    """
    n = magnitude.size
    if n < 8 * SAMPLE or k > n // 8:
        return None
    sample = magnitude[:: n // SAMPLE]
    rank = int(1.5 * k * sample.size / n) + 16
    threshold = np.partition(sample, sample.size - rank)[sample.size - rank]
    places = np.flatnonzero(magnitude >= threshold)
    return places if places.size >= k else None
