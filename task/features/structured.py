"""Updates of a restricted form: low rank, or a mask."""

from task.catalogue.entry import Algorithm
from task.catalogue.record import MODEL_UP
from task.features.feature import Feature
from task.features.refusals import Choice, pairs
from task.features.settings import ALA, STRUCTURED


def _why_not(entry: Algorithm) -> str:
    more = entry.keeps or entry.phases or entry.private or entry.personal
    if not entry.traits.restricted or more:
        return (
            "its clients do more than take steps from the received model; no restriction is defined for that"
        )
    whole = "its rule compares whole models, and a restriction leaves most of a model unchanged"
    return "" if entry.up == (MODEL_UP,) else whole


FEATURE = Feature(
    "structured",
    place=45,
    active=lambda config, _: config.structured.kind != "none",
    stages=lambda config: ("structured", "codec") if config.structured.kind != "none" else (),
    choices=(Choice("structured.kind", ("low-rank", "mask"), _why_not),),
    pairs=(
        *pairs(
            STRUCTURED,
            (ALA, "uploads are relative to the received model, but clients start from a mixture with it"),
        ),
    ),
    stock_clients=(((STRUCTURED,), 'cannot write the codes of "structured.kind"'),),
    stock_loops=(((STRUCTURED,), 'its clients send codes, by "structured.kind"'),),
)
