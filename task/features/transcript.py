"""A transcript of each round that anyone can check."""

from task.catalogue.entry import Algorithm
from task.features.feature import Feature
from task.features.refusals import Choice, Setting, algorithm_is, pairs
from task.features.settings import ASYNCHRONOUS, COARSE, ENCRYPTED, TRANSCRIPT, VERTICAL

_DISTILS = algorithm_is(lambda entry: entry.distils)
_NOISY_NODES = Setting("dp.noise-by", lambda c: c.dp.distributed)


def _summed(entry: Algorithm) -> str:
    for contract in (entry, *entry.phases.values()):
        if single := [r.name for r in contract.up if r.reduce == "collect"]:
            return f'the rule needs each client\'s {single[0]!r}, which only "full" publishes'
    return ""


FEATURE = Feature(
    "transcript",
    place=130,
    active=lambda config, _: config.server.transcript != "none",
    choices=(Choice("transcript", ("sums",), _summed),),
    pairs=(
        *pairs(
            TRANSCRIPT,
            (VERTICAL, "each party's part of the model stays with it"),
            (ASYNCHRONOUS, "a transcript does not say which client began when"),
            (_DISTILS, "it does not hold public examples"),
            (ENCRYPTED, "the models that the rule computes are ciphertexts"),
            (COARSE, "the sums of a coarser grid are not published"),
            (_NOISY_NODES, "the sums that nodes noise are not published"),
        ),
    ),
    stock_clients=(((TRANSCRIPT,), 'cannot sign what it sends, which "transcript" needs'),),
    stock_loops=(((TRANSCRIPT,), "it writes no transcript"),),
)
