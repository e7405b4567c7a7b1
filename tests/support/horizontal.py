"""The algorithms whose clients hold rows; those of parties with columns have tests of their own."""

from task.spec.algorithms import ALGORITHMS

HORIZONTAL = {name: entry for name, entry in ALGORITHMS.items() if not entry.vertical}
