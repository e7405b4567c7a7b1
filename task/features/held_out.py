"""Clients that never train and are measured after the last round."""

from task.catalogue.entry import Algorithm
from task.config.knobs import Config
from task.features.feature import Feature
from task.features.reasons import pooled
from task.features.refusals import SOME, Choice
from task.features.settings import HELD_OUT


def _refuses(config: Config, _: Algorithm) -> str:
    if config.data.local_test_fraction > 0 or config.data.partition == "natural":
        return ""
    return (
        '"fraction-heldout": they are measured on test data of their own, and have none because '
        '"local-test-fraction" is 0; set that above 0'
    )


FEATURE = Feature(
    "held_out",
    place=20,
    active=lambda config, _: config.server.fraction_heldout > 0,
    choices=(Choice("fraction-heldout", (SOME,), pooled, HELD_OUT),),
    refuses=_refuses,
)
