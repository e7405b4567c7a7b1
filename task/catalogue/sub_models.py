"""What training on parts of the model adds to a contract, and which contracts refuse it."""

from dataclasses import replace

from task.catalogue.entry import Algorithm
from task.catalogue.record import MODEL_DOWN, MODEL_UP, SUB_MODEL


def why_whole(entry: Algorithm) -> str:
    """Return why the clients of an algorithm must train the whole model; "" = a part of it goes."""
    if entry.pooled:
        return "one client trains on all clients' data, so smaller models would save no bytes"
    if entry.private or entry.personal:
        return "its clients have their own models, which stay whole"
    if entry.keeps:
        return "its clients keep arrays of the whole model from round to round"
    if entry.down != (MODEL_DOWN,) or entry.up != (MODEL_UP,) or entry.phases:
        return "its rule needs more than the mean of local models, and only that is known per coordinate"
    if any(s.required for s in entry.up_scalars):
        return "its rule compares numbers of the clients' whole models"
    return ""


def with_sub_models(entry: Algorithm, *, measured: bool = False) -> Algorithm:
    """Return the contract under which each client gets and sends a part of the model.

    A node forwards each client's part: the server knows which coordinates it has, the node does not. Whether
    a client that measures the model gets its part, too, says `measured`; else it gets the whole.
    """
    down = [replace(r, layout=SUB_MODEL, to="each", meaning="the client's part of w^t") for r in entry.down]
    up = [replace(r, layout=SUB_MODEL, carry="each", meaning="it after local training") for r in entry.up]
    evaluation = tuple(down) if measured else entry.evaluation
    return replace(entry, down=tuple(down), up=tuple(up), evaluation=evaluation)
