"""Size of a client's own test set."""


def local_test_size(count: int, fraction: float) -> int:
    """Return how many of a client's examples are its own test set.

    The share is rounded, but it is at least one (if fraction > 0 and there are two examples), and one
    always remains for training.
    """
    if fraction <= 0 or count < 2:
        return 0
    return min(max(round(fraction * count), 1), count - 1)
