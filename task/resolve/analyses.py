"""What each analysis by exact sums reads of a run's config, by its entry's `work`."""

from collections.abc import Callable, Mapping

from task.catalogue.declared import declared_in
from task.config.knobs import Config
from task.trees.declared import Declared

# Modules declare theirs as ``ANALYSES``. Each raises ConfigError if the columns are not declared rightly.
ANALYSES: Mapping[str, Callable[[Config], object]] = declared_in("ANALYSES", "task.classical", "task.trees")


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
