"""What a feature is, as far as both halves and the config check agree on it."""

from collections.abc import Callable
from dataclasses import dataclass

from task.catalogue.entry import Algorithm
from task.config.knobs import Config


@dataclass(frozen=True)
class Feature:
    """The declaration of a feature; `strategies.stages` and `client_app.stages` have its halves."""

    name: str  # of its files in the three rooms
    active: Callable[[Config, Algorithm], bool]  # whether a run has it, given its keys and contract
