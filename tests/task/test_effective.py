"""Which keys a run reads: what is declared is what the code does, and a key that nothing reads is refused."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import client_app.app
from server_app.run.public_examples import distiller
from strategies import STRATEGIES
from task.catalogue.algorithms import ALGORITHMS
from task.config.knobs import NESTED, Config
from task.config.options import parse_options
from task.config.read import as_run_config, defaults, knobs, read_checked, read_recipe, recipes
from task.datasets.skew import load_partitioned
from task.errors import ConfigError
from task.resolve.contract import contract_of
from task.resolve.effective import OWNERS, check_owners, check_read, conditions, unmet
from task.resolve.read import fuse, read_config
from task.resolve.run_model import initial_of, model_of, parts_of
from task.wire import messages as wire
from tests.support.grid import LocalGrid
from tests.support.horizontal import HORIZONTAL, VERTICAL, of_columns

ROOT = Path(__file__).resolve().parents[2]
CODE = tuple(str(ROOT / folder) for folder in ("strategies", "client_app", "task", "server_app"))
CHECKS = tuple(
    str(ROOT / "task" / name)
    for name in (
        "config/read.py",
        "config/run_name.py",
        "config/when.py",
        "resolve/effective.py",
        "resolve/read.py",
        "resolve/validate.py",
    )
)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"fedprox.mu": 0.5}, '"fedprox.mu": nothing .*algorithm = "fedprox".* 0.01.* got 0.5 with algo'),
        ({"algorithm": "krum", "robust.trim": 0.1}, '"robust.trim".*algorithm = "trimmed-mean".*"krum"'),
        ({"algorithm": "fedadagrad", "fedopt.beta1": 0.5}, '"fedopt.beta1".*one of "fedadam", "fedyogi"'),
        ({"fedala.eta": 2.0}, r'"fedala.eta".*algorithm = "fedala", or ala = true'),
        ({"algorithm": "fedbn", "personal.layers": 2}, '"personal.layers".*"fedper", "fedrep"'),
        ({"dirichlet-alpha": 0.1}, '"dirichlet-alpha".*partition one of "dirichlet"'),
        ({"partition": "bootstrap", "classes-per-client": 3}, '"classes-per-client".*"bootstrap"'),
        ({"synthetic.alpha": 0.5}, '"synthetic.alpha".*dataset = "synthetic"'),
        ({"data-path": "mine.csv"}, '"data-path".*dataset one of "arrow", "csv", "imagefolder", "npz"'),
        ({"select.pace": 0.1, "selection": "fedcs"}, '"select.pace".*selection = "oort".*"fedcs"'),
        ({"attack.scale": 3.0, "attack.kind": "min-max"}, '"attack.scale".*attack.kind = "min-max"'),
        *(
            ({"max-update-norm": 3.0, "algorithm": a}, '"max-update-norm".*algorithm other than .*no norm of')
            for a in ("feddbe", "fedproto", "fsvrg-sparse", "local-only")
        ),
        ({"attack.scale": 3.0}, '"attack.scale".*attack.kind one of'),
        ({"attack.scale": 3.0, "attack.kind": "label-flip"}, '"attack.scale".*attack.kind = "label-flip"'),
        ({"drop-stragglers": True}, '"drop-stragglers".*"stragglers" set.*stragglers = 0'),
        ({"stragglers": 0.5}, '"stragglers".*local-epochs other than 1, or "drop-stragglers" set'),
        ({"stragglers": 0.5, "local-epochs": 2, "algorithm": "centralised"}, '"stragglers".*"centralised"'),
        *(
            ({"stragglers": 0.5, "algorithm": a}, f'"stragglers".*other than .*"drop-stragglers".*"{a}"')
            for a in ("adaptive-tau", "fedsgd", "qfedsgd", "signsgd")
        ),
        ({"client-evaluate-every": 5}, '"client-evaluate-every".*"fraction-evaluate" set'),
        ({"local-epochs": 5, "local-steps": 20}, '"local-epochs".*local-steps = 0.*local-steps = 20'),
        *(
            ({"personal.epochs": 5, "local-steps": 3, "algorithm": a}, '"personal.epochs".*local-steps = 0')
            for a in ("ditto", "fedbabu", "fedrep", "fine-tune")
        ),
        ({"personal.epochs": 5, "algorithm": "fedbabu", "fedbabu.tune": "none"}, '"personal.epochs".*tune'),
        ({"local-steps": 5, "algorithm": "adaptive-tau"}, '"local-steps".*other than .*"adaptive-tau"'),
        *(
            ({"algorithm": a, "batch-size": 50}, '"batch-size".*"qfedsgd", .*or batch-size = 0, or.*got 50')
            for a in ("fedsgd", "qfedsgd")
        ),
        ({"algorithm": "fedphp", "fedphp.transfer": "mmd", "fedphp.temperature": 2.0}, '"fedphp.temp.*"kd"'),
        (
            {"algorithm": "adaptive-tau", "adaptive-tau.fixed-tau": 5, "adaptive-tau.tau-max": 9},
            '"adaptive-tau.tau-max".*fixed-tau = 0.*fixed-tau = 5',
        ),
        ({"algorithm": "fedsgd", "local-epochs": 2}, '"local-epochs".*other than .*"fedsgd"'),
        *(
            (
                {"num-server-rounds": 0, "initial-model": "m.pt", "algorithm": "fedprox", key: value},
                f'"{key}": nothing .*num-server-rounds other than 0, .*num-server-rounds = 0',
            )
            for key, value in {
                "learning-rate": 0.5, "local-epochs": 2, "batch-size": 5, "optimizer": "adam",
                "lr-decay": 0.9, "augment": "crops-flips", "clip-norm": 1.0, "fraction-train": 0.5,
                "client-evaluate-every": 2, "fedprox.mu": 0.5,
            }.items()
        ),
    ],
)  # fmt: skip
def test_a_key_that_nothing_reads_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(keys)
    # As Flower hands it over: all other keys with their defaults.
    with pytest.raises(ConfigError, match=message):
        read_config({**defaults(), **keys})


@pytest.mark.parametrize(
    "keys",
    [
        {"fedprox.mu": 0.01},  # its default: Flower fills in all of them
        {"algorithm": "fedprox", "fedprox.mu": 0.5},
        {"ala": True, "fedala.eta": 2.0},
        {"algorithm": "median", "robust.byzantine": 0.3},
        {"stragglers": 0.5, "drop-stragglers": True},
        {"stragglers": 0.5, "drop-stragglers": True, "algorithm": "fedsgd"},
        {"stragglers": 0.5, "local-epochs": 2},
        {"algorithm": "ditto", "client-evaluate-every": 5},  # by default its clients evaluate
        {"algorithm": "fedsgd", "batch-size": 0},
        {"algorithm": "signsgd", "batch-size": 50},
        {"devices.speed": 10.0},
        {"num-server-rounds": 0, "initial-model": "m.pt", "threads": 2, "device": "cpu", "stack": 1},
    ],
)
def test_a_key_that_something_reads_is_taken(keys: dict[str, Any]) -> None:
    read_config(keys)


def test_code_that_loads_data_reads_the_number_of_classes() -> None:
    """A model's vocabulary is larger than the ids that a file happens to have."""
    (read,) = [when for when in conditions("num-classes") if when.key == "dataset"]
    assert [read.holds({"dataset": name}) for name in ("npz", "words:load", "hf:user/set", "digits")] == [
        True,
        True,
        True,
        False,
    ]
    assert str(read).endswith(", or code of your own")


def test_the_table_names_keys_and_sections_that_exist() -> None:
    keys = {k.key for k in knobs()}
    sections = {f"{s.replace('_', '-')}." for s in NESTED}
    owned = {key for owners in OWNERS.values() for own in owners.values() for key in own}
    assert {key for key in owned - sections if not key.endswith(".")} <= keys
    for key in keys:
        for when in conditions(key):
            assert when.key in keys, (key, str(when))
            if when.key == "algorithm":
                assert {*when.values} <= {*ALGORITHMS}
    # no section is left without a reader
    always = {"devices", "select", "personal", "attack", "codec", "structured", "dp", "audit", "width"}
    read = always | {"sam", "contribution", "stream", "drift", "arrive", "lora"}
    unread = sections - {f"{name}." for name in read}
    assert not [key for key in keys if key.partition(".")[0] + "." in unread and not conditions(key)]


# ---------------------------------------------------------------------- held to the code


class Reads:
    """Configs that note which of their keys the code reads."""

    def __init__(self) -> None:
        self.found: set[tuple[str, str]] = set()
        self._classes: dict[type, type] = {}

    def watch(self, config: Config) -> Config:
        """Return an equal config that is watched."""
        sections = {k.section for k in knobs()} - {""}
        return dataclasses.replace(config, **{s: self._watched(s, getattr(config, s)) for s in sections})

    def _watched(self, section: str, values: Any) -> Any:
        names, found = {f.name for f in dataclasses.fields(values)}, self.found

        def get(self: Any, name: str) -> Any:
            reader = sys._getframe(1).f_code.co_filename  # not dataclasses' own replace, == and hash
            if name in names and reader.startswith(CODE) and not reader.startswith(CHECKS):
                found.add((section, name))
            return object.__getattribute__(self, name)

        kind = type(values)
        if kind not in self._classes:
            self._classes[kind] = type(kind.__name__, (kind,), {"__getattribute__": get})
        return self._classes[kind](**{name: getattr(values, name) for name in names})

    def named(self) -> set[str]:
        """Return what was read, as run-config keys."""
        return {k.key for k in knobs() if (k.section, k.name) in self.found}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    watched = Reads()
    monkeypatch.setattr(client_app.app, "read_config", lambda keys: watched.watch(read_config(keys)))
    return watched


def play(reads: Reads, keys: dict[str, Any]) -> None:
    """Run three rounds in this process."""
    config = reads.watch(read_config(keys))
    strategy = STRATEGIES[contract_of(config).rule](config)
    model = model_of(config, (8, 8), 10)
    parts, shared = parts_of(model, config), initial_of(model, config, (8, 8), 10)
    nodes = [{"partition-id": i, "num-partitions": 2} for i in range(2)]
    grid = LocalGrid(client_app.app.make_app(keys), nodes)
    dataset = load_partitioned(config)[0]
    strategy.engine.distil = distiller(config, model, dataset, dataset.input_shape)
    strategy.start(grid, wire.pack_arrays(shared), num_rounds=3, trainable=parts.trainable)


RUNS: dict[str, dict[str, Any]] = {
    **{name: {"algorithm": name} for name in HORIZONTAL},
    **{name: of_columns(name) for name in VERTICAL},
    "cfl": {"algorithm": "cfl", "cfl.warmup": 0, "cfl.epsilon1": 1e6},
    "feddf": {"algorithm": "feddf", "public.examples": 20, "feddf.steps": 2},
    "fedmd": {"algorithm": "fedmd", "public.examples": 20},
    "ala": {"ala": True},
    "stragglers": {"stragglers": 0.5, "local-epochs": 2},
    "power-of-choice": {"selection": "power-of-choice", "fraction-train": 0.5},
    "oort": {"selection": "oort", "fraction-train": 0.5, "select.pacer-window": 1},
    "fedcs": {"selection": "fedcs"},
    "scale": {"attack.kind": "scale"},
    "label-flip": {"attack.kind": "label-flip"},
    "little-is-enough": {"attack.kind": "little-is-enough"},
    "dp": {"dp.noise": 1.0, "dp.delta": 0.01, "fraction-evaluate": 0.0},
    "hf": {"algorithm": "per-fedavg", "per-fedavg.form": "hf"},
}
SETTINGS = {
    "num-clients": 6, "model": "mlp", "max-examples": 200, "local-test-fraction": 0.25,
    "fraction-evaluate": 1.0,
}  # fmt: skip
TOUCHED = {
    # Passed on whatever it is, and without effect where the table says so.
    "augment", "augment-brightness", "augment-contrast", "batch-size", "column-types", "crop", "local-epochs",
    "local-steps", "momentum", "weight-decay", "data-path", "num-classes", "shuffle-lines",
    "d-psgd.degree", "missing", "missing-indicator", "pixels", "standardise", "stream.own-data",
    "enough-replies", "evaluate-every", "fraction-train", "max-update-norm", "precision", "stragglers",
    "model", "models.features", "models.levels", "vertical.cut", "gbdt.max-leaves", "fedala.write-weights",
    # Read by parts of the run that take no part here, or on a condition that no run here fulfils.
    "attack.fraction", "attack.scale", "attack.deviations", "attack.std", "per-fedavg.delta",
    "drop-stragglers", "loss", "trainable",
}  # fmt: skip


def conditional(key: str) -> bool:
    """Return whether a run with rounds may not read a key."""
    return any(when.key != "num-server-rounds" for when in conditions(key))


@pytest.mark.parametrize("name", sorted(RUNS))
def test_what_is_declared_is_what_the_code_reads(name: str, reads: Reads, tmp_path: Path) -> None:
    keys = SETTINGS | {"state-dir": str(tmp_path)} | RUNS[name]
    if name == "fedbn":
        keys |= {"model": "mlp-bn"}
    play(reads, keys)
    run = as_run_config(read_config(keys))
    found = {key for key in reads.named() if conditional(key)}
    declared = {key for key in run if conditional(key) and unmet(key, run) is None}
    sent = (
        set()
        if ALGORITHMS[run["algorithm"]].learns
        else {k for k in run if k.startswith(("learning-", "lr-"))}
    )
    assert found - TOUCHED - declared - sent == set(), "read, and refused by task/resolve/effective.py"
    # Data are read once per process and cached, so what partitions and data sets read is not seen here.
    of_data = {k.key for k in knobs() if k.section in ("data", "synthetic")}
    assert declared - TOUCHED - of_data - found == set(), (
        "taken by task/resolve/effective.py, and read by nothing"
    )


DEFAULTS = as_run_config(Config())
OF_STEPS = {
    "batch-size": 7, "learning-rate": 0.07, "lr-schedule": "cosine", "lr-decay": 0.9,
    "lr-warmup": 3, "momentum": 0.5, "weight-decay": 0.1, "local-steps": 3,
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name, entry in ALGORITHMS.items() if not entry.learns])
def test_tables_and_trees_take_no_keys_of_steps(name: str) -> None:
    """They were taken in silence, as if they changed the result; trees have gbdt.learning-rate."""
    refuse(name, OF_STEPS)


@pytest.mark.parametrize("name", [name for name, entry in ALGORITHMS.items() if entry.fixed_model])
def test_a_fixed_model_takes_neither_a_loss_nor_a_part_to_train(name: str) -> None:
    refuse(name, {"loss": "mse", "trainable": "fc2*"})


@pytest.mark.parametrize("name", [name for name, entry in ALGORITHMS.items() if entry.statistics])
def test_an_analysis_takes_no_key_of_a_measured_model(name: str) -> None:
    """Its own values of these keys, which its config.json has, are no choice of its user's."""
    tested = ALGORITHMS[name].tested
    refuse(name, {"task": "survival", "evaluate-every": 3})
    if not tested:
        refuse(name, {"fraction-evaluate": 0.5, "local-test-fraction": 0.3, "client-evaluate-every": 2})
    if tested == "asked":
        refuse(name, {"local-test-fraction": 0.3})
    config = read_checked({"algorithm": name})
    asked = as_run_config(config) | ({"fraction-evaluate": 1.0, "local-test-fraction": 0.3} if tested else {})
    check_read(as_run_config(read_checked(asked)), DEFAULTS, asked)
    typed = {"algorithm": name, "task": "survival"}
    with pytest.raises(ConfigError, match=f'"task": nothing .* got "survival" with algorithm = "{name}"'):
        check_read(as_run_config(read_checked(typed)), DEFAULTS, typed)


def refuse(name: str, keys: dict[str, Any]) -> None:
    for key, value in keys.items():
        with pytest.raises(ConfigError, match=f'"{key}": nothing in this run reads it'):
            check_read(DEFAULTS | {"algorithm": name, key: value}, DEFAULTS)


@pytest.mark.parametrize("kind", ["scale", "gaussian", "sign-flip", "label-flip", "little-is-enough"])
def test_what_an_attack_reads(kind: str, reads: Reads, tmp_path: Path) -> None:
    play(reads, SETTINGS | {"state-dir": str(tmp_path), "attack.kind": kind, "attack.fraction": 0.5})
    attack = {key for key in reads.named() if key.startswith("attack.")}
    own = {"gaussian": {"attack.std"}, "label-flip": set(), "little-is-enough": {"attack.deviations"}}
    assert attack == {"attack.kind", "attack.fraction"} | own.get(kind, {"attack.scale"})


# ---------------------------------------------------------------------- recipes


def test_a_recipes_keys_that_the_run_does_not_read_are_left_out() -> None:
    recipe = {
        "algorithm": "fedprox",
        "fedprox.mu": 1.0,
        "seed": 3,
        "attack.kind": "sign-flip",
        "attack.scale": 4.0,
    }
    keys, out = fuse(recipe, {"algorithm": "ditto"})
    assert keys == {k: v for k, v in recipe.items() if k != "fedprox.mu"} | {"algorithm": "ditto"}
    assert out == {"fedprox.mu": 'algorithm = "fedprox"'}
    read_config(keys)
    assert fuse(recipe, {}) == (recipe, {})
    # what the user sets stays, and is refused
    keys, out = fuse(recipe, {"attack.kind": "none", "attack.scale": 2.0})
    assert (keys["attack.scale"], out) == (2.0, {})
    with pytest.raises(ConfigError, match=r'"attack.scale": nothing in this run reads it'):
        read_config(keys)


def test_every_command_of_the_documents_is_a_run() -> None:
    """All ``bouquet run`` and ``flwr run`` lines with literal keys, with the recipe that they name."""
    texts = [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*/*.md")),
        *sorted((ROOT / "task").rglob("*.md")),
    ]
    texts += [*recipes().values(), *sorted((ROOT / "docker").glob("*.md"))]
    lines = "\n".join(t.read_text(encoding="utf-8").replace("\\\n", " ") for t in texts)
    found = re.findall(r"((?:bouquet|flwr) run[^`\n#]*)(# refused)?", lines)
    checked = 0
    for line, refused in found:
        if "$" in line or "..." in line:
            continue
        try:
            words = shlex.split(line)
        except ValueError:  # a sentence with an apostrophe
            continue
        recipe, pairs = "", []
        for option, value in itertools.pairwise(words):
            recipe = value.rstrip(";,") if option in ("--recipe", "-r") else recipe
            pairs += [value.rstrip(";")] if option == "-c" and "=" in value else []
        if recipe.isupper() or not (recipe or pairs):
            continue
        keys, _ = fuse(read_recipe(recipe) if recipe else {}, parse_options(pairs))
        with pytest.raises(ConfigError) if refused else nullcontext():
            read_config(keys)
        checked += 1
    assert checked > 20


def test_an_entry_may_read_a_single_key_of_another_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads this one; the other algorithm, and who shares the section, read what they read before."""
    before = {knob.key: conditions(knob.key) for knob in knobs()}
    mine = {"fedlc": ("fedlc.", "fedprox.mu", "robust.trim")}
    check_owners(mine)
    monkeypatch.setitem(OWNERS, "algorithm", {**OWNERS["algorithm"], **mine})  # type: ignore[index]
    conditions.cache_clear()
    try:
        after = {knob.key: conditions(knob.key) for knob in knobs()}
    finally:
        conditions.cache_clear()
    changed = {key for key in before if before[key] != after[key]}
    assert changed == {"fedprox.mu", "robust.trim"}
    for key in changed:
        (old,), (new,) = ([w for w in of[key] if w.key == "algorithm"] for of in (before, after))
        assert {*new.values} == {*old.values, "fedlc"}


@pytest.mark.parametrize(
    ("reads", "message"),
    [
        ("fedprox.mew", '"fedlc", reads: got .fedprox.mew.*fedprox.mu'),
        ("fedproxy.", '"fedlc", reads: got .fedproxy.*fedprox'),
        ("learning-rate", '"fedlc", reads.*"learning-rate", which says in task/config'),
        ("fedala.eta", '"fedlc", reads.*"fedala.eta", which says'),
        ("personal.layers", '"fedlc", reads.*"personal.layers", which says'),
        ("codec.up", '"fedlc", reads.*"codec.up", which says'),
    ],
)
def test_an_entry_reads_no_key_that_others_would_lose(reads: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_owners({"fedlc": ("fedlc.", reads)})
