"""The model that a run begins with, from a file."""

from task.catalogue.entry import Algorithm
from task.catalogue.record import MODEL_DOWN
from task.features.feature import Feature
from task.features.refusals import FILE, Choice, Setting, pairs
from task.features.settings import ALA

_FILE = Setting("initial-model", lambda c: c.initial_model, '""')
_MIXED = "clients mix the received model with the model drawn from the seed"


def _why_not(entry: Algorithm) -> str:
    if "ala" in entry.stages:
        return f"its {_MIXED}"
    sent = (MODEL_DOWN in entry.down or not entry.personal) and entry.private != "all"
    return "" if sent else "its clients begin with the model drawn from the seed, which is never sent"


FEATURE = Feature(
    "initial_model",
    place=15,
    active=lambda config, _: config.initial_model,
    choices=(Choice("initial-model", (FILE,), _why_not, _FILE),),
    pairs=(*pairs(_FILE, (ALA, _MIXED)),),
)
