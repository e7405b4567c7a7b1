"""What each analysis by exact sums reads of a run's config, by its entry's `work`."""

from collections.abc import Callable, Mapping

from task.classical.clusters import clustering_of
from task.classical.components import components_of
from task.classical.cox import cox_of
from task.classical.fit import model_of
from task.classical.survey import survey_of
from task.classical.survival import survival_of
from task.config.knobs import Config
from task.trees.boosting import boosting_of
from task.trees.declared import Declared
from task.trees.xgb import xgb_of

# Each raises ConfigError where columns are not declared as they should be.
ANALYSES: Mapping[str, Callable[[Config], object]] = {
    "regression": model_of,
    "description": survey_of,
    "clusters": clustering_of,
    "components": components_of,
    "survival": survival_of,
    "hazards": cox_of,
    "trees": xgb_of,
    "boosting": boosting_of,
}


def declared_of(config: Config) -> Declared:
    """Return the settings of a run with trees; raises TypeError for any other run."""
    found = ANALYSES[config.entry.work](config)
    if not isinstance(found, Declared):
        raise TypeError(f"{config.algorithm} grows no trees")
    return found


def grows_trees(config: Config) -> bool:
    """Return whether a run's result is trees."""
    work = config.entry.work
    return work in ANALYSES and isinstance(ANALYSES[work](config), Declared)
