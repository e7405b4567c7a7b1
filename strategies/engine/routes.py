"""Pack downward records that differ by client."""

from collections.abc import Callable

from flwr.app import ArrayRecord

from strategies.engine.rule import Phase
from task.numerics.arrays import Arrays
from task.wire import messages as wire


def packed_route(
    phase: Phase, packed_of: Callable[[Arrays], ArrayRecord] = wire.pack_arrays
) -> dict[str, dict[str, dict[str, ArrayRecord]]]:
    """Return the records that differ by client; what several clients get is packed once, by `packed_of`."""
    packed: dict[int, ArrayRecord] = {}  # by id: the phase keeps the arrays alive

    def pack(arrays: Arrays) -> ArrayRecord:
        if id(arrays) not in packed:
            packed[id(arrays)] = packed_of(arrays)
        return packed[id(arrays)]

    route = {
        f: {c: {n: pack(a) for n, a in given.items()} for c, given in by_client.items()}
        for f, by_client in phase.route.items()
    }
    if phase.models:
        route[wire.ARRAYS] = {c: {c: wire.pack_arrays(phase.models.received(c))} for c in phase.to}
    return route
