"""Pairs of run-config keys that do not go together, each with its reason, and the function that refuses them.

A `Setting` is a key at values that something else may not stand. A `Pair` is two settings and why they
exclude each other; its first key is the one that the error names. Whoever cannot stand something declares the
pairs: the features in `task.resolve.pairs`, `measurements`, `private` and `changing`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from task.catalogue.entry import Algorithm
from task.catalogue.selections import SELECTIONS, Selection
from task.config.attack_section import INFORMED
from task.config.knobs import Config
from task.errors import ConfigError
from task.secagg.fixed_point import EXACT

QUOTED = '"{}"'


@dataclass(frozen=True)
class Setting:
    """A run-config key at some of its values."""

    key: str
    on: Callable[[Config], object]  # whether a run has one of these values
    fits: str = ""  # the value that goes with anything, as errors write it
    got: str = "{}"  # its value as errors write it; "" = the key says enough

    def value(self, config: Config) -> str:
        """Return what a run has of it, in words."""
        value = config.value(self.key)
        if isinstance(value, bool):
            return str(value).lower()
        return self.got.format(value if isinstance(value, str) else f"{value:g}")

    def says(self, config: Config) -> str:
        """Return key and value."""
        value = self.value(config)
        return f"{self.key} = {value}" if value else self.key


@dataclass(frozen=True)
class Pair:
    """Two settings of which one makes the other impossible or useless."""

    refused: Setting  # which the error names
    other: Setting
    why: str
    other_stays: bool = (
        False  # whether nobody would give up the other for it, so that the error does not offer
    )


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


def refuse(config: Config, declared: Iterable[Pair]) -> None:
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


# ---------------------------------------------------------------------- settings that several cannot stand


def algorithm_is(holds: Callable[[Algorithm], object]) -> Setting:
    """Return the algorithm as a setting: those whose entries satisfy a condition."""
    return Setting("algorithm", lambda config: holds(config.entry), got=QUOTED)


def policy_is(holds: Callable[[Selection], object], fits: str = '"uniform"') -> Setting:
    """Return the selection policy as a setting: those that satisfy a condition."""
    return Setting("selection", lambda config: holds(SELECTIONS[config.server.selection]), fits)


ALA = Setting("ala", lambda c: c.train.ala, "false")
ATTACK_INFORMED = Setting("attack.kind", lambda c: c.attack.kind in INFORMED)
CANARIES = Setting("audit.canaries", lambda c: c.audit.canaries > 0)
CODEC_DOWN = Setting("codec.down", lambda c: c.codec.down != "none", '"none"')
CODEC_UP = Setting("codec.up", lambda c: c.codec.up != "none", '"none"')
COARSE = Setting("secagg-bits", lambda c: c.server.secagg and c.server.secagg_bits < EXACT, f"{EXACT}")
DP_CENTRAL = Setting("dp.noise", lambda c: c.dp.central)
DP_LOCAL = Setting("dp.unit", lambda c: c.dp.local)
ENOUGH = Setting("enough-replies", lambda c: c.server.enough_replies > 0, "0")
HELD_OUT = Setting("heldout-clients", lambda c: c.server.heldout_clients > 0, "0")
ENCRYPTED = Setting("he", lambda c: c.server.he, "false")
MEANS_FILLED = Setting("missing", lambda c: c.data.missing == "mean", '"zero"')
SECURE = Setting("secagg", lambda c: c.server.secagg, "false")
SHARP = Setting("sam.rho", lambda c: c.sam.rho > 0, "0")
STANDARDISED = Setting("standardise", lambda c: c.data.standardise, "false")
STRUCTURED = Setting("structured.kind", lambda c: c.structured.kind != "none", '"none"')
STRAGGLERS = Setting("stragglers", lambda c: c.server.stragglers > 0, "0")
TRANSCRIPT = Setting("transcript", lambda c: c.server.transcript != "none", "none")

# Which part of the model a client has. Of a run that has several the first counts.
KINDS = Setting("models.levels", lambda c: c.by_kind, '""')
WIDTHS = Setting("width.levels", lambda c: c.narrow and c.width.levels, "1")
DROPOUT = Setting("dropout-width", lambda c: c.narrow and not c.width.levels, "1")
PARTS = (KINDS, WIDTHS, DROPOUT)
