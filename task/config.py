"""Run config -> frozen dataclasses; the only reader of the kebab-case keys.

A run is described by the flat keys of ``[tool.flwr.app.config]`` in ``pyproject.toml``, overridden by a
recipe (``task/recipes/*.toml``) and by ``-c key=value``. `read_config` checks all of it at once, before
round 1: unknown keys, types, ranges and names are refused with the key, what was expected and what was
got. Below the two ``app.py`` files only these objects travel.

Each knob is declared once, with `knob`: default, one-line meaning, unit, range. A test holds the table
in ``pyproject.toml`` to it.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_type_hints

from task.errors import ConfigError, choose_from

Value = bool | int | float | str
RECIPES = Path(__file__).parent / "recipes"


def knob(
    default: Value,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """Declare one run-config key.

    Args:
        default: Its value when nobody sets it; its type is the type of the key.
        doc: One line: meaning, paper symbol, unit, neutral value.
        low: Smallest allowed value.
        high: Largest allowed value.
        above: The value must be strictly greater than this.
        choices: The allowed words, for a key that names something.
    """
    meta = {"doc": doc, "low": low, "high": high, "above": above, "choices": choices}
    return field(default=default, metadata=meta)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Who owns which examples."""

    dataset: str = knob("digits", "data set (see `bouquet data --list`)")
    data_dir: str = knob("", 'folder with the raw data; "" = $BOUQUET_DATA, else ~/.cache/bouquet/data')
    cache_dir: str = knob("", 'decoded data and partitions; "" = $BOUQUET_CACHE, else ~/.cache/bouquet')
    data_path: str = knob("", "file or folder of imagefolder, csv, npz; a node's own data-path wins")
    num_classes: int = knob(0, "classes; 0 = from the data; needed when nodes bring their own data", low=0)
    num_clients: int = knob(10, "population K; 0 = as many as the data set has owners", low=0)
    partition: str = knob("iid", "how examples are dealt to clients (see `bouquet data --list`)")
    dirichlet_alpha: float = knob(0.5, "concentration of the Dirichlet partitions; small = skewed", above=0)
    classes_per_client: int = knob(2, "c of partition=classes", low=1)
    shards_per_client: int = knob(2, "shards a client gets with partition=shards", low=1)
    size_skew: float = knob(1.0, "exponent of partition=quantity; 0 = equal sizes", low=0)
    examples_per_client: int = knob(600, "examples a client draws with partition=bootstrap", low=1)
    min_client_examples: int = knob(1, "a partition with a smaller client is refused", low=1)
    local_test_fraction: float = knob(
        0.1, "share of a client's examples kept for its own test; 0 = none", low=0, high=0.9
    )
    max_examples: int = knob(0, "use only so many training examples, drawn by seed; 0 = all", low=0)


@dataclass(frozen=True, kw_only=True)
class SyntheticConfig:
    """Synthetic(alpha, beta) of Li et al. (FedProx)."""

    alpha: float = knob(1.0, "how much local models differ", low=0)
    beta: float = knob(1.0, "how much local data differ", low=0)
    iid: bool = knob(False, "one model and one input law for all devices")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Local work of a client."""

    local_epochs: int = knob(1, "E, passes over the local data in a round", low=1)
    local_steps: int = knob(0, "steps in a round instead of epochs; 0 = use local-epochs", low=0)
    batch_size: int = knob(10, "B; 0 = infinity, all local data in one step", low=0)
    learning_rate: float = knob(0.1, "eta_0 of the local solver", above=0)
    lr_decay: float = knob(1.0, "eta_t = eta_0 * lr-decay^(t-1) in round t; 1 = none", above=0, high=1)
    momentum: float = knob(0.0, "momentum of the local SGD, fresh every round; 0 = none", low=0, high=0.9999)
    weight_decay: float = knob(0.0, "L2 weight decay of the local SGD; 0 = none", low=0)
    device: str = knob("auto", "where clients train", choices=("auto", "cpu", "cuda"))
    threads: int = knob(1, "torch threads of one training process; 0 = torch's default", low=0)
    stack: int = knob(0, "clients trained as one program; 0 = as many as pay, 1 = each alone", low=0)


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The round loop."""

    num_server_rounds: int = knob(10, "rounds", low=0)
    fraction_train: float = knob(1.0, "C, share of the clients that train in a round; 0 = one", low=0, high=1)
    fraction_evaluate: float = knob(0.0, "share of the clients that evaluate; 0 = none", low=0, high=1)
    evaluate_every: int = knob(1, "rounds between central evaluations; 0 = never", low=0)
    client_evaluate_every: int = knob(1, "rounds between client-side evaluations", low=1)
    selection: str = knob("uniform", "who trains", choices=("uniform",))
    stragglers: float = knob(0.0, "share of the selected that are slow: x ~ U{1..E} epochs", low=0, high=1)
    drop_stragglers: bool = knob(False, "leave stragglers out instead of taking their partial work")
    min_replies: int = knob(1, "a round with fewer good replies keeps the model", low=1)
    enough_replies: int = knob(0, "close a round once so many clients answered; 0 = wait for all", low=0)
    round_timeout: float = knob(3600.0, "seconds after which a round closes without the missing", above=0)
    roll_call_timeout: float = knob(180.0, "seconds to wait for nodes and their client lists", above=0)
    min_nodes: int = knob(1, "nodes that must be there before round 1", low=1)
    target_accuracy: float = knob(0.0, "stop when central accuracy reaches it; 0 = never", low=0, high=1)


@dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """Where results and state lie."""

    run_name: str = knob("", 'folder below runs-dir; "" = algorithm-dataset-seed')
    runs_dir: str = knob("runs", "where result folders are written")
    state_dir: str = knob("", 'kept state of clients; "" = <cache-dir>/state')
    resume: bool = knob(False, "go on from the last checkpoint of the run of this name")
    checkpoint_every: int = knob(1, "rounds between checkpoints; 0 = only at the end", low=0)
    progress: str = knob("auto", "live progress", choices=("auto", "bar", "log", "none"))


@dataclass(frozen=True, kw_only=True)
class FedProxConfig:
    """FedProx, Li et al. 2020."""

    mu: float = knob(0.01, "mu of the proximal term mu/2 |w - w^t|^2; 0 = FedAvg", low=0)
    adaptive: bool = knob(False, "raise mu by 0.1 when the loss rises, lower it after 5 falls")
    gamma: bool = knob(True, "measure gamma-inexactness: two full local gradients more a round")


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run, checked."""

    algorithm: str = knob("fedavg", "see `bouquet algorithms`")
    model: str = knob("mlp", "see `bouquet run --help-keys`")
    seed: int = knob(1, "every random number of the run comes from it", low=0)
    data: DataConfig = field(default_factory=DataConfig)
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    fedprox: FedProxConfig = field(default_factory=FedProxConfig)

    @property
    def run_name(self) -> str:
        """Name of the run: the key, or algorithm-dataset-seed."""
        return self.output.run_name or f"{self.algorithm}-{self.data.dataset}-{self.seed}"


# Sections whose keys carry the section's name ("fedprox.mu"); the others' keys stand at the top.
NESTED = frozenset({"synthetic", "fedprox"})


@dataclass(frozen=True)
class Knob:
    """One key as `knobs` lists it."""

    key: str
    section: str  # field of Config that holds it; "" = Config itself
    name: str  # field name in the section
    type: type
    default: Value
    doc: str
    low: float | None
    high: float | None
    above: float | None
    choices: tuple[str, ...]


def knobs() -> Iterator[Knob]:
    """Yield every run-config key, in the order of declaration."""
    for section, cls in [("", Config), *_sections()]:
        hints = get_type_hints(cls)
        for f in dataclasses.fields(cls):
            if "doc" not in f.metadata:
                continue
            kebab = f.name.replace("_", "-")
            key = f"{section}.{kebab}" if section in NESTED else kebab
            default = cast(Value, f.default)
            yield Knob(key, section, f.name, hints[f.name], default, **f.metadata)


def _sections() -> list[tuple[str, type]]:
    hints = get_type_hints(Config)
    return [(f.name, hints[f.name]) for f in dataclasses.fields(Config) if "doc" not in f.metadata]


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Value]:
    """Flatten nested TOML tables to dotted keys, as Flower does."""
    flat: dict[str, Value] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def read_config(run_config: Mapping[str, Any]) -> Config:
    """Build a `Config` from run-config keys; keys that are absent take their default.

    Raises:
        ConfigError: An unknown key, a wrong type, a value out of range or an unknown name.
    """
    from task.choices import check_names

    known = {k.key: k for k in knobs()}
    values: dict[str, dict[str, Any]] = {name: {} for name in ("", *dict(_sections()))}
    for key, raw in flatten(run_config).items():
        if key not in known:
            raise ConfigError(choose_from(f'run-config key "{key}" does not exist', key, known))
        k = known[key]
        values[k.section][k.name] = _checked(k, raw)
    sections = {name: cls(**values[name]) for name, cls in _sections()}
    config = Config(**values[""], **sections)
    check_names(config)
    return config


def _checked(k: Knob, raw: object) -> Value:
    """Return `raw` as the knob's type, or refuse it."""
    if k.type is float and isinstance(raw, int) and not isinstance(raw, bool):
        raw = float(raw)
    if type(raw) is not k.type:
        raise ConfigError(f'run-config key "{k.key}": expected {k.type.__name__} ({k.doc}); got {raw!r}')
    if k.choices and raw not in k.choices:
        raise ConfigError(choose_from(f'run-config key "{k.key}"', raw, k.choices))
    if k.type in (int, float):
        number = float(cast(float, raw))
        ok = (
            number == number
            and (k.low is None or number >= k.low)
            and (k.high is None or number <= k.high)
            and (k.above is None or number > k.above)
        )
        if not ok:
            raise ConfigError(f'run-config key "{k.key}": expected {_range(k)} ({k.doc}); got {raw!r}')
    return cast(Value, raw)


def _range(k: Knob) -> str:
    parts = [
        f">= {k.low:g}" if k.low is not None else "",
        f"> {k.above:g}" if k.above is not None else "",
        f"<= {k.high:g}" if k.high is not None else "",
    ]
    return f"{k.type.__name__} " + " and ".join(p for p in parts if p)


def as_run_config(config: Config) -> dict[str, Value]:
    """Return every key with its value: the inverse of `read_config`."""
    out: dict[str, Value] = {}
    for k in knobs():
        owner = getattr(config, k.section) if k.section else config
        out[k.key] = getattr(owner, k.name)
    return out


def cache_dir(config: DataConfig) -> Path:
    """Return the folder of decoded data and partitions: the key, $BOUQUET_CACHE or ~/.cache/bouquet."""
    return Path(config.cache_dir or os.environ.get("BOUQUET_CACHE") or "~/.cache/bouquet").expanduser()


def data_dir(config: DataConfig) -> Path:
    """Return the folder of raw data: the key, $BOUQUET_DATA or ~/.cache/bouquet/data."""
    return Path(config.data_dir or os.environ.get("BOUQUET_DATA") or "~/.cache/bouquet/data").expanduser()


def recipes() -> dict[str, Path]:
    """Return the bundled recipes by name, sorted."""
    return {p.stem: p for p in sorted(RECIPES.glob("*.toml"))}


def read_recipe(name_or_path: str) -> dict[str, Value]:
    """Return the keys of a bundled recipe, or of a TOML file of the user's own.

    Raises:
        ConfigError: No such recipe, or the file is not TOML.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml":
        known = recipes()
        if name_or_path not in known:
            raise ConfigError(choose_from("--recipe", name_or_path, known))
        path = known[name_or_path]
    try:
        with path.open("rb") as file:
            return flatten(tomllib.load(file))
    except FileNotFoundError:
        raise ConfigError(f"--recipe {path}: no such file") from None
    except tomllib.TOMLDecodeError as err:
        raise ConfigError(f"--recipe {path}: not a TOML file: {err}") from None
