"""The model on its way down as codes, from one that a node has."""

from task.catalogue.entry import Algorithm
from task.catalogue.record import MODEL_DOWN
from task.codecs import codec_by
from task.config.knobs import Config
from task.config.sections import CODECS
from task.features.feature import Feature
from task.features.refusals import Choice


def _why_not(entry: Algorithm) -> str:
    if not entry.sends_model or entry.private == "all":
        return "the clients receive no common model that codes could update"
    other = "codes say how the server's model changes, and the clients receive one that is made of it"
    return "" if MODEL_DOWN in entry.down else other


def _refuses(config: Config, _: Algorithm) -> str:
    codec_by(config.codec.down, config.codec)  # which refuses knobs that are out of its range
    return ""


FEATURE = Feature(
    "replica",
    place=40,
    active=lambda config, _: config.codec.down != "none",
    choices=(Choice("codec.down", CODECS, _why_not),),
    refuses=_refuses,
)
