"""What homomorphic encryption (``he``) adds to a contract, and which ones refuse it."""

from dataclasses import replace

from task.catalogue.entry import Algorithm
from task.catalogue.record import MODEL_DOWN, MODEL_UP


def why_not_added(entry: Algorithm) -> str:
    """Return why an algorithm's server needs more than one sum of models; "" = it does not."""
    if entry.pooled:
        return "it trains on all clients' data, so there is nothing to hide"
    if not entry.up:
        return "its clients send nothing that could be encrypted"
    if single := [r.name for r in entry.up if r.reduce == "collect"]:
        return f"its rule needs each client's {single[0]!r}, and the server cannot decrypt it"
    up = tuple(replace(r, of=MODEL_UP.of) for r in entry.up)
    if up != (MODEL_UP,) or entry.down != (MODEL_DOWN,) or entry.phases:
        return "its clients receive or send other records than models, and the server computes with them"
    return ""


def with_encryption(entry: Algorithm) -> Algorithm:
    """Return the contract under which nodes send the sums over their clients as ciphertexts."""
    return replace(entry, up=tuple(replace(r, encrypted=True) for r in entry.up))
