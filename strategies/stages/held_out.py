"""Held-out clients: they never train, and are evaluated once, after the last round.

They are drawn before round 1 by the data's seed, a share of the clients that are online then, and are no part
of the population until the run is over: no selection sees them and no rule counts them. Then they join as
new clients do. The model goes to them and an accuracy comes back; where the models are the clients' own, one
of what a new client has, and one of the same after a round of local training, whose result is neither sent
nor kept. The bytes of these messages are not counted in any round.
"""

import json
from typing import Any

from flwr.serverapp import Grid

from strategies.engine.rounds import client_lines
from strategies.engine.rule import ADAPT, EVALUATE
from strategies.engine.stage import ContextOf, ServerStage
from strategies.engine.state import ServerState
from task.errors import NodesError
from task.numerics import seeds
from task.numerics.arrays import Arrays, NamedArrays, of_text, text_in

NAMES = "heldout/names"
# What a measurement is called in ``clients.jsonl``, by phase.
LINES = {EVALUATE: "heldout", ADAPT: "heldout-adapted"}


class HeldOutStage(ServerStage):
    """Keeps a share of the clients out of training, and measures them after the last round."""

    name = "held_out"

    def enrolled(self) -> None:
        """Draw the held-out clients, if that was not done yet.

        Raises:
            ConfigError: No client would be left to train.
        """
        config = self.engine.config
        rng = seeds.rng_for(config.seeds.data, seeds.HELDOUT)
        self.engine.registry.hold_out(config.server.fraction_heldout, rng)

    def after_run(self, grid: Grid, last: int, context_of: ContextOf, lr: float, state: ServerState) -> None:
        """Let those held out join, and measure them; nodes that are gone by now cost no more than that.

        They train at the rate `lr`, that of the next round.
        """
        engine, lines = self.engine, list[dict[str, Any]]()
        if not engine.registry.held_out:
            return
        try:
            engine.register(grid, last)
            clients = engine.registry.let_in()
            engine.begin(last, lr)
            context = context_of(last, lr)
            for name in LINES if context.entry.personal else (EVALUATE,):
                folded = engine.run(context.phase(name, state, clients), grid)
                lines += client_lines(last, LINES[name], folded)
            engine.take_done()
        except NodesError as err:
            engine.journal.remark(f"warning: the held-out clients are not evaluated: {err}")
            return
        if lines:
            engine.journal.measured_last(last, lines)

    def dump(self) -> Arrays:
        """Return who is held out for a checkpoint, under a name of its own."""
        registry = self.engine.registry
        if not registry.held_out:
            return {}
        return {NAMES: of_text(json.dumps(sorted(registry.held_out)))}

    def load(self, arrays: NamedArrays, done: int) -> None:
        """Take up what `dump` returned."""
        registry = self.engine.registry
        if NAMES in arrays:
            names: list[Any] = json.loads(text_in(arrays[NAMES]))
            registry.held_out = frozenset(names)
            registry.known.forget(registry.held_out)
