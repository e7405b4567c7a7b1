"""Restore, from a run's folder, what a client would be asked to evaluate after the last round."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from server_app.results.folder import CHECKPOINT
from server_app.run.checkpoint import Checkpoint
from strategies.engine.recovery import VOID
from strategies.rules.cfl import CFLState, home
from strategies.rules.several import model_in
from task.catalogue.entry import Algorithm
from task.catalogue.record import PROTOTYPES
from task.catalogue.several import model_name
from task.errors import StateError
from task.numerics.arrays import Arrays
from task.wire import messages as wire


def evaluation_order(
    server_round: int, arrays: Arrays, entry: Algorithm, client: str, run: str, void: tuple[int, ...]
) -> wire.TrainOrder:
    """Return what the client would be asked to evaluate after a round."""
    tables = [r.name for r in entry.down if r.layout == PROTOTYPES]
    given = dict.fromkeys(tables or [wire.ARRAYS], arrays) if entry.down else {}
    return wire.TrainOrder(server_round, given, clients=(client,), epochs=(0,), run=run, void=void)


def last_order(
    folder: Path, server_round: int, arrays: Arrays, entry: Algorithm, client: str, run: str
) -> wire.TrainOrder:
    """Return it with all that the server sends to this client alone.

    Args:
        folder: The result folder.
        server_round: The last round.
        arrays: Of the run's model file.
        entry: Contract of the evaluation.
        client: Name of the client.
        run: Id of the run.

    Raises:
        StateError: The run's checkpoint lacks models that the client's own follows from.
    """
    checkpoint = Checkpoint(folder / CHECKPOINT).read()
    held = checkpoint[0].arrays if checkpoint else {}
    void = tuple(int(r) for r in held.get(VOID, ()))
    order = evaluation_order(server_round, arrays, entry, client, run, void)
    if entry.models:
        order = replace(order, arrays=_several(entry, held, folder))
    for routed in (r.name for r in entry.down if r.to == "each"):
        order = replace(order, per_client={routed: {client: {client: _of_cluster(held, client, folder)}}})
    return order


def without(order: wire.TrainOrder, names: Collection[str]) -> wire.TrainOrder:
    """Return an order without some of the tensors of its models."""
    arrays = {f: {n: a for n, a in model.items() if n not in names} for f, model in order.arrays.items()}
    return replace(order, arrays=arrays)


def _several(entry: Algorithm, held: Arrays, folder: Path) -> dict[str, Arrays]:
    """Return a run's global models, where it has several, from its checkpoint.

    Raises:
        StateError: It has none.
    """
    prefixes = {r.name: f"models/{r.name}/" for r in entry.down}
    found = {
        name: {n.removeprefix(prefix): a for n, a in held.items() if n.startswith(prefix)}
        for name, prefix in prefixes.items()
    }
    if not all(found.values()):
        raise StateError(
            f"{folder / CHECKPOINT}: expected the run's {len(found)} global models, from which "
            f"{entry.name} computes a client's; got none. Run it again, and don't change its folder"
        )
    return found


def _of_cluster(held: Arrays, client: str, folder: Path) -> Arrays:
    """Return the model of a client's cluster from the checkpoint of a run of `strategies.rules.cfl`.

    Raises:
        StateError: It has none.
    """
    arrays, models, members = (
        {n.removeprefix(prefix): a for n, a in held.items() if n.startswith(prefix)}
        for prefix in ("arrays/", "models/", "members/")
    )
    if not models:
        raise StateError(
            f"{folder / CHECKPOINT}: expected the run's clusters, to find that of client {client}; "
            "got none. Run it again, and don't change its folder"
        )
    state = CFLState(arrays, models, members)
    return model_in(state, model_name(home(state, client)))
