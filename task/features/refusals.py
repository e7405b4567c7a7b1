"""How a feature declares what it does not go with, and the functions that refuse it.

A `Setting` is a run-config key at some of its values. A `Pair` is two settings that exclude each other, with
the reason; the error names the key of the first. A `Choice` is values of a key that some algorithms do not go
with. Each feature declares its own in its file.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.entry import Algorithm
from task.catalogue.selections import SELECTIONS, Selection
from task.config.knobs import Config
from task.config.when import as_toml
from task.errors import ConfigError


@dataclass(frozen=True)
class Setting:
    """A run-config key at some of its values."""

    key: str
    on: Callable[[Config], object]  # whether a run has one of these values
    fits: str = ""  # the value that goes with anything, as errors write it
    shown: bool = True  # whether errors show its value; False = the key says enough

    def value(self, config: Config) -> str:
        """Return what a run has of it, as a user types it."""
        return as_toml(config.value(self.key))

    def says(self, config: Config) -> str:
        """Return key and value."""
        return f"{self.key} = {self.value(config)}" if self.shown else self.key


_PARTIES = "its clients are parties, which hold columns and parts of the model; this is not defined for them"

_SUMS = "its clients send exact sums over all their rows, and no model is trained"
_TREES = "its clients send trees: there is no model whose changes could be coded, clipped or added up"

# What stands for a value in the tables and errors.
OWN = "package.module:name"  # anything that a user brings
SOME, BELOW_ONE = "> 0", "< 1"
FILE = "FILE"  # any path
LEVELS = "1,0.5"
MODELS = "logistic,mlp"


@dataclass(frozen=True)
class Choice:
    """Values of a run-config key that add something to an algorithm."""

    key: str
    values: tuple[bool | int | str, ...]  # which are alike in what they need
    # Returns why an algorithm does not go with it; "" = it does.
    why_not: Callable[[Algorithm], str] = lambda entry: ""
    setting: Setting | None = None  # what says whether a run has one of the values, if these stand for others
    of_sums: bool = False  # whether it goes with exact sums of rows, of which no model is trained

    def __post_init__(self) -> None:
        """Refuse a choice that is about a whole model where clients train parts of one, or none."""
        check = self.why_not

        def why_not(entry: Algorithm) -> str:
            if entry.vertical:
                return _PARTIES
            if entry.statistics and any(r.reduce == "collect" for r in entry.up):
                return _TREES
            return _SUMS if entry.statistics and not self.of_sums else check(entry)

        object.__setattr__(self, "why_not", why_not)

    def __str__(self) -> str:
        if self.values in ((SOME,), (BELOW_ONE,)):
            return f"{self.key} {self.values[0]}"
        values = [str(v).lower() if isinstance(v, int) else f'"{v}"' for v in self.values]
        return f"{self.key} = {' | '.join(values)}"

    def chosen(self, config: Config) -> bool:
        """Return whether a run config says so."""
        if self.setting is not None:
            return bool(self.setting.on(config))
        return config.value(self.key) in self.values

    def says(self, config: Config) -> str:
        """Return what a run chose, as errors write it."""
        return f"{self.key} = {as_toml(config.value(self.key))}" if self.values == (MODELS,) else str(self)


@dataclass(frozen=True)
class Pair:
    """Two settings that exclude each other: one makes the other impossible or useless."""

    refused: Setting  # which the error names
    other: Setting
    why: str
    other_stays: bool = False  # whether the error offers no other value of the second key


Some = Setting | tuple[Setting, ...]


def pairs(refused: Some, *others: tuple[Some, str]) -> Iterator[Pair]:
    """Yield the pairs of a setting, or of each of some, with all that it cannot stand."""
    for other, why in others:
        for a, b in product(_tuple(refused), _tuple(other)):
            yield Pair(a, b, why)


def refused_by(owner: Setting, *refused: tuple[Some, str]) -> Iterator[Pair]:
    """Yield the same the other way round: the owner stays, and the error names the other key."""
    for other, why in refused:
        for setting in _tuple(other):
            yield Pair(setting, owner, why, other_stays=True)


def _tuple(some: Some) -> tuple[Setting, ...]:
    return (some,) if isinstance(some, Setting) else some


def check_choices(config: Config, entry: Algorithm, choices: Iterable[Choice]) -> None:
    """Refuse a run with a choice that its algorithm does not go with.

    Raises:
        ConfigError: Naming key, algorithm, the reason, and algorithms that would go.
    """
    for choice in choices:
        if choice.chosen(config) and (why := choice.why_not(entry)):
            fits = [
                name for name, other in ALGORITHMS.items() if name != entry.name and not choice.why_not(other)
            ]
            raise ConfigError(
                f'run-config key "{choice.key}": {choice.says(config)} does not go with '
                f'algorithm = "{entry.name}": {why}; '
                f"expected one of {', '.join(fits[:12])}{', ...' if len(fits) > 12 else ''}, or another "
                f'"{choice.key}"'
            )


def check_pairs(config: Config, declared: Iterable[Pair]) -> None:
    """Refuse a run with two keys that exclude each other.

    Raises:
        ConfigError: Naming both, the reason, and what would go.
    """
    for pair in declared:
        if pair.refused.on(config) and pair.other.on(config):
            raise ConfigError(_text(config, pair))


def _text(config: Config, pair: Pair) -> str:
    key, fits, other = pair.refused.key, pair.refused.fits, pair.other.says(config)
    if not fits:
        return f'run-config key "{key}": it does not go with {other}, as {pair.why}. Leave one of the two out'
    remedy = "" if pair.other_stays else f'. Set it to {fits}, or choose another "{pair.other.key}"'
    return (
        f'run-config key "{key}": expected {fits} with {other}, as {pair.why}; '
        f"got {pair.refused.value(config)}{remedy}"
    )


def algorithm_is(holds: Callable[[Algorithm], object]) -> Setting:
    """Return the algorithm as a setting: those whose entries satisfy a condition."""
    return Setting("algorithm", lambda config: holds(config.entry))


def policy_is(holds: Callable[[Selection], object], fits: str = '"uniform"') -> Setting:
    """Return the selection policy as a setting: those that satisfy a condition."""
    return Setting("selection", lambda config: holds(SELECTIONS[config.server.selection]), fits)


def hides_clients(config: Config) -> str:
    """Return the key by which the server learns no client's own numbers; "" = it does."""
    hides = {"secagg": config.server.secagg, "he": config.server.he, "dp.noise": config.dp.noise}
    return next((key for key, on in hides.items() if on), "")
