"""What a feature is, as far as both halves and the config check agree on it."""

from collections.abc import Callable
from dataclasses import dataclass

from task.catalogue.entry import Algorithm
from task.config.knobs import Config


def nothing(config: Config, contract: Algorithm) -> Algorithm:
    """Return a contract as it is."""
    return contract


@dataclass(frozen=True)
class Feature:
    """The declaration of a feature; `strategies.stages` and `client_app.stages` have its halves."""

    name: str  # of its files in the three rooms
    place: int  # among all features: those of a lower number act first
    active: Callable[[Config, Algorithm], bool]  # whether a run has it, given its keys and contract so far
    adds: Callable[[Config, Algorithm], Algorithm] = nothing  # returns the contract with what it adds
    key: str = ""  # run-config key that turns it on, for errors
    # Returns why it cannot be in a run of these keys and this contract; "" = it can.
    refuses: Callable[[Config, Algorithm], str] = lambda config, contract: ""
