"""Which runs a sweep has: the grid, list or random draw of its keys, each checked before the first run."""

import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from server_app.results.groups import BARE, said
from task import trust
from task.catalogue.user_algorithm import algorithm_of
from task.config.knobs import CHANGE_NO_RESULT
from task.config.options import SEVERAL, pairs_in, toml_value
from task.config.read import as_run_config, read_recipe, scene_runs
from task.config.sections import Value
from task.errors import ConfigError
from task.references import check_origin, references_in
from task.resolve.read import fuse, read_config

MOST_POINTS = 100_000
LONGEST_NAME = 120
OURS = ("run-name", "resume", "progress")  # keys that the sweep sets for each run
SEED = "seed"
_VALUE = re.compile(r"""(?:"[^"]*"|'[^']*'|[^,"'])+""")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")

Axes = dict[str, list[Value]]


@dataclass(frozen=True)
class SweepPoint:
    """One run of a sweep."""

    name: str  # of its folder
    keys: dict[str, Value]  # the run-config keys that are set


@dataclass
class Plan:
    """The runs of a sweep, in the order in which they start."""

    points: list[SweepPoint]
    swept: Axes  # keys with several values, in the order given, seeds last
    remarks: list[str] = field(default_factory=list)


def read_axes(recipe: str, options: Sequence[str]) -> tuple[Axes, frozenset[str]]:
    """Return every key of a recipe and of ``-c`` options with its values, and the keys of the options.

    In an option ``a=1,2`` and ``seed=1..5`` (both ends included) are several values, in a recipe an array is.

    Raises:
        ConfigError: A pair cannot be read, or a recipe is not there.
    """
    axes, own = _arrays(read_recipe(recipe)) if recipe else {}, set[str]()
    for option in options:
        if option.endswith(".toml") and "=" not in option:
            axes |= (table := _arrays(read_recipe(option)))
            own |= table.keys()
            continue
        pairs = pairs_in(
            option,
            "values separated by commas without spaces, such as "
            '\'learning-rate=0.05,0.1 seed=1..5 algorithm="fedavg","moon"\'',
            SEVERAL,
        )
        typed = {key: _values(key, text) for key, text in pairs.items()}
        trust.user_named(references_in({key: ",".join(map(str, values)) for key, values in typed.items()}))
        axes |= typed
        own |= pairs.keys()
    for key in OURS:
        if key in axes:
            raise ConfigError(
                f'run-config key "{key}": the sweep sets it for each run; expected none; got it'
            )
    return axes, frozenset(own)


def _arrays(table: Mapping[str, Any]) -> Axes:
    axes = {key: list(value) if isinstance(value, list) else [value] for key, value in table.items()}
    for key, values in axes.items():
        if not values:
            raise ConfigError(f'run-config key "{key}": expected at least one value; got an empty array')
    return axes


def _values(key: str, text: str) -> list[Value]:
    found = list[Value]()
    for part in _VALUE.findall(text):
        if ends := _RANGE.fullmatch(part):
            first, last = int(ends[1]), int(ends[2])
            if not 0 <= last - first < MOST_POINTS:
                raise ConfigError(
                    f'run-config key "{key}": expected a range FIRST..LAST of at most {MOST_POINTS:,} whole '
                    f"numbers; got {part}"
                )
            found += range(first, last + 1)
            continue
        value = toml_value(part)
        if value is None:
            raise ConfigError(
                f'run-config key "{key}": expected a number, true, false, a range such as 1..5 or a word in '
                f"double quotes; got {part}"
            )
        found.append(value)
    if not found or any(not isinstance(value, Value) for value in found) or text.endswith(","):
        raise ConfigError(f'run-config key "{key}": expected values separated by commas; got {text}')
    return found


def plan(
    axes: Axes, own: frozenset[str] = frozenset(), listed: str = "", draw: int = 0, draw_seed: int = 1
) -> Plan:
    """Return the points of a grid, of a list of runs, or of both crossed; each is checked.

    A key that only some of the points read, such as fedprox.mu, is left out of the others, and points that
    are the same run then become one.

    Args:
        axes: As from `read_axes`.
        own: Keys that some point must read: the user's, not the recipe's.
        listed: A scene, or a TOML file with a table ``[runs.NAME]`` for each run; "" = none.
        draw: Number of configurations, drawn from all of them by `draw_seed`, each with all its seeds; 0 =
        all.
        draw_seed: Seed of that draw.

    Raises:
        ConfigError: A point cannot run, or there are too many or none.
    """
    runs = scene_runs(listed) if listed else {"": {}}
    swept = {key: values for key, values in axes.items() if len(values) > 1}
    swept = {key: values for key, values in swept.items() if key != SEED} | {
        key: values for key, values in swept.items() if key == SEED
    }
    for key, values in swept.items():
        if twice := [v for v, n in Counter(map(repr, values)).items() if n > 1]:
            raise ConfigError(
                f'run-config key "{key}": expected each value once; got {twice[0]} more than once'
            )
    fixed = {key: values[0] for key, values in axes.items() if key not in swept}
    seeds = swept.get(SEED, [None])
    inner = {key: values for key, values in swept.items() if key != SEED}
    total = len(runs) * math.prod(map(len, inner.values()))
    if (draw or total) * len(seeds) > MOST_POINTS:
        raise ConfigError(
            f"sweep: expected at most {MOST_POINTS:,} runs; got {(draw or total) * len(seeds):,}"
        )
    chosen: Iterable[int] = range(total)
    if 0 < draw < total:
        chosen = sorted(random.Random(draw_seed).sample(range(total), draw))
    combined = list[tuple[str, dict[str, Any]]]()
    for number in chosen:
        label, keys = _combination(number, runs, inner)
        for seed in seeds:
            combined.append((label, {**fixed, **keys} | ({} if seed is None else {SEED: seed})))
    return _checked(combined, swept, own, listed)


def _combination(
    number: int, runs: Mapping[str, Mapping[str, Value]], axes: Axes
) -> tuple[str, dict[str, Value]]:
    """Return the run of the list and the values of the axes that a number means; the last axis is fastest."""
    keys = dict[str, Value]()
    for key, values in reversed(axes.items()):
        number, at = divmod(number, len(values))
        keys[key] = values[at]
    label = list(runs)[number]
    return label, {**runs[label], **{key: keys[key] for key in axes}}


def _checked(
    combined: Sequence[tuple[str, Mapping[str, Any]]], swept: Axes, own: frozenset[str], listed: str
) -> Plan:
    points, seen = list[SweepPoint](), set[str]()
    dropped, reasons = Counter[str](), dict[str, str]()
    places, unmeasured = set[str](), False
    for label, keys in combined:
        check_origin(keys, listed or "the recipe")
        kept, unread = fuse(keys, {})
        dropped.update(unread.keys())
        reasons |= unread
        config = read_config(kept)
        places.add(("server", "clients")[config.train.ala or algorithm_of(config.algorithm).personal])
        unmeasured |= config.server.fraction_evaluate == 0
        whole = {k: v for k, v in as_run_config(config).items() if k not in CHANGE_NO_RESULT}
        if repr(whole) not in seen:
            seen.add(repr(whole))
            points.append(SweepPoint(_name(label, {key: kept[key] for key in swept if key in kept}), kept))
    for key, times in dropped.items():
        if times == len(combined) and key in own:  # nothing reads it: the error says what would
            read_config(combined[0][1])
    remarks = [
        f"{key} is ignored in {times} of {len(combined)} combinations: it is for {reasons[key]}"
        for key, times in dropped.items()
    ]
    if len(points) < len(combined):
        remarks.append(f"{len(combined)} combinations are {len(points)} different runs")
    if len(places) > 1 and unmeasured:
        remarks.append(
            "some runs are evaluated only by the clients and others only by the server, so no table "
            "can compare them: set fraction-evaluate=1.0 for all"
        )
    return Plan(_named_apart(points), swept, remarks)


def _name(label: str, values: Mapping[str, Value]) -> str:
    ordered = sorted(values, key=lambda key: key not in BARE)
    words = [label] * bool(label) + [said(key, values[key]) for key in ordered]
    return re.sub(r"[^\w.=+-]+", "_", "-".join(words))[:LONGEST_NAME].strip("._") or "run"


def _named_apart(points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """Number the points whose names are alike but for what a file name cannot hold."""
    shared = {name for name, n in Counter(point.name for point in points).items() if n > 1}
    return [
        SweepPoint(f"{point.name}_{i}", point.keys) if point.name in shared else point
        for i, point in enumerate(points, start=1)
    ]
