"""Names of a data set's parts (training, validation, test) in folders, columns, arrays and splits.

Nothing is tuned on validation examples here, so they are the test set where there is no other, and left out
where there is one; either way the reader says so.
"""

from collections.abc import Mapping

TRAIN, TEST, VALIDATION = "train", "test", "validation"
NAMES = {TRAIN: ("train", "training"), TEST: ("test", "testing"), VALIDATION: ("val", "valid", "validation")}
_PART = {name: part for part, names in NAMES.items() for name in names}


def part_of(name: str) -> str:
    """Return the part that a name in any case stands for; "" if it stands for none."""
    return _PART.get(name.strip().lower(), "")


def test_part(found: Mapping[str, int], what: str) -> tuple[str, str]:
    """Return which part is the test set, "" if none is, and a note on what becomes of the validation part.

    `found` has the number of examples of each existing part, and `what` names the validation part.
    """
    if VALIDATION not in found:
        return (TEST if TEST in found else ""), ""
    count = f"{what} ({found[VALIDATION]} examples)"
    if TEST in found:
        return TEST, f"{count} is left out: nothing is tuned on it, and the test part is there, too"
    return VALIDATION, f"{count} is the test set, since there is no test part"


def local_test_size(count: int, fraction: float) -> int:
    """Return how many of a client's examples are its own test set.

    The share is rounded, but it is at least one (if fraction > 0 and there are two examples), and one
    always remains for training.
    """
    if fraction <= 0 or count < 2:
        return 0
    return min(max(round(fraction * count), 1), count - 1)
