"""How clients train: optimizer, clipping, sharpness, machine."""

from task.catalogue.entry import Algorithm
from task.features.feature import Feature
from task.features.refusals import OWN, SOME, Choice, Setting, pairs
from task.features.settings import DP_LOCAL, SHARP, STRAGGLERS, STRUCTURED

_OPTIMIZER = Setting("optimizer", lambda c: c.train.optimizer != "sgd", '"sgd"')
_CLIPPED = Setting("clip-norm", lambda c: c.train.clip_norm)
_PORTABLE = Setting("portable", lambda c: c.train.portable)


def _sharp(entry: Algorithm) -> str:
    why = "its clients do not step along the gradient of the loss on one batch, or this is untested"
    return "" if entry.traits.uphill else why


FEATURE = Feature(
    "training",
    place=1,
    active=lambda *_: True,
    choices=(
        Choice("optimizer", ("adam", "adamw", OWN), lambda entry: entry.sgd_only, _OPTIMIZER),
        Choice("clip-norm", (SOME,), lambda entry: entry.unclipped, _CLIPPED),
        Choice("sam.rho", (SOME,), _sharp, SHARP),
    ),
    pairs=(
        *pairs(
            SHARP,
            (
                DP_LOCAL,
                "the noise covers one gradient of an example in a step, and the ascent takes a second one",
            ),
        ),
        *pairs(
            Setting("threads", lambda c: c.train.threads != 1, "1"),
            (_PORTABLE, "sums must be split alike on all machines"),
        ),
        *pairs(
            Setting("device", lambda c: c.train.device == "cuda", '"cpu" or "auto"'),
            (_PORTABLE, "clients train on processors"),
        ),
        *pairs(
            Setting("personal.epochs", lambda c: c.personal.epochs > 0, "0"),
            (STRAGGLERS, "it is the same for all clients, but slow ones do fewer epochs"),
        ),
        *pairs(_OPTIMIZER, (STRUCTURED, "a restricted step goes along a restricted gradient")),
    ),
)
