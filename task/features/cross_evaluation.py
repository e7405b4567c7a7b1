"""Cross-evaluation: after the last round, each client's own model is tested at every client."""

from dataclasses import replace

from task.catalogue.entry import Algorithm, adaptation_of, unmeasured
from task.catalogue.record import WHOLE, Record
from task.config.knobs import Config
from task.features.feature import Feature
from task.features.reasons import pooled
from task.features.refusals import Choice, Setting, pairs
from task.features.settings import (
    CODEC_DOWN,
    DP_CENTRAL,
    DP_LOCAL,
    ENCRYPTED,
    HELD_OUT,
    PARTS,
    SECURE,
    STRUCTURED,
    TRANSCRIPT,
)

MOST = 32  # clients: each tests the models of all
OWN_MODEL = Record("own-model", WHOLE, "the client's own model", reduce="collect")
TESTED = Record("arrays", WHOLE, "a client's own model")

_CROSS = Setting("cross-evaluation", lambda c: c.server.cross_evaluation, "false")
_PRIVATE = "each client's own model would leave it"


def _have_models(entry: Algorithm) -> bool:
    """Return whether each client has a model of its own between rounds."""
    return entry.personal or entry.evaluation is not None


def _adds(_: Config, contract: Algorithm) -> Algorithm:
    tested = replace(unmeasured(contract), down=(TESTED,), personal=False, keeps=(), stages=())
    asked, have = adaptation_of(contract), _have_models(contract)  # it gets what training gets
    if have:
        asked = unmeasured(replace(contract, stages=asked.stages))
    own = replace(asked, personal=have, keeps=contract.keeps, up=(OWN_MODEL,), up_scalars=(), work="own")
    return replace(contract, phases={**contract.phases, "own": own, "cross": tested})


def _why_not(entry: Algorithm) -> str:
    if why := pooled(entry):
        return why
    if entry.composite:
        return "what answers for a client is more than one model"
    if entry.unsafe_reason:
        return "its clients add noise to what they send"
    if entry.asynchronous:
        return "its clients train from different versions of the model"
    if not _have_models(entry) and (entry.phases or entry.sends_gradient):
        return "its clients end a round without a model of their own"
    return ""


def _refuses(config: Config, _: Algorithm) -> str:
    if config.data.num_clients <= MOST:
        return ""
    return (
        f'"cross-evaluation": each client tests the models of all; expected at most {MOST} clients; got '
        + str(config.data.num_clients)
    )


FEATURE = Feature(
    "cross_evaluation",
    place=150,
    active=lambda config, _: config.server.cross_evaluation,
    adds=_adds,
    choices=(Choice("cross-evaluation", (True,), _why_not),),
    pairs=tuple(
        pairs(
            _CROSS,
            ((SECURE, ENCRYPTED, DP_CENTRAL, DP_LOCAL), _PRIVATE),
            (PARTS, "clients have parts of the model, or other models"),
            (HELD_OUT, "they have no models of their own"),
            (TRANSCRIPT, "a transcript ends with the last round"),
            ((CODEC_DOWN, STRUCTURED), "the combination is untested"),
        )
    ),
    refuses=_refuses,
)
