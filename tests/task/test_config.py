"""The run config: one declaration, checked values, and errors that help."""

from __future__ import annotations

import dataclasses
import pickle
import tomllib
from pathlib import Path
from typing import Any

import pytest

from task.config.knobs import Config
from task.config.read import as_run_config, flatten, knobs, read_recipe, recipes, scene_runs, scenes
from task.config.sections import Section
from task.errors import ConfigError
from task.resolve.read import read_config
from tests.pages import with_keys

ROOT = Path(__file__).resolve().parents[2]


def in_pyproject() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return flatten(tomllib.load(file)["tool"]["flwr"]["app"]["config"])


def test_pyproject_lists_every_knob_with_its_default() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert text == with_keys(text), "make docs"
    declared = {k.key: k.default for k in knobs()}
    assert in_pyproject() == declared
    assert {k: type(v) for k, v in in_pyproject().items()} == {k: type(v) for k, v in declared.items()}


def test_every_section_has_its_field() -> None:
    """A section without one was declared, and its keys did not exist."""
    held = {type(getattr(read_config({}), f.name)) for f in dataclasses.fields(Config)}
    for section in Section.__subclasses__():
        name = section.__name__.removesuffix("Config").lower()
        line = f"{name}: {section.__name__} = field(default_factory={section.__name__})"
        assert section in held or section.__module__.startswith("tests"), f"add to Config: {line}"


def test_defaults_are_valid_and_round_trip() -> None:
    config = read_config(in_pyproject())
    assert config == read_config({})
    assert as_run_config(config) == in_pyproject() | {"fraction-evaluate": 0.0}  # of FedAvg


def test_the_hash_that_a_config_remembers_is_left_in_its_process() -> None:
    """Texts have another hash in each process, so that caches would not find an equal config."""
    config = read_config({"seed": 3})
    assert hash(config) == hash(read_config({"seed": 3})) != hash(read_config({"seed": 4}))
    assert "_hash" not in vars(pickle.loads(pickle.dumps(config)))
    assert hash(dataclasses.replace(config, seed=4)) == hash(read_config({"seed": 4}))


@pytest.mark.parametrize("name", sorted(recipes()))
def test_recipes_are_valid(name: str) -> None:
    keys = read_recipe(name)
    config = read_config(keys)
    assert {k: as_run_config(config)[k] for k in keys} == pytest.approx(keys)
    text = recipes()[name].read_text(encoding="utf-8")
    assert text.startswith("# "), "a recipe says what it is in its first line"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"algorithm": "fedprx"},
            r'"algorithm": got .fedprx.. Did you mean "fedprox"\? Expected one of \d+ names\.$',
        ),
        ({"algorithm": "dp-sgd"}, r'"algorithm": \'dp-sgd\' is none; expected dp.unit="example" dp.noise'),
        ({"dataset": "minst"}, r'"dataset".*Did you mean "mnist"'),
        ({"model": "3nn"}, r'"model".*2nn'),
        ({"partition": "shard"}, r'"partition".*Did you mean "shards"'),
        ({"selection": "best"}, r'"selection".*uniform'),
        ({"learnin-rate": 0.1}, r'"learnin-rate" does not exist.*Did you mean "learning-rate"'),
        ({"learning-rate": 0}, r'"learning-rate": expected float > 0.*got 0'),
        ({"learning-rate": float("nan")}, r'"learning-rate".*got nan'),
        ({"learning-rate": "fast"}, r"\"learning-rate\": expected float.*got 'fast'"),
        ({"local-epochs": 1.5}, r'"local-epochs": expected int.*got 1.5'),
        ({"local-epochs": True}, r'"local-epochs": expected int.*got True'),
        ({"fraction-train": 1.2}, r'"fraction-train": expected float >= 0 and <= 1.*got 1.2'),
        ({"fedprox": {"mu": -1}}, r'"fedprox.mu": expected float >= 0'),
        ({"fedavgm.momentum": 1}, r'"fedavgm.momentum": expected float >= 0 and < 1 .*got 1'),
        ({"fedopt": {"beta2": 1.0}}, r'"fedopt.beta2": expected float >= 0 and < 1 .*got 1'),
        ({"fedopt.tau": 0}, r'"fedopt.tau": expected float > 0 .*got 0'),
        ({"fedopt.server-lr": -0.1}, r'"fedopt.server-lr": expected float > 0 .*got -0.1'),
        ({"fedatt.p": 0.5}, r'"fedatt.p": expected float >= 1 and <= 10 .*got 0.5'),
        ({"fedatt.temperature": 0}, r'"fedatt.temperature": expected float > 0 '),
        ({"fedatt.noise": -1}, r'"fedatt.noise": expected float >= 0 '),
        ({"attack.kind": "scale", "num-clients": 2}, r'"attack.fraction": 0 of 2 .*above 0.25, .*got 0.2'),
        ({"arrive.share": 0.04}, r'"arrive.share": 0 of 10 clients would be late; expected above 0.05'),
        ({"arrive.share": 0.9, "num-clients": 1}, r'"arrive.share": 0 of 1 clients would be late'),
        ({"min-replies": 20, "num-clients": 4}, r'"min-replies": .* at most 4, .*num-clients = 4 .*got 20'),
        ({"min-replies": 11, "algorithm": "fedbuff", "fraction-train": 0.5}, "at most 10,"),
        ({"min-replies": 6, "fraction-train": 0.5}, r'"min-replies": .* at most 5,.*train = 0.5;'),
        ({"fraction-evaluate": 0.5, "local-test-fraction": 0}, r'"fraction-evaluate".*"local-test-fraction"'),
    ],
)
def test_a_bad_value_names_key_expectation_and_the_nearest_name(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(keys)


def test_whole_numbers_do_for_float_keys() -> None:
    assert read_config({"learning-rate": 1}).train.learning_rate == 1.0


@pytest.mark.parametrize(
    ("keys", "share"),
    [
        ({}, 0.0), ({"algorithm": "fedprox"}, 0.0), ({"algorithm": "fedper"}, 1.0), ({"ala": True}, 1.0),
        ({"algorithm": "fedper", "fraction-evaluate": 0.2}, 0.2), ({"fraction-evaluate": 0.2}, 0.2),
        ({"algorithm": "fedper", "fraction-evaluate": 0.0}, 0.0),
    ],
)  # fmt: skip
def test_clients_evaluate_unless_told_otherwise_where_the_models_are_their_own(
    keys: dict[str, Any], share: float
) -> None:
    assert read_config(keys).server.fraction_evaluate == share
    assert read_config({"fraction-evaluate": -1.0, **keys}).server.fraction_evaluate == share


def test_a_share_below_0_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r'"fraction-evaluate": expected -1 or float >= 0 and <= 1; got -0.5'
    ):
        read_config({"fraction-evaluate": -0.5})


def test_recipes_by_path_and_unknown_ones(tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text("seed = 9\n[fedprox]\nmu = 0.5\n")
    assert read_recipe(str(own)) == {"seed": 9, "fedprox.mu": 0.5}
    with pytest.raises(ConfigError, match='Did you mean "demo"'):
        read_recipe("demmo")
    with pytest.raises(ConfigError, match="no such file"):
        read_recipe(str(tmp_path / "other.toml"))
    own.write_text("seed = = 9")
    with pytest.raises(ConfigError, match="not a TOML file"):
        read_recipe(str(own))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"algorithm": "fedsgd", "momentum": 0.9}, '"momentum": nothing in this run reads it'),
        ({"algorithm": "fedsgd", "weight-decay": 0.1}, '"weight-decay": nothing in this run reads it'),
        ({"algorithm": "qfedsgd", "local-steps": 3}, '"local-steps": nothing in this run reads it'),
        ({"local-steps": 3, "stragglers": 0.5}, '"stragglers": nothing .*; expected local-steps = 0'),
    ],
)
def test_knobs_that_would_have_no_effect_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(keys)


@pytest.mark.parametrize("scene", sorted(scenes()))
def test_scenes_are_valid_and_their_runs_differ(scene: str) -> None:
    runs = scene_runs(scene)
    assert len(runs) > 1
    read = [read_config(read_recipe(f"{scene}/{run}")) for run in runs]  # a key that is not read is refused
    assert len(set(map(repr, read))) == len(runs)
    assert scenes()[scene].read_text(encoding="utf-8").startswith("# "), "a scene says first what it shows"


def test_a_run_of_a_scene_has_its_own_keys_over_those_of_all(tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text(
        "seed = 9\nmodel = 'mlp'\n[fedprox]\nmu = 0.5\n[runs.a]\n[runs.b]\nseed = 7\nfedprox.mu = 1.0\n"
    )
    assert scene_runs(str(own))["a"] == {"seed": 9, "model": "mlp", "fedprox.mu": 0.5}
    assert read_recipe(f"{own}/b") == {"seed": 7, "model": "mlp", "fedprox.mu": 1.0}
    with pytest.raises(ConfigError, match=r"--recipe .*mine.toml/RUN: expected one of a, b; got 'c'"):
        read_recipe(f"{own}/c")
    with pytest.raises(ConfigError, match='Did you mean "straggler"'):
        read_recipe("stragler/wait")
    own.write_text("seed = 9\n")
    with pytest.raises(ConfigError, match=r"expected a table \[runs.NAME\] for each run"):
        scene_runs(str(own))
