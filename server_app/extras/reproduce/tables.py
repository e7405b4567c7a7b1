"""Reads a table of a paper: a TOML file with a table ``[cells.NAME]`` for each published value.

Keys at the top hold for every cell that does not set them itself. A cell's ``keys`` are added to those of the
table's that its algorithm reads, as with a recipe. A table that ``extends`` another one of its folder has all
of that table, except what it sets itself at its top for every cell. Measured values are in
`server_app.extras.reproduce.records`: results are never typed by hand.
"""

import difflib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from server_app.extras.reproduce.measures import MEASURES, Measure
from server_app.results.lines import number
from task.config.read import RECIPES, SIGNS, flatten, read_recipe, read_toml
from task.config.sections import Value
from task.errors import ConfigError, choose_from
from task.references import check_origin
from task.resolve.read import fuse, read_config

TABLES = RECIPES / "tables"
OURS = (
    "learning-rate",
    "seed",
    "data-seed",
    "run-name",
    "runs-dir",
    "resume",
    "progress",
    "checkpoint-every",
)
WALK, FULL = "walk", "full"
RATE = "learning-rate"
# base / cell, cell - base, cell / the least base
RATIO, DIFFERENCE, OVER_BEST = KINDS = ("ratio", "difference", "over-best")
# Keys of a table file with their types: those of the whole table, and those that a cell may set too.
OF_THE_TABLE: dict[str, type | tuple[type, ...]] = {
    "title": str, "paper": str, "url": str, "about": str, "group": int, "cells": dict, "claims": dict,
    "extends": str,
}  # fmt: skip
OF_A_CELL: dict[str, type | tuple[type, ...]] = {
    "setting": str, "recipe": str, "keys": dict, "where": str, "metric": str, "published": (int, float),
    "published-sd": (int, float), "unquoted": str, "fraction": str, "needs": str, "grid": str,
    "learning-rates": list, "start": (int, float), "rate-key": str, "seeds": list, "data-seeds": list,
    "round-seconds": (int, float), "gpu-round-seconds": (int, float), "speed-up-over": str,
}  # fmt: skip
REQUIRED = ("setting", "where", "metric", "learning-rates", "seeds", "round-seconds")
OF_A_CLAIM: dict[str, type | tuple[type, ...]] = {
    "says": str, "where": str, "of": str, "cells": list, "base": list,
    "low": (int, float), "high": (int, float),
}  # fmt: skip


class RunSeed(NamedTuple):
    """The seed of one run; its data may have another one, so that a table can cross both."""

    seed: int
    data: int = -1  # -1 = the same

    def __str__(self) -> str:
        """Return for example "1", or "1/2" with a seed of the data."""
        return f"{self.seed}" if self.data < 0 else f"{self.seed}/{self.data}"

    @property
    def keys(self) -> dict[str, Value]:
        """Return the run-config keys."""
        return {"seed": self.seed, **({} if self.data < 0 else {"data-seed": self.data})}


@dataclass(frozen=True)
class Cell:
    """One published value, and the runs that measure it here."""

    name: str
    setting: str  # in words
    where: str  # the value's place in the paper
    keys: Mapping[str, Value]  # of its runs, but learning rate and seed
    measure: Measure
    published: float | None
    published_sd: float | None
    unquoted: str  # why there is no published value
    fraction: str  # in what it is less than published; "" = in nothing
    needs: str  # what is missing to run it; "" = nothing
    grid: str  # WALK or FULL
    rates: tuple[float, ...]  # learning rates, ascending
    start: float  # the rate that is tried first
    seeds: tuple[RunSeed, ...]
    round_seconds: float  # estimate, on two quiet cores
    gpu_round_seconds: float | None = None  # estimate, on one H100; None = it does not want one
    on_gpu: bool = False  # whether it is to run on a GPU, and `round_seconds` is the estimate there
    rounds: int = 0  # the most of a run
    least_rounds: int = 1  # to which a run may be limited
    likely_rounds: int = 0  # of a run, by earlier ones at the same rate; 0 = there are none
    speed_up_over: str = ""  # the cell whose rounds are divided by this one's; "" = none
    rate_key: str = RATE  # run-config key that the learning rates are of

    def keys_of(self, rate: float, seed: RunSeed) -> dict[str, Value]:
        """Return the keys of one run."""
        return {**self.keys, self.rate_key: rate, **seed.keys}


@dataclass(frozen=True)
class PublishedClaim:
    """A sentence of the paper that follows from cells: a ratio or a difference of means, within bounds."""

    says: str
    where: str
    of: str  # one of `KINDS`
    cells: tuple[str, ...]
    base: tuple[str, ...]  # as many as `cells`, or one for all; of OVER_BEST any
    low: float
    high: float


@dataclass(frozen=True)
class PublishedTable:
    """A table of a paper."""

    name: str
    path: Path
    title: str
    paper: str
    url: str
    about: str
    group: int  # its place among the tables
    cells: Mapping[str, Cell] = field(default_factory=dict)
    claims: tuple[PublishedClaim, ...] = ()


def tables() -> dict[str, Path]:
    """Return the bundled tables by name, sorted."""
    return {path.stem: path for path in sorted(TABLES.glob("*.toml"))}


def read_table(name_or_path: str) -> PublishedTable:
    """Return a bundled table, or that of a TOML file of the user's own; every setting in it is checked.

    Raises:
        ConfigError: There is none, or something in it is wrong: names the file, the cell and the key.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml":
        if name_or_path not in (known := tables()):
            raise ConfigError(
                f"{choose_from('reproduce TABLE', name_or_path, known)} A table of your own is a "
                "file that ends in .toml"
            )
        path = known[name_or_path]
    top = _read(path)
    if "extends" in top:
        top = _extended(top, path)
    for key in ("title", "paper"):
        if key not in top:
            raise ConfigError(f'{path}: key "{key}": expected it at the top of the file; got none')
    shared = {key: value for key, value in top.items() if key not in OF_THE_TABLE}
    cells = {
        name: _cell(name, shared, own, f"{path}, cell {name}") for name, own in _tables(top, "cells", path)
    }
    if not cells:
        raise ConfigError(f"{path}: expected a table [cells.NAME] for each published value; got none")
    for cell in cells.values():
        if cell.speed_up_over and not (cell.measure.to_target and cell.speed_up_over in cells):
            raise ConfigError(
                f'{path}, cell {cell.name}: key "speed-up-over": expected a cell of this table, and metric = '
                f'"rounds"; got "{cell.speed_up_over}" and "{cell.measure.name}"'
            )
    for key in flatten(top.get("keys", {})):
        if not any(key in cell.keys for cell in cells.values()):
            raise ConfigError(f'{path}: key "keys.{key}": expected a key that a cell reads; no cell reads it')
    claims = tuple(_claim(own, cells, f"{path}, claim {name}") for name, own in _tables(top, "claims", path))
    texts = {key: top.get(key, "") for key in ("title", "paper", "url", "about")}
    return PublishedTable(path.stem, path, **texts, group=top.get("group", 0), cells=cells, claims=claims)


def _read(path: Path) -> dict[str, Any]:
    top = read_toml(path)
    _check(top, {**OF_THE_TABLE, **OF_A_CELL}, str(path))
    return top


def _extended(own: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return a table with what it takes from another one."""
    name = own["extends"]
    file = path.with_name(f"{name}.toml") if Path(name).name == name else None
    base = _read(file) if file and file.is_file() else None
    if file is None or base is None or "extends" in base:
        raise ConfigError(
            f'{path}: key "extends": expected a table of the same folder that extends none itself; got '
            f'"{name}"'
        )
    read_table(str(file))  # errors in it are not reported as errors in `path`
    for_all = {key: value for key, value in own.items() if key in OF_A_CELL and key != "keys"}
    keys = flatten(own.get("keys", {}))
    cells = {cell: {**its, **for_all} for cell, its in _tables(base, "cells", file)}
    for its in cells.values():
        its["keys"] = {key: value for key, value in flatten(its.get("keys", {})).items() if key not in keys}
    for cell, its in _tables(own, "cells", path):
        if cell not in cells:
            raise ConfigError(choose_from(f'{path}: [cells.NAME] of "{name}"', cell, cells))
        cells[cell] = _joined(cells[cell], its)
    claims = dict(_tables(base, "claims", file))
    claims |= {claim: {**claims.get(claim, {}), **its} for claim, its in _tables(own, "claims", path)}
    return {**_joined(base, own), "cells": cells, "claims": claims}


def _joined(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    return {**base, **own, "keys": {**flatten(base.get("keys", {})), **flatten(own.get("keys", {}))}}


def _tables(top: Mapping[str, Any], key: str, path: Path) -> list[tuple[str, dict[str, Any]]]:
    found = list(top.get(key, {}).items())
    for name, own in found:
        if not isinstance(own, dict):
            raise ConfigError(f"{path}: expected a table [{key}.{name}]; got {own!r}")
    return found


def _check(given: Mapping[str, Any], known: Mapping[str, type | tuple[type, ...]], where: str) -> None:
    """Refuse keys that are unknown or of another type."""
    for key, value in given.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f' Did you mean "{near[0]}"?' if near else f" Known are {', '.join(known)}."
            raise ConfigError(f'{where}: key "{key}": there is no such key.{hint}')
        wanted = known[key]
        if isinstance(value, bool) or not isinstance(value, wanted):
            kinds = " or ".join(
                kind.__name__ for kind in (wanted if isinstance(wanted, tuple) else (wanted,))
            )
            raise ConfigError(f'{where}: key "{key}": expected {kinds}; got {value!r}')


def _cell(name: str, shared: Mapping[str, Any], own: Mapping[str, Any], where: str) -> Cell:
    _check(own, OF_A_CELL, where)
    common = flatten(shared.get("keys", {}))
    given = {**shared, **own, "keys": flatten(own.get("keys", {}))}
    for key in REQUIRED:
        if key not in given:
            raise ConfigError(f'{where}: key "{key}": expected it in the cell or at the top; got none')
    if given["metric"] not in MEASURES:
        raise ConfigError(choose_from(f'{where}: key "metric"', given["metric"], MEASURES))
    if ("published" in given) == bool(given.get("unquoted")):
        got = "both" if "published" in given else "neither"
        raise ConfigError(
            f'{where}: expected "published", a number, or "unquoted", why none is quoted; got {got}'
        )
    for key in OURS:
        if key in {**common, **given["keys"]}:
            raise ConfigError(f'{where}: key "keys.{key}": the command sets it itself; remove it here')
    grid = given.get("grid", WALK)
    if grid not in (WALK, FULL):
        raise ConfigError(choose_from(f'{where}: key "grid"', grid, (WALK, FULL)))
    rates = _numbers(given, "learning-rates", float, where)
    if list(rates) != sorted(set(rates)) or rates[0] <= 0:
        raise ConfigError(f'{where}: key "learning-rates": expected rising numbers > 0; got {list(rates)}')
    start = float(given.get("start", rates[len(rates) // 2]))
    if start not in rates:
        raise ConfigError(f'{where}: key "start": expected one of the learning-rates; got {start:g}')
    seeds = crossed(
        _numbers(given, "seeds", int, where),
        _numbers(given, "data-seeds", int, where) if "data-seeds" in given else (-1,),
    )
    measure = MEASURES[given["metric"]]
    cell = Cell(
        name, given["setting"], given["where"], {}, measure,
        _finite(given, "published", where, ">" if measure.to_target else ""),
        _finite(given, "published-sd", where, ">="), given.get("unquoted", ""), given.get("fraction", ""),
        given.get("needs", ""), grid, rates, start, seeds,
        float(_finite(given, "round-seconds", where, ">")), _finite(given, "gpu-round-seconds", where, ">"),
        speed_up_over=given.get("speed-up-over", ""), rate_key=given.get("rate-key", RATE),
    )  # fmt: skip
    return _with_keys(cell, given, common, where)


def _with_keys(cell: Cell, given: Mapping[str, Any], shared: Mapping[str, Value], where: str) -> Cell:
    """Return the cell with the keys of its recipe, of those of the table that it reads, and its own."""
    try:
        base = {**(read_recipe(given["recipe"], 'key "recipe"') if given.get("recipe") else {}), **shared}
        base = {key: value for key, value in base.items() if key not in OURS}
        check_origin({**base, **given["keys"]})
        keys, _ = fuse(base, {**given["keys"], **cell.keys_of(cell.start, cell.seeds[0])})
        config = read_config(keys)
    except ConfigError as err:
        raise ConfigError(f"{where}: {err}") from None
    if cell.measure.to_target != (config.server.target_accuracy > 0):
        wanted = "the target that rounds are counted to" if cell.measure.to_target else "0"
        raise ConfigError(
            f'{where}: key "keys.target-accuracy": expected {wanted}, as metric = "{cell.measure.name}"; '
            f"got {config.server.target_accuracy:g}"
        )
    if cell.measure.at_clients and not config.server.fraction_evaluate:
        raise ConfigError(
            f'{where}: key "keys.fraction-evaluate": expected > 0, as metric = "{cell.measure.name}" is '
            "measured at the clients; got 0"
        )
    keys = {key: value for key, value in keys.items() if key not in (*OURS, cell.rate_key)}
    rounds = config.server.num_server_rounds
    return replace(
        cell, keys=keys, rounds=rounds, least_rounds=rounds if config.horizon else config.train.lr_warmup + 1
    )


def crossed(seeds: Sequence[int], data: Sequence[int]) -> tuple[RunSeed, ...]:
    """Return every seed with every seed of the data."""
    return tuple(RunSeed(*pair) for pair in itertools.product(seeds, data))


def _numbers(given: Mapping[str, Any], key: str, kind: type, where: str) -> tuple[Any, ...]:
    values = given[key]
    allowed = (int, float) if kind is float else int
    if not values or any(isinstance(v, bool) or not isinstance(v, allowed) for v in values):
        raise ConfigError(f'{where}: key "{key}": expected an array of {kind.__name__}; got {values!r}')
    if len(set(values)) < len(values) or any(number(value) is None for value in values):
        raise ConfigError(f'{where}: key "{key}": expected finite numbers, each once; got {values!r}')
    if min(values) < 0:
        raise ConfigError(f'{where}: key "{key}": expected numbers >= 0; got {values!r}')
    return tuple(kind(value) for value in values)


def _finite(given: Mapping[str, Any], key: str, where: str, sign: str = "") -> Any:
    """Return a number, None if there is none; with a sign, which compares it with 0, it must hold."""
    value = given.get(key)
    if value is not None and (number(value) is None or (sign and not SIGNS[sign](value, 0))):
        expected = f"a finite number{sign and f' {sign} 0'}"
        raise ConfigError(f'{where}: key "{key}": expected {expected}; got {value}')
    return value


def _claim(own: Mapping[str, Any], cells: Mapping[str, Cell], where: str) -> PublishedClaim:
    _check(own, OF_A_CLAIM, where)
    for key in ("says", "where", "of", "cells", "base"):
        if key not in own:
            raise ConfigError(f'{where}: key "{key}": expected it; got none')
    if own["of"] not in KINDS:
        raise ConfigError(choose_from(f'{where}: key "of"', own["of"], KINDS))
    for name in (*own["cells"], *own["base"]):
        if not isinstance(name, str) or name not in cells:
            raise ConfigError(choose_from(f'{where}: keys "cells" and "base"', name, cells))
    fits = len(own["base"]) in (1, len(own["cells"])) or own["of"] == OVER_BEST
    if not (own["cells"] and own["base"] and fits):
        raise ConfigError(
            f'{where}: key "base": expected one cell, or one for each of "cells"; got {own["base"]}'
        )
    for key in ("low", "high"):
        _finite(own, key, where)
    low, high = float(own.get("low", -math.inf)), float(own.get("high", math.inf))
    if low == -math.inf and high == math.inf:
        raise ConfigError(
            f'{where}: expected "low", "high" or both: what holds if the claim does; got neither'
        )
    if low > high:
        raise ConfigError(f'{where}: key "low": expected at most "high" = {high:g}; got {low:g}')
    return PublishedClaim(
        own["says"], own["where"], own["of"], tuple(own["cells"]), tuple(own["base"]), low, high
    )
