"""Which run-config keys a run reads; a key that was set and that nothing reads is refused.

A section is read if and only if its owner is active, and a key of it if its own conditions hold, too.
Algorithms, selection policies and partitions say in their registries which keys are theirs; what switches on
any other section, and what holds of single keys, is declared beside the key (`task.config.when`). A run
without rounds trains nothing, and reads no key of training. A key without conditions is read by every run.
Flower hands over the run config with all defaults filled in, so a key counts as set if its value is not the
default.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.selections import SELECTIONS
from task.config.algorithm_sections import AlgorithmKeys
from task.config.personal_sections import PersonalKeys
from task.config.read import as_run_config, knobs, read_checked
from task.config.when import Value, When, as_toml
from task.datasets import DATASETS
from task.datasets.partition import PARTITIONS
from task.errors import ConfigError, choose_from
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
_OF_ALGORITHMS = {f.name for f in (*fields(AlgorithmKeys), *fields(PersonalKeys))}
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
    whole, owned = knob.section_when, _owned(key, by_section=not knob.section_when)
    trains = (knob.section == "train" and key not in _WITHOUT_ROUNDS) or key in _OF_ROUNDS
    trains = trains or any(when.key == "algorithm" and not when.but for when in (*whole, *owned))
    of_kinds = _OF_KINDS.get(key, ())
    return (*whole, *owned, *knob.when, *of_kinds, *((_TRAINS,) if trains else ()))


def _owned(key: str, *, by_section: bool) -> tuple[When, ...]:
    """Return the conditions that one of the owners of a key is chosen; `by_section` = or of its section.

    Those that name the key read it. Those that name its section read it, too, unless one of them also names
    the key: then only some of the section's owners read it. So who names a single key of a section that it
    does not read takes it from nobody.
    """
    section, dot, _ = key.partition(".")
    found = []
    for chooser, owners in OWNERS.items():
        named = {name for name, keys in owners.items() if key in keys}
        of_section = {name for name, keys in owners.items() if by_section and dot and section + dot in keys}
        if names := named | (set() if named & of_section else of_section):
            order = tuple(name for name in owners if name in names)
            found.append(When(chooser, order, brought=key == "num-classes"))
    return tuple(found)


def check_owners(owners: Mapping[str, tuple[str, ...]]) -> None:
    """Check that the keys and sections that entries of the catalogue name in ``reads`` are theirs to name.

    Raises:
        ConfigError: There is no such key or section, or a key says itself which algorithms read it.
    """
    known = {knob.key: knob for knob in knobs()}
    sections = {f"{key.partition('.')[0]}." for key in known if "." in key}
    for name, reads in owners.items():
        what = f'catalogue entry "{name}", reads'
        for key in reads:
            if key in sections or key == f"{name}.":  # which it has by default
                continue
            if key not in known:
                raise ConfigError(choose_from(what, key, [*known, *sections]))
            knob = known[key]
            said = knob.section_when or any(when.key == "algorithm" for when in knob.when)
            if said or knob.section not in _OF_ALGORITHMS:
                raise ConfigError(
                    f"{what}: expected sections, and keys of sections that algorithms own; got "
                    f'"{key}", which says in task/config who reads it. Leave it out here'
                )


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


def unread(
    run: Mapping[str, Value], defaults: Mapping[str, Value], typed: Mapping[str, Value] | None = None
) -> Iterator[tuple[str, When, Value]]:
    """Yield the keys that were set though nothing in the run reads them, why, and their values.

    `typed` are the keys as the user gave them, where the algorithm fixes some of the run's. A key is not set
    that has its default or the value that the run has without it.
    """
    given = {**run, **(typed or {})}
    odd = {key: why for key, value in given.items() if value != defaults[key] and (why := unmet(key, run))}
    if not odd:
        return
    without = as_run_config(read_checked({key: value for key, value in given.items() if key not in odd}))
    yield from ((key, why, given[key]) for key, why in odd.items() if given[key] != without[key])


def check_read(
    run: Mapping[str, Value], defaults: Mapping[str, Value], typed: Mapping[str, Value] | None = None
) -> None:
    """Refuse a run with a key that was set and that nothing reads; `typed` is that of `unread`.

    Raises:
        ConfigError: Naming the key, what would read it, and what the run has instead.
    """
    for key, why, value in unread(run, defaults, typed):
        raise ConfigError(
            f'run-config key "{key}": nothing in this run reads it; expected {why}, or the key left out '
            f"(default {as_toml(defaults[key])}); got {as_toml(value)} with {why.key} = "
            f"{as_toml(run[why.key])}"
        )


check_owners(OWNERS["algorithm"])
