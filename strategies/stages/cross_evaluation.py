"""Cross-evaluation, server half: each client's own model goes to every client, which tests it.

It takes place once, after the last round. Where the models are the clients' own, a client sends its own as it
is then; otherwise it trains from the final model for as long as in a round, and sends what that ends in. The
bytes of these messages are not counted in any round.
"""

from typing import Any, ClassVar

from flwr.serverapp import Grid

from strategies.engine.journal import FeatureLog
from strategies.engine.rule import OWN, Phase
from strategies.engine.stage import ContextOf, ServerStage
from strategies.engine.state import ServerState
from task.errors import ConfigError, NodesError
from task.features.cross_evaluation import MOST, OWN_MODEL
from task.text import logger
from task.wire import messages as wire

CROSS = "cross"


class CrossTests(FeatureLog):
    """The tests of the clients' own models at all clients; without a result folder only their number."""

    name: ClassVar[str] = "cross_evaluation"

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Write the tests down; a row has model, client and its figures."""
        logger.info("%d tests of clients' own models", len(rows))


class CrossEvaluationStage(ServerStage):
    """Tests each client's own model at every client."""

    name = "cross_evaluation"
    replayed = False

    def registered(self) -> None:
        """Refuse more clients than can test each other's models.

        Raises:
            ConfigError: Naming the number.
        """
        if (clients := len(self.engine.registry.names)) > MOST:
            raise ConfigError(
                'run-config key "cross-evaluation": each client tests the models of all; expected at most '
                f"{MOST} clients; got {clients}"
            )

    def after_run(self, grid: Grid, last: int, context_of: ContextOf, lr: float, state: ServerState) -> None:
        """Collect the models and have them tested; nodes that are gone by now cost no more than that."""
        engine, rows = self.engine, list[dict[str, Any]]()
        try:
            engine.register(grid, last)
            engine.begin(last, lr)
            clients, context = tuple(engine.registry.names), context_of(last, lr)
            own = engine.run(context.phase(OWN, state, clients), grid).reduced or engine.nobody()
            contract = context.entry.phases[CROSS]
            for i, owner in enumerate(own.clients):
                model = {name: stack[i] for name, stack in own.arrays[OWN_MODEL.name].items()}
                found = engine.run(Phase(CROSS, contract, clients, {wire.ARRAYS: model}), grid).metrics
                rows += [{"model": owner, "client": client, **found[client]} for client in sorted(found)]
            engine.take_done()
        except NodesError as err:
            engine.journal.remark(f"warning: the cross-evaluation is incomplete: {err}")
        engine.journal.log(CrossTests).write(rows)
