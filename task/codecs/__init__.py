"""Codecs compress updates and restore them: pure functions of arrays, knobs and a seed.

Every module of this folder is imported, and a codec with a ``name`` of its own is found under it; those that
`task.config.sections.CODECS` names can be chosen by run-config keys.
"""

from importlib import import_module
from pkgutil import iter_modules

from task.codecs.codec import Codec
from task.codecs.sampled import PlainRandK, RandK, RotatedRandK
from task.config.sections import CODECS as CHOICES
from task.config.sections import CodecConfig

# RandK stands for the three kinds of rand-k, between which `codec_of` chooses.
_FOUND = {
    cls.name: cls
    for found in iter_modules(__path__)
    for cls in vars(import_module(f"{__name__}.{found.name}")).values()
    if isinstance(cls, type) and issubclass(cls, Codec) and "name" in vars(cls) and cls is not RotatedRandK
}
CODECS: dict[str, type[Codec]] = {name: _FOUND.pop(name) for name in CHOICES}
# Codes of ``structured.kind`` or of an algorithm's own record; other runs cannot choose them.
OTHERS: dict[str, type[Codec]] = _FOUND


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


def codec_by(name: str, keys: CodecConfig) -> Codec | None:
    """Return the codec of that name with the knobs of a run; None for "none".

    Raises:
        ConfigError: A knob is out of its range.
    """
    if name == "none":
        return None
    return codec_of(name, keys.keep, keys.bits, keys.block, keys.rotate)
