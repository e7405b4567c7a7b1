"""The model on its way down as codes, from one that a node has."""

from task.catalogue.entry import Algorithm
from task.catalogue.record import MODEL_DOWN
from task.config.sections import CODECS
from task.features.feature import Feature
from task.features.refusals import Choice


def _why_not(entry: Algorithm) -> str:
    one = MODEL_DOWN in entry.down and entry.private != "all"
    return "" if one else "the clients receive no common model that codes could update"


FEATURE = Feature(
    "replica",
    place=40,
    active=lambda config, _: config.codec.down != "none",
    choices=(Choice("codec.down", CODECS, _why_not),),
)
