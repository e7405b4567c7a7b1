"""The value of each client's update, measured by the server."""

from dataclasses import replace

from task.catalogue.entry import Algorithm
from task.catalogue.record import MODEL_DOWN, MODEL_UP
from task.config.knobs import Config
from task.features.clear import in_clear
from task.features.feature import Feature
from task.features.refusals import Setting, pairs
from task.features.settings import CODEC_UP, RING, STRUCTURED

_MEASURED = Setting("contribution.measure", lambda c: c.contribution.measure != "none", '"none"')
_UNVERIFIED = "the combination is untested"


def _adds(config: Config, contract: Algorithm) -> Algorithm:
    up = (replace(r, reduce="collect") if r.name == MODEL_UP.name else r for r in contract.up)
    return replace(contract, up=tuple(up))


def _refuses(_: Config, entry: Algorithm) -> str:
    models = any(r.name == MODEL_UP.name and r.base == MODEL_DOWN.name for r in entry.up)
    if models and not (entry.personal or entry.repeats or entry.individual):
        return ""
    return (
        f'"{_MEASURED.key}": expected an algorithm whose clients send models of one global model, such as '
        f'fedavg; got algorithm = "{entry.name}". Choose another'
    )


FEATURE = Feature(
    "contribution",
    place=80,
    active=lambda config, _: config.contribution.measure != "none",
    adds=_adds,
    pairs=(
        *in_clear(_MEASURED),
        *pairs(
            _MEASURED,
            (CODEC_UP, _UNVERIFIED),
            (STRUCTURED, _UNVERIFIED),
            (RING, "each client's model replaces the previous one's"),
        ),
    ),
    refuses=_refuses,
)
