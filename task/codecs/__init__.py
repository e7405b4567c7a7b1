"""Codecs compress updates and restore them: pure functions of arrays, knobs and a seed."""

from task.codecs.codec import Codec
from task.codecs.flat import Eden, Int8
from task.codecs.half import Half
from task.codecs.sampled import PlainRandK, RandK, RotatedRandK
from task.codecs.sign import Sign
from task.codecs.sparse import STC, TopK
from task.codecs.structured import LowRankCode, MaskCode

CODECS: dict[str, type[Codec]] = {codec.name: codec for codec in (Half, Int8, Eden, TopK, STC, RandK)}
# Codes of ``structured.kind`` or of an algorithm's own record; other runs cannot choose them.
OTHERS: dict[str, type[Codec]] = {codec.name: codec for codec in (LowRankCode, MaskCode, Sign)}


def codec_of(name: str, keep: float = 1.0, bits: int = 0, block: int = 4096, rotate: bool = True) -> Codec:
    """Return the codec of that name with these knobs; 0 bits are its default.

    `rotate` is read by rand-k with bits alone.

    Raises:
        ConfigError: A knob is out of its range.
    """
    kind = {**CODECS, **OTHERS}[name]
    if kind is RandK and bits:
        kind = RotatedRandK if rotate else PlainRandK
    return kind(keep, bits, block)
