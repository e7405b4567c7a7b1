"""Clients that train parts of the model, or kinds of their own."""

from dataclasses import replace

from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.entry import Algorithm
from task.catalogue.sub_models import why_whole, with_sub_models
from task.codecs import CODECS
from task.config.knobs import Config
from task.features.feature import Feature
from task.features.refusals import BELOW_ONE, LEVELS, MODELS, Choice, Setting, pairs
from task.features.settings import (
    ALA,
    ATTACK_INFORMED,
    BY_LOSS,
    CODEC_DOWN,
    CODEC_UP,
    DROPOUT,
    HELD_OUT,
    KINDS,
    PARTS,
    STRUCTURED,
    TRANSCRIPT,
    WIDTHS,
)


def _adds(config: Config, contract: Algorithm) -> Algorithm:
    return with_sub_models(contract, measured=config.by_kind) if config.parted else contract


def _alike(entry: Algorithm) -> str:
    one = "its clients send models, or parts of one, that the server averages or compares"
    return "" if entry.private == "all" or ALGORITHMS.get(entry.name, entry).distils else one


def _coded(config: Config, *, biased: bool = False) -> bool:
    codec = CODECS.get(config.codec.up)
    return codec is not None and (codec.biased or not biased)


FEATURE = Feature(
    "mixed_models",
    place=10,
    active=lambda config, _: config.parted or config.models.levels or config.width.levels,
    adds=_adds,
    choices=(
        Choice("dropout-width", (BELOW_ONE,), why_whole, DROPOUT),
        Choice("width.levels", (LEVELS,), why_whole, WIDTHS),
        Choice("models.levels", (MODELS,), _alike, Setting("models.levels", lambda c: c.models.levels)),
    ),
    pairs=(
        *pairs(
            PARTS,
            (ALA, "clients keep arrays of the whole model from round to round"),
            (BY_LOSS, "the policy uses the loss of the received model, and no whole model is sent"),
            (
                replace(CODEC_UP, on=lambda c: _coded(c, biased=True)),
                "clients keep the residuals of their codes for the whole model",
            ),
            (STRUCTURED, "a restriction applies to the whole model"),
            (CODEC_DOWN, "no whole model is sent"),
            (TRANSCRIPT, "a transcript has sums of whole models"),
            (
                ATTACK_INFORMED,
                "malicious clients compare coordinates of models that have different ones",
            ),
        ),
        *pairs(
            KINDS,
            (replace(CODEC_UP, on=_coded), "the combination is untested"),
            (HELD_OUT, "a held-out client has no kind of model of its own yet"),
        ),
    ),
)
