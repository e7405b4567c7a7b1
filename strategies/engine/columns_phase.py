"""The phase before round 1 in which the server learns means and deviations of the clients' columns.

All clients that are online and not held out are asked once (`task.catalogue.columns`). The result goes down
with every later message, so that a node that joins late, or starts again, works with the same numbers; a run
that is resumed takes them from its folder.
"""

import math

from flwr.serverapp import Grid

from strategies.engine import held_out
from strategies.engine.phases import PhaseEngine
from strategies.engine.refusals import refused_for_good, too_few_replies
from strategies.engine.rule import Phase
from task.catalogue.columns import COLUMNS, SQUARES, SUMS
from task.catalogue.entry import Algorithm
from task.numerics.moments import ColumnMoments, moments_of
from task.text import logger


def learn_columns(
    engine: PhaseEngine, entry: Algorithm, grid: Grid, known: ColumnMoments | None = None
) -> ColumnMoments | None:
    """Have the engine send moments of the clients' columns from now on; return them, None if none are needed.

    They are those that it has or that are `known`; else all clients are asked for their sums.

    Raises:
        BouquetError: Fewer than ``min-replies`` clients answered; a `NodesError` if another try may help.
        ConfigError: It is not clear which shape the nodes' data have.
    """
    config, registry = engine.config, engine.registry
    if COLUMNS not in entry.phases:
        return None
    engine.moments = engine.moments or known
    if engine.moments is not None:
        return engine.moments
    least = max(config.server.min_replies, 1)
    engine.register(grid, 0, least)
    held_out.draw(config, registry)
    shape, _ = registry.shape_of_data()
    engine.columns = math.prod(shape)
    phase = Phase(COLUMNS, entry.phases[COLUMNS], tuple(sorted(registry.names)), least=least)
    folded = engine.run(phase, grid)
    reduced = folded.reduced
    if reduced is None or len(reduced.clients) < least:
        lines = {line.client: line for line in folded.quarantined}
        raise too_few_replies(
            f"sums of the columns, before round 1: expected those of at least {least} clients (run-config "
            f'key "min-replies"); got {len(reduced.clients) if reduced else 0} of {len(phase.to)}',
            lines.values(),
            refused_for_good(lines, phase.to, least),
        )
    moments = moments_of(reduced.arrays[SUMS.name], reduced.arrays.get(SQUARES.name))
    logger.info(
        "columns: means of %d numeric columns over %d clients", int((moments.count > 0).sum()),
        len(reduced.clients),
    )  # fmt: skip
    engine.moments = moments
    return moments
