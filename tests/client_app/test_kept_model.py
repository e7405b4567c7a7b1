"""What a node keeps of a run if its owner says so, and the models that are taken out of it on the node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from flwr.app import Message
from typer.testing import CliRunner

from client_app.app import make_app
from client_app.data.node import open_node
from client_app.data.owner import owner_of
from client_app.stages.kept_model import keep_model
from server_app.cli.main import app
from server_app.deploy.kits.kit import NodeKit, read_kit
from server_app.deploy.kits.provision import provision
from server_app.deploy.node.options import Options, node_config
from server_app.takeout.model import take_kept
from server_app.takeout.predict import own_examples, predict
from strategies import STRATEGIES
from strategies.stages.mixed_models import set_family
from task.catalogue.algorithms import ALGORITHMS
from task.config.read import as_run_config
from task.errors import ConfigError, StateError
from task.numerics.arrays import state_of
from task.references import CODE
from task.resolve.kept_model import find_kept_model, read_kept_model
from task.resolve.read import read_config
from task.resolve.run_model import family_of, model_of, parts_of
from task.wire import messages as wire
from tests.support.federation import Keep, Played
from tests.support.grid import LocalGrid
from tests.support.wards import HEADER, deployed, table

WARDS = ("ward-1", "ward-2", "ward-3")


@pytest.fixture
def wards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Three nodes with data of their own, each with a folder for models."""
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(2)
    for number, name in enumerate(WARDS):
        x = rng.normal(number, 1, (40, 3)).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", x=x, y=(x.sum(1) > 3 * number).astype(np.int64))
    return [
        {
            "client-name": name,
            "data-path": str(tmp_path / f"{name}.npz"),
            "keep-models": str(tmp_path / name / "models"),
        }
        for name in WARDS
    ]


def play(nodes: list[dict[str, Any]], **more: Any) -> Played:
    keys = {
        "dataset": "npz", "num-classes": 2, "model": "mlp", "num-server-rounds": 2, "seed": 4,
        "device": "cpu", "local-test-fraction": 0.25, "fraction-evaluate": 1.0, "run-name": "trial", **more,
    }  # fmt: skip
    config = read_config(keys)
    strategy = STRATEGIES[ALGORITHMS[config.algorithm].rule](config)
    grid = LocalGrid(make_app(), nodes, as_run_config(config))
    strategy.engine.register(grid, 0)
    model = model_of(config, *strategy.registry.shape_of_data())
    parts, keep = parts_of(model, config), Keep()
    set_family(strategy.engine, family_of(model, config, (3,)))
    first = {n: a for n, a in state_of(model).items() if n in parts.shared}
    strategy.start(
        grid, wire.pack_arrays(first), num_rounds=2, timeout=60, journal=keep, trainable=parts.trainable
    )
    return Played(strategy, grid, keep, tuple(strategy.registry.names))


def kept(node: dict[str, Any]) -> Path:
    return find_kept_model(Path(node["keep-models"]))


@pytest.mark.parametrize(("evaluated", "model_of_round"), [(1.0, 2), (0.0, 1)])
def test_it_is_the_last_global_model_that_came(
    wards: list[dict[str, Any]], evaluated: float, model_of_round: int
) -> None:
    """With an evaluation in the last round it is the final one, else one round older."""
    played = play(wards, **{"fraction-evaluate": evaluated})
    for node in wards:
        card, arrays, found = read_kept_model(kept(node))
        final = played.arrays(model_of_round)
        assert arrays.keys() == final.keys()
        assert all(np.array_equal(arrays[name], final[name]) for name in final)
        assert (card.config.algorithm, card.num_classes, card.kind) == ("fedavg", 2, "features")
        assert found.round == 2
        assert kept(node).stat().st_mode & 0o777 == 0o600


def test_a_kept_table_model_is_exported_with_the_names_of_the_file_that_it_is_compared_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's path of its data is no data set of the model: the error named data-path."""
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))
    files = {name: table(tmp_path / f"{name}.csv", HEADER, seed=i) for i, name in enumerate(WARDS)}
    policy = {name: {"keep-models": str(tmp_path / name)} for name in WARDS}
    run = deployed(tmp_path, files, policy, standardise=True, **{"fraction-evaluate": 1.0})
    path = find_kept_model(tmp_path / "ward-1")
    out = str(tmp_path / "m.onnx")
    for model in (str(path), str(run)):
        made = CliRunner().invoke(app, ["export", model, "-f", "onnx", "-o", out])
        assert isinstance(made.exception, ConfigError)
        assert "--data: expected examples to compare the outputs on" in str(made.exception)
        given = ["--data", str(files["ward-2"])]
        assert CliRunner().invoke(app, ["export", model, "-f", "onnx", "-o", out, *given]).exit_code == 0
        said = onnxruntime.InferenceSession(out).get_modelmeta().custom_metadata_map
        assert json.loads(said["inputs"]) == ["age", "bmi", "job=clerk", "job=nurse"]
        assert json.loads(said["outputs"]) == ["well", "ill"]


def test_rounds_that_the_server_went_back_from_are_kept_too(wards: list[dict[str, Any]]) -> None:
    """What a client kept in one of them is not its model, see `Memory`."""
    config = read_config({"dataset": "npz", "num-classes": 2, "run-name": "trial"})
    node = open_node(config, wards[0], owner_of(wards[0]))
    keep_model(node, wire.TrainOrder(4, {wire.ARRAYS: dict(node.initial())}, run="a", void=(2, 3)))
    _, _, found = read_kept_model(kept(wards[0]))
    assert (found.run, found.round, found.void) == ("a", 4, (2, 3))


def test_a_part_of_the_model_is_not_kept(wards: list[dict[str, Any]]) -> None:
    play(wards, **{"fraction-evaluate": 0.0, "dropout-width": 0.5})
    with pytest.raises(ConfigError, match="expected a kept model"):
        kept(wards[0])
    final = play(wards, **{"dropout-width": 0.5}).arrays(2)
    _, arrays, _ = read_kept_model(kept(wards[0]))  # evaluations bring the whole
    assert all(np.array_equal(arrays[name], final[name]) for name in final)


@pytest.mark.parametrize("algorithm", ["fedavg", "ditto", "fedper", "fedbn", "fedala", "local-only"])
def test_a_prediction_on_the_node_is_what_the_node_measured(
    wards: list[dict[str, Any]], algorithm: str
) -> None:
    """A personal model of a wrong round, or without the part that is kept, has another loss."""
    more = {"model": "mlp-bn"} if algorithm == "fedbn" else {}
    played = play(wards, algorithm=algorithm, **more)
    seen = {
        x["name"]: x["metrics"] for x in played.keep.clients if x["phase"] == "evaluate" and x["round"] == 2
    }
    for name, node in zip(WARDS, wards, strict=True):
        if algorithm == "fedavg":
            assert take_kept(kept(node)).model is not None
            with pytest.raises(ConfigError, match="no models of their own"):
                take_kept(kept(node), name)
            continue
        taken = take_kept(kept(node), name)
        scores = predict(taken, own_examples(taken)).scores["all"]
        assert scores["loss"] == pytest.approx(seen[name]["loss"], rel=1e-5)
        assert scores["accuracy"] == seen[name]["accuracy"]


def test_who_asks_for_what_is_not_there_hears_why(wards: list[dict[str, Any]]) -> None:
    play(wards, algorithm="fedper")
    path = kept(wards[0])
    with pytest.raises(ConfigError, match="expected --client NAME"):
        take_kept(path)
    with pytest.raises(ConfigError, match="expected one of ward-1; got 'ward-2'"):
        take_kept(path, "ward-2")
    with pytest.raises(ConfigError, match=r"a kept model of run other; there is none\. .* keep-models ="):
        find_kept_model(path.parent, "other")
    for file in path.parents[2].glob("cache/state/*/*/ward-1.safetensors"):
        file.unlink()
    with pytest.raises(StateError, match="client ward-1: expected its state"):
        take_kept(path, "ward-1")


def test_a_node_keeps_nothing_unless_its_owner_says_so_and_sends_nothing_more(
    wards: list[dict[str, Any]], tmp_path: Path
) -> None:
    without = [{k: v for k, v in node.items() if k != "keep-models"} for node in wards]

    def sizes(messages: list[Message]) -> list[int]:
        return [
            sum(len(a.data) for r in m.content.array_records.values() for a in r.values()) for m in messages
        ]

    runs = [play(nodes) for nodes in (without, wards)]
    assert sizes(runs[0].grid.sent) == sizes(runs[1].grid.sent)
    assert runs[0].rows[-1]["model_sha256"] == runs[1].rows[-1]["model_sha256"]
    assert owner_of({}).keep_models == ""
    with pytest.raises(ConfigError, match='"keep-models": expected a folder; got True'):
        owner_of({"keep-models": True})


def test_a_node_that_cannot_write_it_trains_all_the_same(
    wards: list[dict[str, Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ward-1").write_text("a file where the folder should be")
    played = play(wards)
    assert played.rows[-1]["answered"] == 3
    assert "keep-models: the model of round 2 is not kept" in caplog.text


def test_a_node_predicts_from_its_kit_alone(
    wards: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy's key does not reach the app, or the command looks for the clients' state elsewhere."""
    provision(tmp_path / "kits", "host.example:9092", ["ward-1"])
    folder = tmp_path / "kits" / "ward-1"
    config = folder / "kit.toml"
    assert "keep-models = false" in config.read_text()
    config.write_text(config.read_text().replace("keep-models = false", "keep-models = true"))
    kit = read_kit(folder)
    assert isinstance(kit, NodeKit)
    made = node_config(kit.name, Options(data=tmp_path / "ward-1.npz"), kit.policy, kit.models)
    assert made["keep-models"] == str(folder / "models")
    monkeypatch.setenv("BOUQUET_CACHE", str(kit.cache))
    played = play([made], algorithm="ditto", **{"min-nodes": 1})
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "another"))
    monkeypatch.setenv(CODE, "")  # the command sets both
    told = CliRunner().invoke(app, ["predict", "--kit", str(folder), "--client", "ward-1"])
    (seen,) = [x["metrics"] for x in played.keep.clients if x["phase"] == "evaluate" and x["round"] == 2]
    assert told.exit_code == 0, told.output
    assert f"loss {seen['loss']:.4f}, accuracy {seen['accuracy']:.4f} on 10 examples" in told.stderr
    with_file = ["predict", "trial", "--kit", str(folder), "--data", str(tmp_path / "ward-2.npz")]
    told = CliRunner().invoke(app, with_file)
    assert told.exit_code == 0, told.output
    assert told.stdout.startswith("id,predicted,p_0,p_1")
    assert len(told.stdout.splitlines()) == 41
    for words, says in (
        (["--kit", str(folder)], "--data: expected a file"),
        ([], "or --kit KIT of a node"),
        (["--kit", str(tmp_path / "kits" / "link"), "--data", "x.npz"], "got that of a link"),
    ):
        failed = CliRunner().invoke(app, ["predict", *words])
        assert says in str(failed.exception)
