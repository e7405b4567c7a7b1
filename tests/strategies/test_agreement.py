"""Nodes agree on what their own data mean: they are read by name, or left out by name."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from PIL import Image

from client_app.app import make_app
from client_app.data.node import open_node
from client_app.data.registration import registration_of
from server_app.app import run as run_server
from server_app.results.folder import RunFolder
from strategies.engine.registration_phase import RegistrationPhase
from strategies.membership.agreement import Agreement, Voter, agree
from strategies.membership.client_registry import ClientRegistry
from task.datasets import load_owned
from task.datasets.description import Meaning, described, meaning_of
from task.datasets.reorder import read_by_name
from task.errors import ConfigError, DataError, WireError
from task.resolve.read import read_config
from task.wire.places import INPUTS, OUTPUTS, read_places
from task.wire.registration import LEFT_OUT, read_notice
from tests.support.federation import Played, owners_config, play, read_by
from tests.support.grid import LocalGrid

Table = Mapping[str, list[str]]  # cells by column's name
JOB, OUTCOME = "job:category(clerk|nurse)", "outcome:target(ill|well)"


def table(seed: int) -> dict[str, list[str]]:
    rng = np.random.default_rng(seed)
    age, ill = rng.integers(20, 80, 12), rng.random(12) < 0.5
    return {
        "age": [str(a) for a in age],
        "bmi": [f"{b:.1f}" for b in rng.normal(25, 3, 12)],
        JOB: [("clerk", "nurse")[j] for j in rng.integers(0, 2, 12)],
        OUTCOME: ["ill" if i else "well" for i in ill],
    }


def write(path: Path, columns: Table) -> Path:
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(row) for row in rows)]) + "\n")
    return path


def renamed(columns: Table, **names: str) -> dict[str, list[str]]:
    by = {"job": JOB, "outcome": OUTCOME}
    new = {by.get(old, old): name for old, name in names.items()}
    return {new.get(name, name): cells for name, cells in columns.items()}


def turned(columns: Table) -> dict[str, list[str]]:
    names = list(columns)
    return {name: columns[name] for name in (names[i] for i in (3, 1, 2, 0))}


def grid_of(paths: Mapping[str, Path], late: Mapping[str, int] | None = None) -> type[LocalGrid]:
    """Return a grid of a node for each file; `late` ones come in a later round."""
    names = sorted(paths)

    class Own(LocalGrid):
        def __init__(self, app: Any, node_configs: Any, run_config: Any = None, **more: Any) -> None:
            own = [{"client-name": name, "data-path": str(paths[name])} for name in names]
            super().__init__(app, own, run_config, **more)

        def get_node_ids(self) -> Iterable[int]:
            trained = [int(m.metadata.group_id) for m in self.sent if m.metadata.message_type == "train"]
            now = max(trained, default=0) + 1
            return [n for n, i in self.index.items() if (late or {}).get(names[i], 0) <= now]

    return Own


def config_of(**keys: Any) -> dict[str, Any]:
    keys = {"dataset": "csv", "num_classes": 2, "num_server_rounds": 2, "standardise": True, **keys}
    return read_by(owners_config(Path(), **keys) | {"data-path": ""})


def run(paths: Mapping[str, Path], late: Mapping[str, int] | None = None, **keys: Any) -> Played:
    return play(config_of(**keys), grid_type=grid_of(paths, late))


def wards(folder: Path, **changed: Table) -> dict[str, Path]:
    folder.mkdir(exist_ok=True)
    tables = {f"ward-{i}": table(i) for i in (1, 2, 3)} | {k.replace("_", "-"): t for k, t in changed.items()}
    return {name: write(folder / f"{name}.csv", columns) for name, columns in tables.items()}


def hashes(played: Played) -> list[str]:
    return [row["model_sha256"] for row in played.rows]


def left_out(played: Played) -> dict[str, str]:
    registry = played.strategy.registry
    index = {str(n): i for n, i in played.grid.index.items()}
    return {f"ward-{index[row['node']] + 1}": row["reason"] for row in registry.left_out()}


def notices(played: Played) -> list[Message]:
    return [m for m in played.grid.sent if m.metadata.message_type == f"query.{LEFT_OUT}"]


ORDERS = {
    "columns": turned(table(2)),
    "categories": renamed(table(2), job="job:category(nurse|clerk)"),
    "classes": renamed(table(2), outcome="outcome:target(well|ill)"),
    "all": turned(renamed(table(2), job="job:category(nurse|clerk)", outcome="outcome:target(well|ill)")),
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_node_with_the_same_names_in_another_order_is_read_by_name(tmp_path: Path, order: str) -> None:
    more = {"local_test_fraction": 0.25, "fraction_evaluate": 1.0, "missing": "mean"}
    same = run(wards(tmp_path / "a"), **more)
    other = run(wards(tmp_path / "b", ward_2=ORDERS[order]), **more)
    assert hashes(other) == hashes(same)
    assert [row["metrics"] for row in other.rows] == [row["metrics"] for row in same.rows]
    assert not left_out(other)
    sent = {INPUTS in m.content["config"] for m in other.messages()}
    assert sent == {True}
    assert not any(INPUTS in m.content["config"] for m in same.messages())


def replaced(name: str, new: str, cells: list[str] | None = None) -> dict[str, list[str]]:
    """Return the table of ward-2 with one column changed."""
    return {(new if k == name else k): (cells or v) if k == name else v for k, v in table(2).items()}


SICK = ["sick" if c == "ill" else c for c in table(2)[OUTCOME]]
NUMBERS = [str(int(c == "well")) for c in table(2)[OUTCOME]]
OTHERS: dict[str, tuple[Table, str]] = {
    "column": (replaced("bmi", "weight_kg"), "the names or kinds of its columns"),
    "kind": (replaced(JOB, "job", ["1"] * 12), "the names or kinds of its columns"),
    "values": (replaced(JOB, "job:category(clerk|nurse|cook)"), "the values of a category"),
    "target": (replaced(OUTCOME, "died:target(ill|well)"), "the name of the column to predict"),
    "classes": (replaced(OUTCOME, "outcome:target(sick|well)", SICK), "the names of the classes"),
    "numbers": (replaced(OUTCOME, "outcome:target", NUMBERS), "the names of the classes"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_node_whose_data_mean_something_else_is_left_out_before_round_1(tmp_path: Path, other: str) -> None:
    columns, words = OTHERS[other]
    played = run(wards(tmp_path, ward_2=columns))
    (left,) = left_out(played).items()
    name, reason = left
    assert name == "ward-2"
    assert f"is refused: it has data that differ from those of the others in {words}" in reason
    counts = {"kind": (4, 3), "column": (4, 4), "values": (4, 5)}.get(other)
    if counts:
        said = "expected {} inputs (numbers, values of categories), got {}".format(*counts)
        assert said in reason
    assert ("--column-types 'NAME:ignore'" in reason) == (other in ("column", "kind"))
    assert not any(word in reason for word in ("weight_kg", "died", "sick", "cook"))
    assert [row["selected"] for row in played.rows[1:]] == [["ward-1", "ward-3"]] * 2
    (notice,) = notices(played)  # once, though three phases registered nodes
    assert played.grid.index[notice.metadata.dst_node_id] == 1
    assert reason == f"is refused: it {read_notice(notice.content)}"  # whole: no line is cut


def test_a_node_that_joins_late_is_read_by_name_or_left_out(tmp_path: Path) -> None:
    late = {"ward-3": 2}
    same = run(wards(tmp_path / "a"), late, num_server_rounds=3)
    other = run(wards(tmp_path / "b", ward_3=turned(table(3))), late, num_server_rounds=3)
    assert [row["selected"] for row in other.rows[1:]] == [
        ["ward-1", "ward-2"],
        [*wards(tmp_path / "c")],
        [*wards(tmp_path / "c")],
    ]
    assert hashes(other) == hashes(same)
    odd = run(wards(tmp_path / "d", ward_3=OTHERS["column"][0]), late, num_server_rounds=3)
    assert "names or kinds of its columns" in left_out(odd)["ward-3"]
    assert odd.rows[3]["selected"] == ["ward-1", "ward-2"]


def test_where_no_side_is_most_nodes_no_run_begins_and_all_are_named(tmp_path: Path) -> None:
    unlike = {"ward_2": OTHERS["column"][0], "ward_3": OTHERS["target"][0] | {"height": ["1"] * 12}}
    with pytest.raises(
        ConfigError,
        match=r"agree on the names or kinds .* differ: (node \d+ \([45] inputs\)(; |\.)){3}",
    ):
        run(wards(tmp_path, **unlike))
    two = {k: v for k, v in wards(tmp_path, ward_2=OTHERS["classes"][0]).items() if k != "ward-3"}
    with pytest.raises(ConfigError, match=r"agree on the names of the classes; .* node \d+; node \d+\."):
        run(two)


def test_nodes_hear_why_they_are_left_out_before_the_run_ends(tmp_path: Path) -> None:
    files = wards(tmp_path)
    grid = grid_of(files)(make_app(simulation=True), [], config_of())
    registry = ClientRegistry(5.0, 1)
    registry.membership.expect_data(((99,), 2))
    with pytest.raises(
        ConfigError, match=r"has data of shape \[4\], 2 classes; the others have shape \[99\]"
    ):
        RegistrationPhase(registry, 1).run(grid)
    said = [read_notice(m.content) for m in grid.sent if m.metadata.message_type == f"query.{LEFT_OUT}"]
    assert said == ["has data of shape [4], 2 classes; the others have shape [99], 2 classes"] * 3


def test_all_sides_hear_why_no_run_begins_and_its_user_hears_of_those_that_decline(tmp_path: Path) -> None:
    odd = {"ward_2": OTHERS["column"][0], "ward_3": renamed(table(3), outcome="readmitted")}
    grid = grid_of(wards(tmp_path, **odd))(make_app(simulation=True), [], config_of())
    with pytest.raises(
        ConfigError, match=r"differ: node \d+ .*; node \d+ .*; node \d+ cannot take part: .*labels"
    ):
        RegistrationPhase(ClientRegistry(5.0, 1), 1).run(grid)
    told = {
        grid.index[m.metadata.dst_node_id]: read_notice(m.content)
        for m in grid.sent
        if m.metadata.message_type == f"query.{LEFT_OUT}"
    }
    assert sorted(told) == [0, 1]
    for said in told.values():
        assert said.endswith('"node-names"')  # whole
        assert said.startswith("takes no part, as the run cannot begin: the nodes' own data: expected most")
        assert "cannot take part" not in said  # what one node says of its data is not for the others


def test_class_folders_of_other_names_are_left_out(tmp_path: Path) -> None:
    paths = {}
    for i, names in enumerate([("cat", "dog"), ("cat", "wolf"), ("cat", "dog")], 1):
        paths[f"ward-{i}"] = tmp_path / f"ward-{i}"
        for j, name in enumerate(names):
            (paths[f"ward-{i}"] / name).mkdir(parents=True)
            for k in range(3):
                picture = np.full((4, 4), 50 * j + k, np.uint8)
                Image.fromarray(picture).save(paths[f"ward-{i}"] / name / f"{k}.png")
    played = run(paths, dataset="imagefolder", standardise=False)
    assert "the names of the classes" in left_out(played)["ward-2"]
    assert not any(name in left_out(played)["ward-2"] for name in ("wolf", "dog"))


def test_npz_files_are_read_by_the_names_that_they_have(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(3, 10, 3)).astype(np.float32), rng.integers(0, 2, (3, 10))
    names = {"columns": np.array(["age", "bmi", "height"]), "classes": np.array(["ill", "well"])}

    def files(folder: str, **second: Any) -> dict[str, Path]:
        (tmp_path / folder).mkdir()
        for i in range(3):
            mine = {"x": x[i], "y": y[i], **names} | (second if i == 1 else {})
            np.savez(
                tmp_path / folder / f"ward-{i + 1}.npz", **{k: v for k, v in mine.items() if v is not None}
            )
        return {f"ward-{i}": tmp_path / folder / f"ward-{i}.npz" for i in (1, 2, 3)}

    keys = {"dataset": "npz"}
    same = run(files("a"), **keys)
    order = [2, 0, 1]
    second = {"x": x[1][:, order], "columns": names["columns"][order], "classes": np.array(["well", "ill"])}
    assert hashes(run(files("b", **second, y=1 - y[1]), **keys)) == hashes(same)
    odd = run(files("c", columns=np.array(["age", "bmi", "weight"])), **keys)
    assert "the names or kinds of its columns" in left_out(odd)["ward-2"]
    unnamed = run(files("d", columns=None), **keys)
    assert "columns, which it does not name" in left_out(unnamed)["ward-2"]


def test_the_order_of_several_targets_is_that_of_the_run(tmp_path: Path) -> None:
    def two(seed: int, *targets: str) -> Table:
        rng = np.random.default_rng(seed)
        cells = {k: [f"{v:.3f}" for v in rng.normal(size=9)] for k in ("a", "b", "y1:target", "y2:target")}
        return {k: cells[k] for k in ("a", "b", *targets)}

    found = []
    for folder, order in (("a", ("y1:target", "y2:target")), ("b", ("y2:target", "y1:target"))):
        tables = {f"ward_{i}": two(i, "y1:target", "y2:target") for i in (1, 3)} | {"ward_2": two(2, *order)}
        found.append(run(wards(tmp_path / folder, **tables), task="regression", num_classes=0))
    assert hashes(found[0]) == hashes(found[1])


@pytest.mark.parametrize("places", [[0, 0, 1, 2], [1, 2, 3, 4], [-1, 0, 1, 2], ["a"], [0.5], "0", [True]])
def test_an_order_that_is_none_is_refused_by_the_node(places: Any) -> None:
    content = RecordDict({"config": ConfigRecord({INPUTS: places, OUTPUTS: [0]})})
    with pytest.raises(WireError, match="input-order"):
        read_places(content)


def test_an_order_of_other_data_is_refused_by_the_node(tmp_path: Path) -> None:
    config = read_config(config_of() | {"data-path": ""})
    (path, *_) = wards(tmp_path).values()
    owned = load_owned(config.data, str(path), "ward-1", 0)
    with pytest.raises(DataError, match="expected one of 4 inputs; got 2"):
        read_by_name(owned, Meaning({}, (1, 0), (0, 1)), tmp_path)


def test_data_in_another_order_are_described_so(tmp_path: Path) -> None:
    config = read_config(config_of())
    paths = wards(tmp_path, ward_2=ORDERS["all"])
    one, two = (load_owned(config.data, str(paths[name]), name, 0) for name in ("ward-1", "ward-2"))
    assert described(one) != described(two)
    assert described(read_by_name(two, meaning_of(one), tmp_path)) == described(one)


def test_parties_each_agree_with_what_they_registered_first() -> None:
    one, two = Meaning({"kind": "features", "columns": "a"}), Meaning({"kind": "features", "columns": "b"})
    known, refused, unclear = agree(
        {1: Voter("node 1", "ada", one), 2: Voter("node 2", "bob", two)}, Agreement(apart=True)
    )
    assert (refused, unclear) == ({}, "")
    known, refused, _ = agree({7: Voter("node 7", "bob", one)}, known)
    assert "those of the others in the names or kinds" not in refused[7]
    assert "that it registered first in the names or kinds" in refused[7]
    assert not agree({8: Voter("node 8", "bob", two)}, known)[1]


def test_a_run_that_knows_what_data_mean_leaves_out_all_that_differ() -> None:
    known = Agreement({"": Meaning({"classes": "a"}, (), (0, 1))}, whose="those of the initial model")
    other = Voter("node 1", "ada", Meaning({"kind": "image", "classes": "b"}, (), (1, 0)))
    agreed, refused, unclear = agree({1: other}, known)
    assert (agreed, list(refused), unclear) == (known, [1], "")
    assert "those of the initial model in the names of the classes" in refused[1]
    third = Meaning({"kind": "image", "classes": "a"}, (), (1, 0))
    agreed, refused, _ = agree({1: other, 2: Voter("node 2", "bob", third)}, known)
    assert (list(refused), agreed.of("ada").outputs) == ([1], (0, 1))


def served(path: Path, paths: Mapping[str, Path], **keys: Any) -> Path:
    """Do a whole run with its result folder."""
    config = config_of(**keys) | {"runs-dir": str(path), "state-dir": str(path / "state"), "run-name": "r"}
    return run_server(grid_of(paths)(make_app(simulation=True), [], config), read_config(config))


def test_a_run_that_is_resumed_holds_nodes_to_what_it_began_with(tmp_path: Path) -> None:
    whole = served(tmp_path / "whole", wards(tmp_path / "a"), num_server_rounds=4)
    served(tmp_path / "runs", wards(tmp_path / "b"))
    turned_all = wards(tmp_path / "c", **{f"ward_{i}": turned(table(i)) for i in (1, 2, 3)})
    run_dir = served(tmp_path / "runs", turned_all, num_server_rounds=4, resume=True)
    assert RunFolder(run_dir).rounds()[-1]["model_sha256"] == RunFolder(whole).rounds()[-1]["model_sha256"]
    assert "bmi" not in (run_dir / "config.json").read_text()
    odd = {f"ward_{i}": {("w" if k == "bmi" else k): v for k, v in table(i).items()} for i in (1, 2, 3)}
    with pytest.raises(ConfigError, match="with which the run was started in the names or kinds"):
        served(tmp_path / "runs", wards(tmp_path / "d", **odd), num_server_rounds=6, resume=True)


def test_an_initial_model_says_in_which_order_columns_are_read(tmp_path: Path) -> None:
    pooled = write(tmp_path / "pooled.csv", table(9))
    keys = {"data_path": str(pooled), "num_clients": 2, "partition": "iid", "num_classes": 0}
    config = config_of(**keys) | {
        "data-path": str(pooled), "runs-dir": str(tmp_path), "state-dir": str(tmp_path / "state"),
        "run-name": "first",
    }  # fmt: skip
    grid = LocalGrid(make_app(config), [{"partition-id": 0, "num-partitions": 1}])
    model = run_server(grid, read_config(config)) / "model.safetensors"
    more = {"initial_model": str(model)}
    same = served(tmp_path / "a", wards(tmp_path / "x"), **more)
    all_turned = wards(tmp_path / "y", **{f"ward_{i}": turned(table(i)) for i in (1, 2, 3)})
    other = served(tmp_path / "b", all_turned, **more)
    assert [r["model_sha256"] for r in RunFolder(same).rounds()] == [
        r["model_sha256"] for r in RunFolder(other).rounds()
    ]
    odd = {f"ward_{i}": {("w" if k == "bmi" else k): v for k, v in table(i).items()} for i in (1, 2, 3)}
    with pytest.raises(ConfigError, match=r"those of the initial model .* in the names or kinds"):
        served(tmp_path / "c", wards(tmp_path / "z", **odd), **more)
    config |= {"data-path": str(write(tmp_path / "odd.csv", odd["ward_1"])), "run-name": "second"}
    with pytest.raises(ConfigError, match=r"initial-model.* differs from the data of this run in the names"):
        run_server(LocalGrid(make_app(config), []), read_config(config | {"initial-model": str(model)}))


def test_a_nodes_own_log_has_the_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = wards(tmp_path)["ward-1"]
    own = {"client-name": "ward-1", "data-path": str(path)}
    grid = LocalGrid(make_app(), [own], config_of())
    with caplog.at_level(logging.INFO):
        RegistrationPhase(ClientRegistry(5.0, 1), 1).run(grid)
    assert "age (number), bmi (number), job (clerk | nurse) -> outcome" in caplog.text


def test_what_the_server_hears_has_no_names(tmp_path: Path) -> None:
    node = open_node(
        read_config(config_of()), {"client-name": "ward-1", "data-path": str(wards(tmp_path)["ward-1"])}
    )
    said = repr(registration_of(node))
    assert not any(word in said for word in ("age", "bmi", "job", "clerk", "ill", "outcome"))
    assert registration_of(node).meaning == meaning_of(node.dataset)
