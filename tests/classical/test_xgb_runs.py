"""Trees that clients grow with XGBoost, as runs: who makes them, in which order, and what is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Message
from typer.testing import CliRunner

from client_app.classical.xgb import check_leaves
from server_app.cli.main import app
from server_app.takeout.taken import as_csv, taken_in
from task.catalogue.xgb import NEW
from task.errors import ConfigError, DataError, RefusedError
from task.resolve.analyses import declared_of
from task.resolve.model_card import read_model
from task.resolve.read import read_config
from task.trees.ensemble import TreeEnsemble
from task.trees.packed import packed, unpacked, width_of
from task.wire.messages import pack_arrays
from tests.support.federation import Keep, Played, in_one_process, play

xgboost: Any = pytest.importorskip("xgboost")
N = 300
COLUMNS = "age(0..100), dose(0..9), job(clerk|cook|nurse|other)"
HEADER = ["age:number", "dose:number", "job:category(clerk|cook|nurse|other)", "ill:target", "client"]
KEYS = {
    "dataset": "csv", "partition": "natural", "num-clients": 0, "num-server-rounds": 3, "local-epochs": 2,
    "local-test-fraction": 0.25, "xgb.columns": COLUMNS, "xgb.target": "ill(0..1)", "xgb.max-depth": 3,
    "xgb.objective": "logistic",
}  # fmt: skip


def people() -> pd.DataFrame:
    """Return a table with gaps, of three sites, in which all columns matter."""
    rng = np.random.default_rng(5)
    age, dose = rng.uniform(18, 90, N).round(1), rng.uniform(0, 9, N).round(2)
    job = rng.choice(["clerk", "cook", "nurse", "other"], N)
    score = (age - 54) / 15 + (job == "nurse") - (job == "cook") + np.sin(dose)
    ill = (rng.random(N) < 1 / (1 + np.exp(-2 * score))).astype(int)
    frame = pd.DataFrame({"age": age, "dose": dose, "job": job, "ill": ill})
    frame.loc[rng.random(N) < 0.1, "dose"] = np.nan
    return frame.assign(client=[f"site-{i % 3}" for i in range(N)])


FRAME = people()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("people") / "people.csv"
    FRAME.to_csv(path, index=False, header=HEADER)
    return {**KEYS, "data-path": str(path)}


def arrays_of(played: Played) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = played.arrays(len(played.rows) - 1)
    return found


def trees_at(keys: dict[str, Any], played: Played) -> TreeEnsemble:
    return TreeEnsemble.from_arrays(arrays_of(played), len(declared_of(read_config(keys)).variables))


def matrix(x: np.ndarray, y: Any = None) -> Any:
    types = ["float", "float", "c"]
    names = ["age", "dose", "job"]
    return xgboost.DMatrix(x, y, feature_names=names, feature_types=types, enable_categorical=True, nthread=1)


# ---------------------------------------------------------------------------------- what a run grows


def test_a_client_alone_grows_the_trees_of_xgboost_itself(tmp_path: Path) -> None:
    """Rounds of two trees are those of one training that goes on, with a base score of all rows."""
    FRAME.drop(columns="client").assign(client="all").to_csv(tmp_path / "one.csv", index=False, header=HEADER)
    keys = {**KEYS, "algorithm": "xgb-bagging", "data-path": str(tmp_path / "one.csv")}
    keys |= {"local-test-fraction": 0.0, "fraction-evaluate": 0.0}
    trees = trees_at(keys, play(keys, nodes=1))
    levels = ["clerk", "cook", "nurse", "other"]
    x = FRAME[["age", "dose"]].assign(job=FRAME.job.map(levels.index)).to_numpy(np.float32)
    rows = matrix(x, FRAME.ill)
    settings = {"objective": "binary:logistic", "max_depth": 3, "nthread": 1, "tree_method": "hist"}
    want = xgboost.train(settings | {"base_score": float(FRAME.ill.mean())}, rows, 6)
    margins = want.predict(rows, output_margin=True)
    np.testing.assert_allclose(trees.margins(x)[:, 0], margins, rtol=0, atol=3e-6)
    assert trees.trees == 6
    assert trees.importance(3)["weight"].tolist() == [
        want.get_score().get(name, 0) for name in ("age", "dose", "job")
    ]


@pytest.mark.parametrize("algorithm", ["xgb-bagging", "xgb-cyclic"])
def test_the_trees_do_not_depend_on_nodes_or_on_who_answers_first(
    algorithm: str, keys: dict[str, Any]
) -> None:
    keys = {**keys, "algorithm": algorithm, "xgb.subsample": 0.8, "xgb.colsample-bytree": 0.7}
    one = play(keys, nodes=1)
    assert {row["answered"] for row in one.rows[1:]} == {3 if algorithm == "xgb-bagging" else 1}
    assert trees_at(keys, one).trees == (18 if algorithm == "xgb-bagging" else 6)
    for seed in (1, 2):
        again = play(keys, nodes=3, seed=seed)
        assert [row["model_sha256"] for row in again.rows] == [row["model_sha256"] for row in one.rows]
    assert one.rows[-1]["client_accuracy"] > 0.7
    assert one.rows[-1]["client_loss"] < one.rows[1]["client_loss"]


def test_several_classes_keep_theirs(keys: dict[str, Any]) -> None:
    keys = {**keys, "algorithm": "xgb-bagging", "xgb.target": "job(clerk|cook|nurse|other)"}
    keys |= {"xgb.columns": "age(0..100), dose(0..9), ill(0..1)", "xgb.objective": "auto"}
    trees = trees_at(keys, play(keys, nodes=2))
    assert trees.trees == 3 * 3 * 2 * 4
    assert trees.tree_classes.tolist() == [0, 1, 2, 3] * 18
    assert abs(trees.base.sum()) < 1e-6


def test_numbers_are_predicted_with_their_mean_as_base(keys: dict[str, Any]) -> None:
    keys = {**keys, "algorithm": "xgb-cyclic", "xgb.target": "age(0..100)", "xgb.objective": "auto"}
    keys |= {"xgb.columns": "dose(0..9), job(clerk|cook|nurse|other), ill(0..1)"}
    played = play(keys, nodes=2)
    assert played.rows[-1]["client_accuracy"] is None
    assert played.rows[-1]["client_loss"] < FRAME.age.var()
    assert abs(trees_at(keys, played).base[0] - FRAME.age.mean()) < 3


class Answers:
    """Loses the reply that is number `lost` among those of trees, or puts other nodes into it."""

    def __init__(self, number: int, nodes: np.ndarray | None = None) -> None:
        self.number, self.nodes, self.seen = number, nodes, 0

    def __call__(self, node: int, reply: Message) -> Message | None:
        if reply.metadata.message_type != "train":
            return reply
        self.seen += 1
        if self.seen != self.number:
            return reply
        if self.nodes is None:
            return None
        (sent,) = (a.numpy() for a in reply.content.array_records[NEW].values())
        made = np.zeros_like(sent)
        made[:, 0] = -1
        made[: len(self.nodes)] = self.nodes
        reply.content.array_records[NEW] = pack_arrays({"rows": made})
        return reply


def turns(keys: dict[str, Any], tamper: Answers | None = None) -> list[str]:
    """Return who has grown trees, round by round."""
    journal = Keep()
    play({**keys, "fraction-evaluate": 0.0, "round-timeout": 1.0}, nodes=3, journal=journal, tamper=tamper)
    return [row["name"] for row in journal.clients]


def test_turns_go_by_name_or_seed_and_a_lost_one_passes_on(keys: dict[str, Any]) -> None:
    keys = {**keys, "algorithm": "xgb-cyclic", "num-server-rounds": 4, "xgb.max-depth": 1, "local-epochs": 1}
    assert turns(keys) == ["site-0", "site-1", "site-2", "site-0"]
    assert turns(keys, Answers(2)) == ["site-0", "site-2", "site-0", "site-1"]
    by_seed = {tuple(turns({**keys, "xgb.order": "seed", "train-seed": seed})) for seed in range(4)}
    assert all(order[0] == order[3] and len({*order}) == 3 for order in by_seed)
    assert len(by_seed) > 1


def test_what_is_no_trees_is_left_out(keys: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    keys = {**keys, "num-server-rounds": 1, "fraction-evaluate": 0.0}
    keys |= {"algorithm": "xgb-bagging", "local-epochs": 1}
    stump = leaf(11, feature=0, left=0)  # its own child
    played = play(keys, nodes=3, tamper=Answers(2, stump))
    assert played.rows[-1]["metrics"] == {"trees": 2, "left-out": 1}
    many = np.concatenate([leaf(11), leaf(11, tree=1)])  # more trees than were asked for
    played = play(keys, nodes=3, tamper=Answers(1, many))
    assert played.rows[-1]["metrics"] == {"trees": 2, "left-out": 1}
    assert "is left out: trees: expected 1 trees; got 2" in caplog.text
    one = play({**keys, "algorithm": "xgb-cyclic"}, nodes=3, tamper=Answers(1, many))
    assert one.rows[-1]["metrics"] == {"trees": 1}
    assert "the turn of client site-0 passes on" in caplog.text


# ------------------------------------------------------------------------------------- what is refused


def leaf(width: int, **columns: int) -> np.ndarray:
    at = {"tree": 0, "kind": 1, "feature": 2, "cut": 3, "default": 4, "left": 5, "right": 6, "value": 7}
    nodes = np.zeros((1, width), np.int32)
    nodes[0, [2, 5, 6]] = -1
    for name, number in columns.items():
        nodes[0, at[name]] = number
    return nodes


@pytest.mark.parametrize(
    "nodes",
    [
        leaf(11, tree=1), leaf(11, tree=-2), leaf(11, kind=1), leaf(11, kind=-1), leaf(11, feature=0),
        leaf(11, feature=3), leaf(11, default=2), leaf(11, left=0), leaf(11, value=0x7F800000),
        leaf(11, value=-1), np.concatenate([leaf(11), leaf(11, tree=2)]), np.concatenate([leaf(11)] * 2),
    ],
)  # fmt: skip
def test_a_table_that_is_no_trees_is_refused(nodes: np.ndarray) -> None:
    with pytest.raises(DataError, match="trees: "):
        unpacked(nodes, np.zeros(1), 3)


def test_tables_of_nodes_give_the_trees_back(keys: dict[str, Any]) -> None:
    keys = {**keys, "algorithm": "xgb-bagging"}
    trees = trees_at(keys, play(keys, nodes=1))
    assert len(trees.categories)
    width = width_of(4)
    again = unpacked(packed(trees, width, rows=1000), trees.base, 3)
    assert all((a == again.to_arrays()[name]).all() for name, a in trees.to_arrays().items())
    with pytest.raises(DataError, match="at most 1 nodes"):
        packed(trees, width, rows=1)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"secagg": True}, "its clients send trees"),
        ({"codec.up": "int8"}, "its clients send trees"),
        ({"dp.clip": 1.0, "dp.noise": 1.0}, "its clients send trees"),
        ({"xgb.columns": "age(0..100), ill(0..1)"}, "each column once"),
        ({"xgb.objective": "softmax"}, "two levels or more"),
        ({"xgb.target": "ill(0..2)"}, "two levels"),
        ({"xgb.order": "seed"}, "nothing in this run reads it"),
        ({"gbdt.max-depth": 3}, "nothing in this run reads it"),
        ({"dataset": "digits"}, "reads columns by their names"),
    ],
)
def test_what_does_not_go_with_it_is_refused_before_round_1(
    more: dict[str, Any], why: str, keys: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=why):
        read_config({**keys, "algorithm": "xgb-bagging", **more})


def test_no_leaf_of_few_rows_leaves_a_site_whose_owner_forbids_it(keys: dict[str, Any]) -> None:
    keys = {**keys, "algorithm": "xgb-bagging"}
    trees, declared = trees_at(keys, play(keys, nodes=1)), declared_of(read_config(keys))
    x = np.zeros((20, 3), np.float32)
    with pytest.raises(RefusedError, match=r"min-examples = 5; a leaf.*xgb.min-child-weight"):
        check_leaves(trees, x, 5, "ward")
    stump = unpacked(leaf(11), np.zeros(1), len(declared.variables))
    check_leaves(stump, x, 20, "ward")


# -------------------------------------------------------------------------------------- taken out


def test_a_run_is_exported_and_predicts(keys: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    folder = in_one_process({**keys, "algorithm": "xgb-bagging", "run-name": "trees"}, tmp_path)
    table = json.loads((folder / "result.json").read_text())["table"]
    assert table["trees"] == 18
    assert {row["column"] for row in table["columns"]} == {"age", "dose", "job"}
    taken = taken_in(folder)
    for form, name in (("xgboost", "t.json"), ("onnx", "t.onnx")):
        (line,) = taken.export(form, tmp_path / name, None, int8=False)
        assert "largest difference" in line
    booster = xgboost.Booster(model_file=tmp_path / "t.json")
    assert json.loads(booster.attr("levels")) == {"job": ["clerk", "cook", "nurse", "other"]}
    new = FRAME.drop(columns=["ill", "client"])
    new.to_csv(tmp_path / "new.csv", index=False, header=HEADER[:3])
    said = pd.read_csv(io.StringIO(as_csv(taken.predict(tmp_path / "new.csv", whole=False, batch=1).columns)))
    x = new.assign(job=new.job.map(["clerk", "cook", "nurse", "other"].index)).to_numpy(np.float32)
    rows = matrix(x)
    np.testing.assert_allclose(said["p_1"], booster.predict(rows), rtol=0, atol=3e-6)
    assert (said["predicted"] == (said["p_1"] > 0.5)).all()
    assert ((said["predicted"] == FRAME.ill).mean()) > 0.75
    assert read_model(folder / "model.safetensors")[0].config.algorithm == "xgb-bagging"


def test_a_resumed_run_ends_in_the_same_trees(keys: dict[str, Any], tmp_path: Path) -> None:
    keys = {**keys, "algorithm": "xgb-cyclic", "run-name": "whole", "fraction-evaluate": 0.0}
    whole = in_one_process(keys, tmp_path)
    first = {**keys, "run-name": "first", "num-server-rounds": 2}
    in_one_process(first, tmp_path)
    resumed = in_one_process({**first, "num-server-rounds": 3, "resume": True}, tmp_path)
    one, two = (read_model(folder / "model.safetensors")[1] for folder in (whole, resumed))
    assert all((one[name] == two[name]).all() for name in one)


def test_the_command_writes_trees_and_refuses_other_runs(keys: dict[str, Any], tmp_path: Path) -> None:
    more = {"algorithm": "xgb-bagging", "run-name": "trees", "num-server-rounds": 1}
    folder, out = in_one_process({**keys, **more}, tmp_path), tmp_path / "out.json"
    command = ["export", str(folder), "--format", "xgboost", "--out", str(out)]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    assert xgboost.Booster(model_file=out).num_boosted_rounds() == 6
    with pytest.raises(ConfigError, match="no option but --out"):
        CliRunner().invoke(app, [*command, "--int8"], catch_exceptions=False)
    counts = {"algorithm": "statistics", "statistics.columns": "age(0..100)", "num-server-rounds": 1}
    data = {name: keys[name] for name in ("dataset", "data-path", "partition", "num-clients")}
    other = in_one_process({**data, **counts, "run-name": "counts"}, tmp_path)
    with pytest.raises(ConfigError, match="expected a run that grows trees"):
        CliRunner().invoke(app, ["export", str(other), "--format", "xgboost"], catch_exceptions=False)
