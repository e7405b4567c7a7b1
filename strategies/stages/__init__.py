"""Server halves of the features, a file each: what they add to the phases and rounds of a run."""

from functools import cache

from strategies.engine.phases import PhaseEngine
from strategies.engine.stage import ServerStage
from task.catalogue.entry import Algorithm
from task.features import active, halves


@cache
def _stages() -> dict[str, type[ServerStage]]:
    return {kind.name: kind for kind in halves(__name__) if issubclass(kind, ServerStage) and kind.name}


def stages_of(engine: PhaseEngine, contract: Algorithm) -> list[ServerStage]:
    """Return the server halves of a run's features, in the order in which they act."""
    names = [feature.name for feature in active(engine.config, contract)]
    return [_stages()[name](engine) for name in names if name in _stages()]
