"""Joined trees of parties, taken out of a run: predictions, exported models, and what is refused."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from server_app.cli.main import app
from server_app.takeout.joined import JoinedTrees
from server_app.takeout.taken import taken_in
from server_app.takeout.trees import TakenTrees
from task.datasets import load_dataset
from task.errors import ConfigError, StateError
from task.resolve.read import read_config
from task.vertical.rows import in_common_order, num_tests
from tests.support import parties
from tests.support.federation import in_one_process
from tests.vertical.test_secureboost import config, table, write

HEADER = [f"x{j}" for j in range(6)]


def trained(folder: Path, **more: Any) -> Path:
    """Return the folder of a run over three parties that have columns of one file."""
    path = write(folder / "all.csv", *table())
    keys = config(data_path=str(path), num_clients=3, partition="columns", columns="2,3,1", **more)
    return in_one_process({**keys, "run-name": "trees"}, folder / "runs")


def trees_in(run: Path) -> TakenTrees:
    """Return the joined trees of a run."""
    taken = taken_in(run)
    assert isinstance(taken, JoinedTrees)
    return taken.grown


def last(folder: Path) -> dict[str, Any]:
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def test_predictions_and_exported_trees_are_those_that_the_run_measured(tmp_path: Path) -> None:
    folder = trained(tmp_path, gbdt__held_out=0.3, gbdt__patience=1, num_server_rounds=3)
    out = tmp_path / "trees.json"
    done = CliRunner().invoke(app, ["predict", str(folder), "--data", str(tmp_path / "all.csv")])
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    p = np.array([float(row["p_1"]) for row in rows])
    (ids, x, y), settings = table(), read_config(config())
    assert [row["id"] for row in rows] == ids
    tests = in_common_order(ids, settings.seeds.data)
    tests = tests[: num_tests(len(ids), settings)]
    right = np.where(y[tests] == 1, p[tests], 1.0 - p[tests])
    assert -np.log(right).mean() == pytest.approx(last(folder)["client_loss"], abs=1e-6)

    xgboost: Any = pytest.importorskip("xgboost")
    done = CliRunner().invoke(app, ["export", str(folder), "--format", "xgboost", "--out", str(out)])
    assert done.exit_code == 0, done.output
    booster = xgboost.Booster(model_file=str(out))
    assert booster.feature_names == HEADER  # the file's columns in its order
    matrix = xgboost.DMatrix(x, feature_names=booster.feature_names, feature_types=booster.feature_types)
    assert np.abs(booster.predict(matrix) - p).max() < 1e-6
    assert "no weights" not in json.dumps(booster.attributes())


def test_parties_that_a_run_leaves_out_have_no_columns_in_its_trees(tmp_path: Path) -> None:
    folder = trained(tmp_path, vertical__parties="client-0,client-2", num_server_rounds=1)
    taken = trees_in(folder)
    assert taken.declared.names == ("x0", "x1", "x5")  # 2, 3 and 1 columns a party
    assert {0, 1, 2} == {f for f in taken.trees.feature.tolist() if f >= 0}


def test_parts_that_are_not_there_or_not_the_models_are_refused(tmp_path: Path) -> None:
    folder = trained(tmp_path, num_server_rounds=1)
    model = folder / "model.safetensors"
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / model.name).write_bytes(model.read_bytes())
    with pytest.raises(ConfigError, match="expected the folder of a run"):
        trees_in(tmp_path / "alone" / model.name)

    text = (folder / "config.json").read_text()
    record = json.loads(text)
    record["run"]["data-path"] = ""
    (folder / "config.json").write_text(json.dumps(record))
    with pytest.raises(
        ConfigError, match=r"a deployed one.*client_loss in rounds\.jsonl.*bouquet run with data"
    ):
        trees_in(folder)
    (folder / "config.json").write_text(text)

    (second, third) = (
        next(p for p in (tmp_path / "runs/state").rglob(f"client-{k}.safetensors") if p.parent.name != "start"
             and p.parent.name != "round")
        for k in (1, 2)
    )  # fmt: skip
    second.unlink()
    with pytest.raises(StateError, match="client-1"):
        trees_in(folder)
    assert third.exists()


def test_another_algorithm_of_parties_has_no_trees(tmp_path: Path) -> None:
    path = parties.write(tmp_path / "all.csv", *parties.table())
    keys = parties.config(data_path=str(path), num_clients=2, partition="columns", columns="even")
    folder = in_one_process({**keys, "run-name": "net", "num-server-rounds": 1}, tmp_path / "runs")
    done = CliRunner().invoke(app, ["export", str(folder), "--format", "xgboost"])
    assert "expected a run that grows trees" in done.output + str(done.exception)


PICTURES = """
import numpy as np
import pandas as pd


def load():
    rng = np.random.default_rng(5)
    x = rng.integers(0, 256, (160, 1, 4, 6)).astype(np.uint8)
    y = (x[:, 0, 1, 2].astype(int) + x[:, 0, 2, 5] > 255).astype(np.int64)
    return x[:150], y[:150], x[150:], y[150:]
"""


def loss_by_rows(folder: Path, p: np.ndarray, ids: list[str], y: np.ndarray) -> float:
    """Return the mean loss of the rows of a run's test, of probabilities p of the second class."""
    settings = read_config(json.loads((folder / "config.json").read_text())["run"])
    tests = in_common_order(ids, settings.seeds.data)[: num_tests(len(ids), settings)]
    return float(-np.log(np.where(y[tests] == 1, p[tests], 1.0 - p[tests])).mean())


def probabilities(folder: Path, names: list[str], x: np.ndarray) -> np.ndarray:
    """Return what the joined trees of a run say of rows, whose columns have these names."""
    path = folder.parent / "rows.csv"
    pd.DataFrame(x, columns=names).to_csv(path, index=False)
    said = taken_in(folder).predict(path, whole=False, batch=1)
    return np.asarray(dict(said.columns)["p_1"])


def test_joined_trees_of_pictures_read_pixels_by_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A party has columns of each row of pixels, so that its places are not next to each other."""
    (tmp_path / "scans.py").write_text(PICTURES)
    monkeypatch.syspath_prepend(str(tmp_path))
    keys = config(dataset="scans:load", num_clients=2, partition="columns", columns="even")
    folder = in_one_process({**keys, "run-name": "scans"}, tmp_path / "runs")
    taken = trees_in(folder)
    mine = [f"x{row * 6 + column}" for row in range(4) for column in (0, 1, 2)]
    assert taken.declared.names[:12] == tuple(mine)
    used = {taken.declared.names[f] for f in taken.trees.feature.tolist() if f >= 0}
    assert used >= {"x8", "x17"}  # the pixels that the classes follow from
    settings = read_config(keys)
    data = load_dataset(settings.data, settings.synthetic, settings.seeds.data)
    x = data.inputs(np.arange(len(data.y))).flatten(1).numpy()
    p = probabilities(folder, [f"x{j}" for j in range(24)], x)
    ids = [str(i) for i in range(len(x))]
    assert loss_by_rows(folder, p, ids, data.y) == pytest.approx(last(folder)["client_loss"], abs=1e-6)


def people(folder: Path, names: tuple[str, str, str], values: str = "clerk|cook|nurse") -> pd.DataFrame:
    """Write a table with a category, gaps and two numbers, of these names, and ids and labels; return it."""
    rng, levels = np.random.default_rng(6), np.array([*values.split("|"), "NA"])
    job, x = rng.choice(4, 120, p=[0.3, 0.3, 0.3, 0.1]), rng.normal(size=(120, 2)).astype(np.float32)
    frame = pd.DataFrame(
        {"who:id": [f"p{i}" for i in range(120)], f"{names[0]}:category({values})": levels[job]}
    )
    frame[names[1]], frame[names[2]] = x.T
    frame["label"] = ((job == 1) * 2 + x[:, 0] - x[:, 1] > 0.3).astype(int)
    frame.to_csv(folder / "people.csv", index=False, na_rep="NA")
    return frame


def grown_from(folder: Path, **more: Any) -> Path:
    """Return the folder of a run over two parties that share the columns of `people`."""
    path = str(folder / "people.csv")
    keys = config(data_path=path, num_clients=2, partition="columns", **{"columns": "2,3", **more})
    return in_one_process({**keys, "run-name": "people"}, folder / "runs")


@pytest.mark.parametrize("names", [("job", "age", "dose"), ("x4", "x0", "x1")])
def test_joined_trees_read_the_runs_own_columns_whatever_their_names(
    names: tuple[str, str, str], tmp_path: Path
) -> None:
    """A category is several inputs, so that x0 and x1 are not the first and second of these."""
    frame = people(tmp_path, names)
    folder = grown_from(tmp_path)
    taken, (job, *numbers) = trees_in(folder), names
    assert taken.declared.names == (f"{job}=clerk", f"{job}=cook", f"{job}=nurse", *numbers)
    assert {1, 3, 4} <= {*taken.trees.feature.tolist()}
    new = frame[frame.columns[[3, 4, 2, 1, 0]]]  # in another order
    new.to_csv(tmp_path / "new.csv", index=False, na_rep="NA")
    said = taken_in(folder).predict(tmp_path / "new.csv", whole=False, batch=1)
    p = np.asarray(dict(said.columns)["p_1"])
    ids, y = frame["who:id"].tolist(), frame["label"].to_numpy()
    assert loss_by_rows(folder, p, ids, y) == pytest.approx(last(folder)["client_loss"], abs=1e-6)


def test_inputs_that_a_reader_could_not_tell_apart_are_not_exported(tmp_path: Path) -> None:
    people(tmp_path, ("job", "job=cook", "dose"))
    folder = grown_from(tmp_path, num_server_rounds=1)
    with pytest.raises(ConfigError, match=r"a name of its own; got job=cook\. Rename"):
        taken_in(folder).export("onnx", tmp_path / "t.onnx", None, int8=False)
    assert not (tmp_path / "t.onnx").exists()


def test_names_that_xgboost_refuses_are_named(tmp_path: Path) -> None:
    people(tmp_path, ("age", "dose", "mass"), "<30|30-60|>60")
    folder = grown_from(tmp_path, num_server_rounds=1)
    with pytest.raises(ConfigError, match=r"which XGBoost refuses; got age=<30\. Rename"):
        taken_in(folder).export("xgboost", tmp_path / "t.json", None, int8=False)
    assert not (tmp_path / "t.json").exists()
