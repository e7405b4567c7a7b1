"""The order of inputs and outputs on the wire: a node with a different order reads its data by name.

A message's ``config`` has two lists, as of `task.datasets.description.Meaning`, and only if data of the run
are in different orders.
"""

from flwr.app import RecordDict

from task.datasets.description import Meaning
from task.errors import WireError
from task.wire.checks import short
from task.wire.messages import entry_of

INPUTS, OUTPUTS = "input-order", "output-order"


def place_entries(meaning: Meaning | None) -> dict[str, list[int]]:
    """Return the entries of a message's ``config``; none where no order is asked for."""
    if meaning is None:
        return {}
    return {INPUTS: list(meaning.inputs), OUTPUTS: list(meaning.outputs)}


def read_places(content: RecordDict) -> Meaning | None:
    """Return the order that a message asks for; None if it asks for none.

    Raises:
        WireError: It has no places, or one of them twice.
    """
    inputs, outputs = (_places(name, entry_of(content, name)) for name in (INPUTS, OUTPUTS))
    return None if inputs is None or outputs is None else Meaning({}, inputs, outputs)


def _places(name: str, given: object) -> tuple[int, ...] | None:
    if given is None:
        return None
    places = [p for p in given if isinstance(p, int)] if isinstance(given, list) else []
    if not isinstance(given, list) or sorted(places) != list(range(len(given))):
        raise WireError(f"message: expected {name!r} as places, each once; got {short(given)}", name)
    return tuple(places)
