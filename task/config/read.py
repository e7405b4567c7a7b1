"""Run config -> frozen dataclasses; the only reader of the kebab-case keys.

A run is described by the flat keys of ``[tool.flwr.app.config]`` in ``pyproject.toml``, overridden by a
recipe (``task/recipes/*.toml``) and by ``-c key=value``. This module checks each key by itself;
`task.resolve.read` checks whether they go together. Below the two ``app.py`` files only the objects of
`task.config.knobs` are used.
"""

import dataclasses
import operator
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast, get_type_hints

from task.catalogue.user_algorithm import algorithm_of
from task.config.knobs import Config
from task.config.names import elsewhere, unknown_key
from task.config.renamed import present
from task.config.run_name import key_of
from task.config.sections import DataConfig, Section, Value
from task.config.when import When
from task.errors import ConfigError, choose_from

RECIPES = Path(__file__).parents[1] / "recipes"
RUNS = "runs"  # table of a scene; each of its tables has the additional keys of one run
SIGNS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


@dataclass(frozen=True)
class Knob:
    """One run-config key and its declaration."""

    key: str
    section: str  # field of Config that holds it; "" = Config itself
    name: str  # field name in the section
    type: type
    default: Value
    doc: str
    bounds: Mapping[str, float]  # by `SIGNS`
    choices: tuple[str, ...] | tuple[int, ...]
    when: tuple[When, ...]  # further conditions for a run to read it, besides its owner's
    several: bool  # whether its text has parts with commas between them
    section_when: tuple[When, ...] = ()  # those of the whole section

    @property
    def meaning(self) -> str:
        """What the key does, and the values to choose from where that does not name them."""
        others = ", ".join(c for c in map(str, self.choices) if c not in self.doc)
        return self.doc + (f" ({others})" if others else "")


@cache  # a node reads its config with every message
def knobs() -> tuple[Knob, ...]:
    """Return every run-config key, in the order of declaration."""
    found = []
    for section, cls in [("", Config), *_sections()]:
        hints = get_type_hints(cls)
        for f in dataclasses.fields(cls):
            if "doc" not in f.metadata:
                continue
            default, key = cast(Value, f.default), key_of(section, f.name)
            found.append(Knob(key, section, f.name, hints[f.name], default, **f.metadata))
    return tuple(_switched(k, dict(_sections()).get(k.section)) for k in found)


def _switched(k: Knob, section: type[Section] | None) -> Knob:
    """Add the conditions of a key's section; a key's own conditions replace the section's switch."""
    if section is None:
        return k
    own = k.when
    if section.switch and not own and k.name != section.switch:
        switch = section.__dataclass_fields__[section.switch]
        on = tuple(choice for choice in switch.metadata["choices"] if choice != switch.default)
        own = (When(key_of(k.section, section.switch), on),)
    return replace(k, when=own, section_when=section.when)


def section_title(section: str) -> str:
    """Return the title of a section, from its class's docstring; "" is the run itself."""
    doc = dict(_sections())[section].__doc__ if section else "Run."
    return (doc or "").partition("\n")[0].rstrip(".")


@cache
def _sections() -> tuple[tuple[str, type[Section]], ...]:
    hints = get_type_hints(Config)
    return tuple((f.name, hints[f.name]) for f in dataclasses.fields(Config) if "doc" not in f.metadata)


def flatten(table: Mapping[str, Any]) -> dict[str, Value]:
    """Flatten nested TOML tables to dotted keys, as Flower does; keys that were renamed get their new names.

    Raises:
        ConfigError: A key was given by its old and its new name.
    """
    return present(_dotted(table), warn=True)


def _dotted(table: Mapping[str, Any], prefix: str = "") -> dict[str, Value]:
    flat: dict[str, Value] = {}
    for key, value in table.items():
        if not isinstance(value, str | int | float) and isinstance(value, Mapping):
            flat |= _dotted(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def read_checked(run_config: Mapping[str, Any]) -> Config:
    """Return the config of a run that was already checked when it started, from the keys in its files.

    Each key is checked by itself, but not again whether they go together: a model's card has no paths, and
    what a server measures depends on its data, which may not be on this machine.

    Raises:
        ConfigError: An unknown key, a wrong type or a value out of range.
    """
    known = {k.key: k for k in knobs()}
    values: dict[str, dict[str, Any]] = {name: {} for name in ("", *dict(_sections()))}
    for key, raw in flatten(run_config).items():
        if key not in known:
            raise ConfigError(unknown_key(key, known, str(run_config.get("algorithm", ""))))
        k = known[key]
        is_default = type(raw) is k.type and raw == k.default
        values[k.section][k.name] = raw if is_default else checked(k, raw)
    sections: dict[str, Any] = {name: cls(**values[name]) for name, cls in _sections()}
    return _measured(_exact(_parted(Config(**values[""], **sections))))


def _parted(config: Config) -> Config:
    """Use partition=columns if the clients are parties; their test set is one of the rows that all have."""
    if not algorithm_of(config.algorithm).vertical:
        return config
    partition = "columns" if config.data.partition == DataConfig.partition else config.data.partition
    return replace(config, data=replace(config.data, partition=partition, pool_test=True))


def _exact(config: Config) -> Config:
    """Read float64 where no model is trained; set rows aside only if clients measure the result on them."""
    entry = algorithm_of(config.algorithm)
    if not entry.statistics:
        return replace(config, data=replace(config.data, keep_missing=entry.missing_values))
    data = replace(config.data, doubles=True, keep_missing=entry.missing_values, task="regression")
    server = replace(config.server, evaluate_every=0)
    if not entry.tested or (entry.tested == "asked" and server.fraction_evaluate <= 0):
        data = replace(data, local_test_fraction=0.0)
        server = replace(server, fraction_evaluate=0.0)
    return replace(config, data=data, server=server)


def _measured(config: Config) -> Config:
    """Replace ``fraction-evaluate = -1`` by the algorithm's default."""
    share = config.server.fraction_evaluate
    if share >= 0:
        return config
    if share != -1:
        raise ConfigError(
            f'run-config key "fraction-evaluate": expected -1 or float >= 0 and <= 1; got {share!r}'
        )
    return replace(config, server=replace(config.server, fraction_evaluate=config.measured_share))


@cache
def defaults() -> Mapping[str, Value]:
    """Return every run-config key with its default."""
    return MappingProxyType({k.key: k.default for k in knobs()})


def checked(k: Knob, raw: object, what: str = "") -> Value:
    """Return a value as the key's type; errors name it as `what`, "" = by its key.

    Raises:
        ConfigError: It has another type or is out of range.
    """
    what = what or f'run-config key "{k.key}"'
    if k.type is float and isinstance(raw, int) and not isinstance(raw, bool):
        raw = float(raw)
    if type(raw) is not k.type:
        raise ConfigError(f"{what}: expected {k.type.__name__} ({k.doc}); got {raw!r}")
    if why := elsewhere(k.key, raw):
        raise ConfigError(why)
    if k.choices and raw not in k.choices:
        raise ConfigError(choose_from(what, raw, map(str, k.choices)))
    if k.type in (int, float):
        number = float(cast(float, raw))
        if number != number or not all(SIGNS[sign](number, bound) for sign, bound in k.bounds.items()):
            limits = " and ".join(f"{sign} {bound:g}" for sign, bound in k.bounds.items())
            raise ConfigError(f"{what}: expected {k.type.__name__} {limits} ({k.doc}); got {raw!r}")
    return cast(Value, raw)


def as_run_config(config: Config) -> dict[str, Value]:
    """Return every key with its value: the inverse of `read_checked`."""
    return {k.key: getattr(getattr(config, k.section) if k.section else config, k.name) for k in knobs()}


def recipes() -> dict[str, Path]:
    """Return the bundled recipes by name, sorted."""
    return {p.stem: p for p in sorted(RECIPES.glob("*.toml"))}


def scenes() -> dict[str, Path]:
    """Return the bundled scenes by name, sorted: recipes of several runs."""
    return {p.stem: p for p in sorted((RECIPES / "scenes").glob("*.toml"))}


def scene_runs(name_or_path: str) -> dict[str, dict[str, Value]]:
    """Return the keys of each run of a bundled scene, or of a TOML file of the user's own, in its order.

    Raises:
        ConfigError: No such scene, or the file is not TOML or has no runs.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml":
        if name_or_path not in (known := scenes()):
            raise ConfigError(choose_from("scene", name_or_path, known))
        path = known[name_or_path]
    table = read_toml(path)
    runs = table.pop(RUNS, {})
    if not runs:
        raise ConfigError(f"scene {path}: expected a table [{RUNS}.NAME] for each run; got none")
    return {run: {**flatten(table), **flatten(own)} for run, own in runs.items()}


def read_recipe(name_or_path: str, what: str = "--recipe") -> dict[str, Value]:
    """Return the keys of a bundled recipe, of a TOML file of the user's own, or of ``SCENE/RUN``.

    `what` names it in errors.

    Raises:
        ConfigError: No such recipe, or the file is not TOML.
    """
    path = Path(name_or_path)
    if path.suffix == ".toml":
        return flatten(read_toml(path))
    if path.parent.name:
        runs = scene_runs(str(path.parent))
        if path.name not in runs:
            raise ConfigError(choose_from(f"{what} {path.parent}/RUN", path.name, runs))
        return runs[path.name]
    if name_or_path not in (known := recipes()):
        raise ConfigError(choose_from(what, name_or_path, known))
    return flatten(read_toml(known[name_or_path]))


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises:
        ConfigError: There is no such file, or it is not TOML in UTF-8.
    """
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
        raise ConfigError(f"{path}: not a TOML file: {err}") from None
