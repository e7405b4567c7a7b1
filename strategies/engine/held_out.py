"""Clients held out: they take no part in training and are measured once, after the last round.

They are drawn before round 1 by the data's seed, a share of the clients that are online then, and are no part
of the population until the run is over: no selection sees them and no rule counts them. Then they join as
new clients do. The model goes to them and an accuracy comes back; where the models are the clients' own, one
of what a new client has, and one of the same after a round of local training, of which nothing goes up or is
kept. What these messages weigh is not booked on any round.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from strategies.engine.phases import PhaseEngine
from strategies.engine.rounds import client_lines
from strategies.engine.rule import ADAPT, EVALUATE, RoundContext
from strategies.engine.state import ServerState
from strategies.membership.client_registry import ClientRegistry
from task.config.knobs import Config
from task.numerics import seeds
from task.numerics.arrays import Arrays, NamedArrays

NAMES = "heldout/names"
# What a measurement is called in ``clients.jsonl``, by phase.
LINES = {EVALUATE: "heldout", ADAPT: "heldout-adapted"}


def draw(config: Config, registry: ClientRegistry) -> None:
    """Draw who is held out, if anybody is to be and nobody was yet.

    Raises:
        ConfigError: No client would be left to train.
    """
    if share := config.server.heldout_clients:
        registry.hold_out(share, seeds.rng_for(config.seeds.data, seeds.HELDOUT))


def measure(
    engine: PhaseEngine,
    grid: Grid,
    server_round: int,
    lr_of: Callable[[int], float],
    context_of: Callable[[int, float], RoundContext],
    state: ServerState,
) -> list[dict[str, Any]]:
    """Let those held out join, measure them after a round, and return their lines of ``clients.jsonl``.

    They train at the rate `lr_of` the next round.

    Raises:
        NodesError: No node is online.
    """
    if not engine.registry.held_out:
        return []
    engine.register(grid, server_round)
    clients, lines = engine.registry.let_in(), []
    lr = lr_of(server_round + 1)
    engine.begin(server_round, lr)
    context = context_of(server_round, lr)
    for name in LINES if context.entry.personal else (EVALUATE,):
        folded = engine.run(context.phase(name, state, clients), grid)
        lines += client_lines(server_round, LINES[name], folded)
    engine.settle()
    return lines


def dump(registry: ClientRegistry) -> Arrays:
    """Return who is held out for a checkpoint, under a name of its own."""
    if not registry.held_out:
        return {}
    text = json.dumps(sorted(registry.held_out)).encode()
    return {NAMES: np.frombuffer(text, np.uint8).copy()}


def load(registry: ClientRegistry, arrays: NamedArrays) -> None:
    """Take up what `dump` returned."""
    if NAMES in arrays:
        names: list[Any] = json.loads(arrays[NAMES].tobytes())
        registry.held_out = frozenset(names)
        registry.known.forget(registry.held_out)
