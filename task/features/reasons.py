"""Reasons that several features have for not going with an algorithm."""

from task.catalogue.entry import Algorithm
from task.references import is_reference

REPEATS = "its clients train several times in a round"
ONE_BY_ONE = "its clients train several times in a round, but a round is accounted for once"
UNSAID = (
    "your rule may do more than take the mean of the clients' models; if its update returns that mean as it "
    "is, say so: class NAME(Rule, update=..., takes_mean=True)"
)


def pooled(entry: Algorithm) -> str:
    """Return why data that are everybody's leave nothing to do."""
    return "it trains on all clients' data" if entry.pooled else ""


def unaccounted(entry: Algorithm) -> str:
    """Return why no account of privacy can be kept of what clients do."""
    return pooled(entry) or (ONE_BY_ONE if entry.repeats else "")


def nothing_up(entry: Algorithm) -> str:
    """Return why there are no updates."""
    return "" if entry.up else "its clients send nothing that they could falsify"


def no_base(entry: Algorithm) -> str:
    """Return why there is no Delta_k: the clients did not receive what their records are relative to."""
    received = {r.name for r in entry.down if r.to == "all"}
    missing = [r.name for r in entry.up if r.base and r.base not in received]
    why = "the clients receive no common model from which to measure the change of their own"
    return nothing_up(entry) or (why if missing else "")


def why_not_mean(entry: Algorithm, why: str) -> str:
    """Return `why`, or that it is not known, if an algorithm's server does more than take one mean."""
    if entry.takes_mean:
        return ""
    return UNSAID if is_reference(entry.name) else why


def unsafe(entry: Algorithm, why: str) -> str:
    """Return why what protects clients does not go with an algorithm that only claims to, or `why`."""
    return entry.unsafe_reason or why
