"""Adaptive local aggregation: clients learn how to mix the received model with their own."""

from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.entry import Algorithm
from task.features.feature import Feature
from task.features.refusals import Choice


def _why_not(entry: Algorithm) -> str:
    fits = ", ".join(sorted(name for name, other in ALGORITHMS.items() if other.ala))
    return "" if entry.ala else f"adaptive local aggregation is tested only with {fits}"


FEATURE = Feature(
    "ala",
    place=2,
    active=lambda config, _: config.train.ala,
    stages=lambda config: ("ala",) if config.train.ala else (),
    choices=(Choice("ala", (True,), _why_not),),
)
