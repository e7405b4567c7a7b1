"""Codes of what clients send, and what becomes of those that are not used."""

from task.catalogue.entry import Algorithm
from task.catalogue.stages import coded_in
from task.codecs import CODECS, codec_by
from task.config.knobs import Config
from task.config.sections import SPARSE
from task.features.feature import Feature
from task.features.reasons import REPEATS, no_base
from task.features.refusals import Choice, pairs
from task.features.settings import CODEC_UP, STRUCTURED


def _stages(config: Config) -> tuple[str, ...]:
    codec = CODECS.get(config.codec.up)
    if codec is not None:
        return ("codec-with-feedback",) if codec.biased else ("codec",)
    return ()


def _codec(entry: Algorithm) -> str:
    if entry.repeats:
        return f"{REPEATS}, but codes and their residuals are per round"
    if not coded_in(entry):
        return "its clients send nothing that a code could replace"
    return no_base(entry)


def _sparse(entry: Algorithm) -> str:
    compared = any(r.reduce == "collect" for r in coded_in(entry))
    why = (
        "the rule compares the clients' models entry by entry, and most entries of a sparse code are not sent"
    )
    return _codec(entry) or (why if compared else "")


def _refuses(config: Config, _: Algorithm) -> str:
    codec_by(config.codec.up, config.codec)  # which refuses knobs that are out of its range
    return ""


FEATURE = Feature(
    "coding",
    place=30,
    active=lambda *_: True,
    stages=_stages,
    choices=(
        Choice("codec.up", ("fp16", "int8", "eden"), _codec),
        Choice("codec.up", SPARSE, _sparse),
    ),
    pairs=(*pairs(CODEC_UP, (STRUCTURED, "that already decides what is sent")),),
    refuses=_refuses,
    stock_clients=(((CODEC_UP,), 'cannot write the codes of "codec.up"'),),
    stock_loops=(((CODEC_UP,), 'its clients send codes, by "codec.up"'),),
)
