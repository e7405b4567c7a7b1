"""What is expected of the replies to a phase: limits, weights, codes; and how much its clients get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from strategies.engine.rule import ADAPT, EVALUATE, Phase
from task.datasets import spec_of
from task.wire import messages as wire
from task.wire.coding import Coder, coder_of

if TYPE_CHECKING:
    from strategies.engine.phases import PhaseEngine


def limits_of(engine: PhaseEngine, clients: Sequence[str], phase: Phase) -> dict[str, dict[str, float]]:
    """Return by client upper limits of its scalars: what follows from its registration."""
    if not engine.limited or phase.name in (EVALUATE, ADAPT):  # test examples are not registered
        return {}
    targets = spec_of(engine.config.data.dataset).targets
    most = engine.registry.most_examples(clients)
    return {c: {wire.NUM_EXAMPLES: n * targets, **phase.limits.get(c, {})} for c, n in most.items()}


def most_weight(engine: PhaseEngine, phase: Phase) -> float:
    """Return the weight that the clients of a phase have together, at most."""
    if phase.contract.weight == "uniform":
        return float(len(phase.to))
    return sum(limits[wire.NUM_EXAMPLES] for limits in limits_of(engine, phase.to, phase).values())


def coder_for(engine: PhaseEngine, phase: Phase) -> Coder | None:
    """Return what reads the coded records of the replies to a phase."""
    like, models = engine.like(phase.contract, phase.rows), phase.models
    own = (lambda client: {wire.ARRAYS: models.received(client)}) if models else None
    return coder_of(engine.config, phase.contract, like, phase.records, engine.trainable, engine.round, own)


def bytes_to_each(engine: PhaseEngine, phase: Phase) -> dict[str, int]:
    """Return by client the bytes of what it gets, as a device that has followed every round."""
    sizes = {name: sum(a.nbytes for a in arrays.values()) for name, arrays in phase.records.items()}
    if phase.records.get(wire.ARRAYS) is engine.model:
        sizes[wire.ARRAYS] = engine.download.bytes_of(engine.model, engine.trainable)
    found = dict.fromkeys(phase.to, sum(sizes.values()))
    if phase.models:
        for client in found:
            found[client] += sum(a.nbytes for a in phase.models.form(client).values())
    for by_client in phase.route.values():
        for client in found.keys() & by_client.keys():
            found[client] += sum(a.nbytes for arrays in by_client[client].values() for a in arrays.values())
    return found
