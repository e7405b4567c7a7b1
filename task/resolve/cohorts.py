"""How many clients a round asks."""

from task.catalogue.selections import cohort_size
from task.config.knobs import Config
from task.config.sections import ServerConfig
from task.errors import ConfigError


def asked_of(server: ServerConfig, population: int) -> int:
    """Return the largest number of clients that a round asks to train."""
    selected = cohort_size(server.fraction_train, population)
    return selected - (round(server.stragglers * selected) if server.drop_stragglers else 0)


def candidates_of(config: Config, population: int) -> int:
    """Return d of power-of-choice, at most the population.

    Raises:
        ConfigError: d < m.
    """
    m, d = cohort_size(config.server.fraction_train, population), config.select.candidates
    if 0 < d < m:
        raise ConfigError(
            f'run-config key "select.candidates": expected at least the {m} clients that train in a round '
            f"(fraction-train {config.server.fraction_train:g} of {population}), or 0; got {d}"
        )
    return min(d or 2 * m, population)
