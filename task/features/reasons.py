"""Reasons that several features have for not going with an algorithm."""

from task.catalogue.entry import Algorithm

REPEATS = "its clients train several times in a round"
ONE_BY_ONE = "its clients train several times in a round, but a round is accounted for once"


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


def unsafe(entry: Algorithm, why: str) -> str:
    """Return why what protects clients does not go with an algorithm that only claims to, or `why`."""
    return entry.unsafe_reason or why
