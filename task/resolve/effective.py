"""Which run-config keys a run reads; a key that was set and that nothing reads is refused.

A section is read if and only if its owner is active, and a key of it if its own conditions hold, too.
Algorithms, selection policies and partitions say in their registries which keys are theirs; what switches on
any other section, and what holds of single keys, is declared beside the key (`task.config.when`). A run
without rounds trains nothing, and reads no key of training. A key without conditions is read by every run.
Flower hands over the run config with all defaults filled in, so a key counts as set if its value is not the
default.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.selections import SELECTIONS
from task.config.read import knobs
from task.config.when import Value, When, as_toml
from task.datasets import DATASETS
from task.datasets.partition import PARTITIONS
from task.errors import ConfigError
from task.population import listed

# By the key that chooses among them: which keys, and sections, each of the owners reads.
OWNERS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "algorithm": {name: ALGORITHMS[name].reads for name in sorted(ALGORITHMS)},
    "selection": {name: policy.reads for name, policy in SELECTIONS.items()},
    "partition": {
        name: tuple(key.replace("_", "-") for key in spec.keys) for name, spec in PARTITIONS.items()
    },
    "dataset": {
        name: ("data-path", "num-classes", "stream.own-data") if DATASETS[name].own else ()
        for name in sorted(DATASETS)
    },
}
_NO_IMAGES = (*(name for name, spec in DATASETS.items() if spec.text or spec.drawn), "breast-cancer", "csv")
_IMAGES = When("dataset", tuple(sorted(_NO_IMAGES)), but=True)
_TRAINS = When("num-server-rounds", (0,), but=True)
_WITHOUT_ROUNDS = {"device", "portable", "private-layers", "stack", "threads"}  # of training, read by any run
_OF_ROUNDS = {"client-evaluate-every", "fraction-train"}
_BROUGHT = When("partition", tuple(sorted(PARTITIONS)), but=True)
_OF_KINDS = {
    **dict.fromkeys(("pixels", "crop", "augment-brightness", "augment-contrast"), (_IMAGES,)),
    "partition-arguments": (_BROUGHT,),
}


@cache
def conditions(key: str) -> tuple[When, ...]:
    """Return what must hold of a run so that it reads a key; nothing = every run does."""
    knob = next((k for k in knobs() if k.key == key), None)
    if knob is None:  # of a run of another version
        return ()
    section, dot, _ = key.partition(".")
    whole = knob.section_when or (_owned(f"{section}.") if dot else ())
    trains = (knob.section == "train" and key not in _WITHOUT_ROUNDS) or key in _OF_ROUNDS
    trains = trains or any(when.key == "algorithm" and not when.but for when in (*whole, *_owned(key)))
    of_kinds = _OF_KINDS.get(key, ())
    return (*whole, *_owned(key), *knob.when, *of_kinds, *((_TRAINS,) if trains else ()))


def _owned(key: str) -> tuple[When, ...]:
    """Return the conditions that one of the owners of a key, or of a section, is chosen."""
    found = []
    for chooser, owners in OWNERS.items():
        if names := tuple(name for name, keys in owners.items() if key in keys):
            found.append(When(chooser, names, brought=key == "num-classes"))
    return tuple(found)


def reads_only(key: str, algorithm: str) -> bool:
    """Return whether a key is read by this algorithm and not by all: it is a knob of its own."""
    mine = [when for when in conditions(key) if when.key == "algorithm" and not when.but]
    return bool(mine) and all(algorithm in when.values for when in mine)


def unmet(key: str, run: Mapping[str, Value]) -> When | None:
    """Return why a run, given by all its keys, does not read a key; None if it does."""
    return next((when for when in conditions(key) if not when.holds(run)), None)


def models_in(run: Mapping[str, Any]) -> str:
    """Return by name which models a run trains, "" where its algorithm has but one; `run` may lack keys."""
    if names := str(run.get("models.levels") or ""):
        return ", ".join(listed(names))
    given = {"algorithm": "", "models.levels": "", **run}
    return "" if unmet("model", given) else str(run.get("model") or "")


def unread(run: Mapping[str, Value], defaults: Mapping[str, Value]) -> Iterator[tuple[str, When]]:
    """Yield the keys that are not at their default though nothing in the run reads them, and why."""
    for key, value in run.items():
        if value != defaults[key] and (why := unmet(key, run)):
            yield key, why


def check_read(run: Mapping[str, Value], defaults: Mapping[str, Value]) -> None:
    """Refuse a run with a key that was set and that nothing reads.

    Raises:
        ConfigError: Naming the key, what would read it, and what the run has instead.
    """
    for key, why in unread(run, defaults):
        raise ConfigError(
            f'run-config key "{key}": nothing in this run reads it; expected {why}, or the key left out '
            f"(default {as_toml(defaults[key])}); got {as_toml(run[key])} with {why.key} = "
            f"{as_toml(run[why.key])}"
        )
