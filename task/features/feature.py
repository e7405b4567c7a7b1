"""What a feature is: one declaration that the config check, the server and the clients agree on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from task.catalogue.entry import Algorithm
from task.config.knobs import Config
from task.features.refusals import Choice, Pair, Setting

if TYPE_CHECKING:
    from task.datasets.base import Dataset


def nothing(config: Config, contract: Algorithm) -> Algorithm:
    """Return a contract as it is."""
    return contract


@dataclass(frozen=True)
class Tensors:
    """The tensors of a run's model that a feature may not stand, by name."""

    model: str  # its name, for errors
    trained: tuple[str, ...]  # those that the server knows and clients train
    untrained: tuple[str, ...]  # those that the server knows and no client trains
    buffers: tuple[str, ...]  # all that are no parameters
    integers: tuple[str, ...]  # those of integers that the server knows


@dataclass(frozen=True)
class Feature:
    """The declaration of a feature; `strategies.stages` and `client_app.stages` may have halves of it."""

    name: str  # of its files in the three rooms
    place: int  # among all features: those of a lower number act first
    active: Callable[[Config, Algorithm], object]  # whether a run has it, given its keys and contract so far
    adds: Callable[[Config, Algorithm], Algorithm] = nothing  # returns the contract with what it adds
    # Returns the stages of `task.catalogue.stages` that stand around the clients' training.
    stages: Callable[[Config], tuple[str, ...]] = lambda config: ()
    choices: tuple[Choice, ...] = ()  # its values, and which algorithms they do not go with
    pairs: tuple[Pair, ...] = ()  # the keys that it does not go with
    # Returns what else is wrong in a run that has it, given the algorithm's entry, as an error says it after
    # "run-config key"; "" = nothing.
    refuses: Callable[[Config, Algorithm], str] = lambda config, entry: ""
    # Returns how few nodes a run may have, and the setting that says so.
    nodes: Callable[[Config], tuple[int, str]] = lambda config: (1, "")
    # Returns why the simulation cannot run it, in the same form; "" = it can.
    unsimulated: Callable[[Config], str] = lambda config: ""
    # Returns the run's config with what follows from its data, where these are the same for all clients.
    reads: Callable[[Config, Dataset], Config] = lambda config, data: config
    # Returns the sentence that names it as a remedy for a loss or model that is not finite; "" = it is none.
    against_divergence: Callable[[Config], str] = lambda config: ""
    refuses_model: Callable[[Config, Tensors], str] = lambda config, tensors: ""  # the same, of its model
    # What a ClientApp, or a loop around the rounds, that is not Bouquet's cannot do under some settings.
    stock_clients: tuple[tuple[tuple[Setting, ...], str], ...] = ()
    stock_loops: tuple[tuple[tuple[Setting, ...], str], ...] = ()
