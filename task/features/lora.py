"""Low-rank adapters: what the server averages of them.

With ``lora.average = "factors"`` nothing is special about them: the server takes the mean of each tensor.
"""

from dataclasses import replace

from task.catalogue.entry import Algorithm
from task.catalogue.record import MODEL_DOWN, MODEL_UP
from task.config.knobs import Config
from task.features.feature import Feature, Tensors
from task.features.reasons import why_not_mean
from task.features.refusals import Choice, Setting, pairs
from task.features.settings import (
    ALA,
    CODEC_DOWN,
    CODEC_UP,
    DP_CENTRAL,
    DROPOUT,
    ENCRYPTED,
    RING,
    SECURE,
    STRUCTURED,
    TRANSCRIPT,
)
from task.references import is_reference

_AVERAGE = Setting("lora.average", lambda c: c.lora.average != "factors", '"factors"')
_BASIS = "the server finds new factors in each round, and what is kept in the coordinates of the old ones"
_SUMS = (
    "the server needs each client's pair of factors, as the product of two sums is not the sum of products"
)


def _adds(config: Config, contract: Algorithm) -> Algorithm:
    if not _AVERAGE.on(config):
        return contract
    up = (replace(r, reduce="collect", carry="each") if r.name == MODEL_UP.name else r for r in contract.up)
    return replace(contract, up=tuple(up))


def _why_not(entry: Algorithm) -> str:
    if entry.keeps:
        return f"{_BASIS}, as by its clients, means nothing then"
    if entry.personal or entry.private:
        return f"{_BASIS}, as the clients' own models, means nothing then"
    if entry.up != (MODEL_UP,) or entry.down != (MODEL_DOWN,) or entry.phases or entry.repeats:
        return "its server needs more than one mean of local models, and only that is taken of products"
    return why_not_mean(
        entry, "its server does more than take the mean, in the coordinates of the round's old factors"
    )


def _refuses_model(config: Config, tensors: Tensors) -> str:
    from task.adapters.names import pairs_of

    if not _AVERAGE.on(config) or pairs_of(tensors.trained):
        return ""
    return (
        '"lora.average": expected a model with adapters whose factors, lora_A and lora_B, are both trained '
        '(if one of them is frozen, "factors" is the exact mean of products), or "factors"'
    )


def _refuses(config: Config, entry: Algorithm) -> str:
    if not config.lora.rank or is_reference(config.model):
        return ""
    return (
        '"lora.rank": expected a model of your own, "net:make", or of transformers, "transformers:./FOLDER"; '
        f'got model = "{config.model}"'
    )


FEATURE = Feature(
    "lora",
    place=15,
    active=lambda *_: True,
    adds=_adds,
    choices=(Choice("lora.average", ("product", "norms"), _why_not),),
    pairs=(
        *pairs(
            _AVERAGE,
            (SECURE, _SUMS),
            (ENCRYPTED, _SUMS),
            (DP_CENTRAL, f"noise is added to sums, and {_SUMS}"),
            (TRANSCRIPT, "a transcript has sums, from which products do not follow"),
            (CODEC_UP, f"{_BASIS}, as the residuals of codes, means nothing then"),
            (CODEC_DOWN, f"{_BASIS}, as the clients' copies of the model, means nothing then"),
            (STRUCTURED, "a restriction applies to changes of the received factors"),
            (ALA, f"{_BASIS}, as a client's weights of its layers, means nothing then"),
            (RING, "each client's model replaces the previous one's"),
            (
                Setting("contribution.measure", lambda c: c.contribution.measure != "none", '"none"'),
                "the values are of means of factors",
            ),
        ),
        *pairs(
            Setting("lora.average", lambda c: c.lora.average == "product", '"factors"'),
            (DROPOUT, "the best directions come first, and a client trains drawn ones"),
            (
                Setting("width.scheme", lambda c: c.narrow and c.width.scheme != "nested", '"nested"'),
                "the best directions come first, and a client trains others",
            ),
        ),
    ),
    refuses=_refuses,
    refuses_model=_refuses_model,
    stock_loops=(((_AVERAGE,), 'only its own server averages products of factors, by "lora.average"'),),
)
