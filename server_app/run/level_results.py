"""Results of clients' models by width or kind, where clients have models that differ."""

from typing import Any

from server_app.results.folder import RunFolder
from server_app.run.evaluate import by_level, by_model, of_kinds
from server_app.run.opening import OpenedRun
from task.datasets import Dataset
from task.models.family import Widths
from task.models.kinds import SideBySide
from task.numerics.arrays import Arrays
from task.resolve.run_model import levels_of


def level_results(
    folder: RunFolder, opened: OpenedRun, dataset: Dataset | None, arrays: Arrays, last: int
) -> list[dict[str, Any]] | None:
    """Return the results by level after round `last`; None where all clients have one model."""
    registry, model = opened.strategy.registry, opened.model
    if isinstance(model.family, Widths):
        return by_level(model.family, model.module, dataset, model.task, arrays, last, registry.names)
    if not opened.config.models.levels:
        return None
    module, found = model.module, {}
    if isinstance(module, SideBySide):
        found = of_kinds(module, dataset, model.task, arrays)
    levels = levels_of(opened.config, registry.model)
    return by_model(levels, model.sizes, folder.clients(), registry.names, found)
