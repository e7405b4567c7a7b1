"""Homomorphic encryption of sums."""

from task.catalogue.encryption import why_not_added, with_encryption
from task.catalogue.entry import Algorithm
from task.config.knobs import Config
from task.features.feature import Feature, Tensors
from task.features.reasons import unsafe, why_not_mean
from task.features.refusals import Choice, pairs
from task.features.settings import (
    CODEC_DOWN,
    CODEC_UP,
    DP_CENTRAL,
    DP_LOCAL,
    ENCRYPTED,
    MEANS_FILLED,
    PARTS,
    SECURE,
    STANDARDISED,
    STRUCTURED,
)

_CODED = "a ciphertext has every number in full, so a code saves nothing"
_COLUMNS = "the sums of each client's columns go up in clear"
_ADDS = "its server computes with the mean, and ciphertexts can only be added"


def _why_not(entry: Algorithm) -> str:
    return unsafe(entry, why_not_added(entry) or why_not_mean(entry, _ADDS))


def _refuses_model(_: Config, tensors: Tensors) -> str:
    if not tensors.integers:
        return ""
    return (
        f'"he": the model shares {tensors.integers[0]!r}, a counter, which ciphertexts do not hold exactly; '
        'expected a model without, or algorithm = "fedbn", which keeps it at the client'
    )


FEATURE = Feature(
    "encryption",
    place=100,
    active=lambda config, _: config.server.he,
    adds=lambda _, contract: with_encryption(contract),
    choices=(Choice("he", (True,), _why_not),),
    pairs=(
        *pairs(
            ENCRYPTED,
            (SECURE, "both hide single nodes' sums; masks cost less"),
            (DP_CENTRAL, "the server adds noise to integers, but has only ciphertexts"),
            (DP_LOCAL, "the combination is untested"),
            (CODEC_UP, _CODED),
            (CODEC_DOWN, "the server has no model to encode"),
            (STRUCTURED, _CODED),
            (PARTS, "the server cannot cut parts out of a ciphertext"),
            (STANDARDISED, _COLUMNS),
            (MEANS_FILLED, _COLUMNS),
        ),
    ),
    refuses_model=_refuses_model,
    stock_clients=(((ENCRYPTED,), "cannot encrypt its model, which he = true needs"),),
    stock_loops=(((ENCRYPTED,), "with he = true its nodes send ciphertexts"),),
)
