"""What homomorphic encryption (``he``) adds to a contract, and which ones refuse it."""

from dataclasses import replace

from task.spec.entry import Algorithm
from task.spec.record import MODEL_DOWN, MODEL_UP

MEANS = ("fedavg", "fedprox")  # rules that take the mean for the next model, and do nothing more with it


def why_not_added(entry: Algorithm) -> str:
    """Return why adding ciphertexts is not all that an algorithm's server needs; "" = it is."""
    if entry.pooled:
        return "its clients train on everybody's data, so that there is nothing to hide"
    if not entry.up:
        return "nothing goes up that could be encrypted"
    if entry.up != (MODEL_UP,) or entry.down != (MODEL_DOWN,) or entry.phases:
        return "more than models travels, and the server computes with it"
    if entry.rule not in MEANS:
        return "its server computes with the mean, and ciphertexts can only be added"
    return ""


def with_encryption(entry: Algorithm) -> Algorithm:
    """Return the contract under which nodes send the sums over their clients as ciphertexts."""
    return replace(entry, up=tuple(replace(r, encrypted=True) for r in entry.up))
