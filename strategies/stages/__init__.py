"""Server halves of the features, a file each: what they add to the phases and rounds of a run."""

from importlib import import_module

from strategies.engine.phases import PhaseEngine
from strategies.engine.stage import ServerStage
from task.catalogue.entry import Algorithm
from task.features import active


def stages_of(engine: PhaseEngine, contract: Algorithm) -> list[ServerStage]:
    """Return the server halves of a run's features, in the order in which they act."""
    return [
        kind(engine)
        for feature in active(engine.config, contract)
        for kind in vars(import_module(f"{__name__}.{feature.name}")).values()
        if isinstance(kind, type) and issubclass(kind, ServerStage) and kind.name == feature.name
    ]
