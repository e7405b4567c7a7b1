"""Nodes whose own files change while a run goes on: counted again every round, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from task.config.paths import cache_dir, state_root
from task.config.sections import DataConfig
from task.datasets import load_owned
from task.resolve.read import read_config
from tests.support.federation import Played, owners_config, play, read_by, write_owners
from tests.support.grid import LocalGrid
from tests.support.joining import joining

HEADER = "a,b,c,d,label:target(0|1|2)\n"


def table(x: np.ndarray, y: np.ndarray, header: str = HEADER) -> str:
    return header + "".join(
        ",".join(f"{v:.6f}" for v in row) + f",{c}\n" for row, c in zip(x, y, strict=True)
    )


def run(
    tmp_path: Path, before: Callable[[int, Path], object], *, own_data: bool = True, rounds: int = 3
) -> Played:
    """Run nodes with a csv file each; `before` a round's registration it may change anna's."""
    data = write_owners(tmp_path / "owners.npz")
    files = {name: tmp_path / f"{name}.csv" for name in data}
    for name, (x, y) in data.items():
        files[name].write_text(table(x, y))

    class Growing(joining(tmp_path, data, lambda c, t: True)):  # type: ignore[misc]
        def __init__(self, app: Any, node_configs: Any, run_config: Any = None, **more: Any) -> None:
            own = [{"client-name": n, "data-path": str(path)} for n, path in sorted(files.items())]
            LocalGrid.__init__(self, app, own, run_config, **more)
            self.done = 1

        def get_node_ids(self) -> Iterable[int]:
            trained = [m.metadata.group_id for m in self.sent if m.metadata.message_type == "train"]
            if (now := max((int(t) for t in trained), default=0) + 1) > self.done:
                self.done = now
                before(now, files["anna"])
            return super().get_node_ids()  # type: ignore[no-any-return]

    keys = {"dataset": "csv", "num_classes": 3, "num_server_rounds": rounds, "stream__own_data": own_data}
    return play(read_by(owners_config(Path(), **keys) | {"data-path": ""}), grid_type=Growing)


def examples(played: Played, client: str = "anna") -> dict[int, int]:
    return {line["round"]: line["examples"] for line in played.keep.clients if line["name"] == client}


def add(rows: int) -> Callable[[int, Path], object]:
    def grow(server_round: int, path: Path) -> None:
        path.write_text(path.read_text() + "1,0,0,0,2\n" * rows)

    return grow


def test_a_file_that_grows_is_counted_before_every_round(tmp_path: Path) -> None:
    played = run(tmp_path, add(2))
    assert examples(played) == {1: 7, 2: 9, 3: 11}
    assert examples(played, "ben") == {1: 12, 2: 12, 3: 12}
    assert not played.keep.lines
    config = read_config({})
    (ledger,) = (state_root(config) / ".own-data").glob("*.jsonl")
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    mine = [line for line in lines if line["client"] == "anna"]
    assert [(line["round"], line["examples"]) for line in mine] == [(1, 7), (2, 9), (3, 11)]
    assert len({line["data"] for line in mine}) == 3
    assert len({line["data"] for line in lines if line["client"] == "ben"}) == 1


def test_its_model_is_that_of_the_rows_that_are_there(tmp_path: Path) -> None:
    """The round after the change is the one of a run whose file was like that from the beginning."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    grown, same = run(tmp_path / "a", add(2), rounds=2), run(tmp_path / "b", lambda t, path: None, rounds=2)
    assert grown.rows[1]["model_sha256"] == same.rows[1]["model_sha256"]
    assert grown.rows[2]["model_sha256"] != same.rows[2]["model_sha256"]


def test_a_file_that_shrinks_counts_less_and_one_that_is_gone_or_damaged_is_left_out_by_name(
    tmp_path: Path,
) -> None:
    def change(server_round: int, path: Path) -> None:
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        if server_round == 2:
            path.write_text("".join(lines[:4]))
        elif server_round == 3:
            path.unlink()
        elif server_round == 4:
            path.write_text(HEADER + "1,2,3,4,2\n" * 5)
        elif server_round == 5:
            path.write_text(HEADER + "1,2,3\n")  # half written

    played = run(tmp_path, change, rounds=5)
    assert examples(played) == {1: 7, 2: 3, 4: 5}
    assert [len(row["selected"]) for row in played.rows[1:]] == [5, 5, 4, 5, 4]
    (why,) = [row["reason"] for row in played.strategy.registry.left_out()]
    assert "expected 5 cells as in the header; got 3" in why


def test_other_columns_are_refused_even_if_they_are_as_many(tmp_path: Path) -> None:
    def rename(server_round: int, path: Path) -> None:
        path.write_text(path.read_text().replace("a,b,c,d", "e,b,c,d"))

    played = run(tmp_path, rename, rounds=2)
    assert examples(played) == {1: 7}
    (why,) = [row["reason"] for row in played.strategy.registry.left_out()]
    assert "client anna: its data have other columns" in why


def test_columns_that_come_in_another_order_are_read_by_name(tmp_path: Path) -> None:
    def turn(server_round: int, path: Path) -> None:
        rows = [line.split(",") for line in path.read_text().split()]
        path.write_text("".join(",".join([d, b, a, c, y]) + "\n" for a, b, c, d, y in rows))

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    turned, same = run(tmp_path / "a", turn), run(tmp_path / "b", lambda t, path: None)
    assert examples(turned) == {1: 7, 2: 7, 3: 7}
    assert [r["model_sha256"] for r in turned.rows] == [r["model_sha256"] for r in same.rows]


@pytest.mark.parametrize("rows", [2, -2])
def test_without_the_key_a_file_must_stay_as_it_was_registered(rows: int, tmp_path: Path) -> None:
    def change(server_round: int, path: Path) -> None:
        text = path.read_text()
        path.write_text(text + "1,0,0,0,2\n" * rows if rows > 0 else "\n".join(text.splitlines()[:rows]))

    played = run(tmp_path, change, own_data=False, rounds=2)
    assert examples(played) == {1: 7}
    (line,) = played.keep.lines
    assert line.client == "anna"
    assert "expected the 7 training examples that its node registered" in line.got
    assert f"has changed, with {7 + rows}" in line.got
    assert "stream.own-data" in line.got


def test_a_file_that_was_only_written_again_is_the_same(tmp_path: Path) -> None:
    played = run(tmp_path, lambda t, path: path.write_text(path.read_text()), own_data=False)
    assert examples(played) == {1: 7, 2: 7, 3: 7}


def test_examples_stay_on_their_side_and_the_cache_has_the_last_two_states(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(1), tmp_path / "anna.csv"
    x, y = rng.normal(size=(60, 4)).round(3), rng.integers(0, 3, 60)
    config = DataConfig(dataset="csv", num_classes=3, local_test_fraction=0.3)
    train: list[set[tuple[float, ...]]] = []
    tests: list[set[tuple[float, ...]]] = []
    for n in (30, 40, 50, 60):
        path.write_text(table(x[:n], y[:n]))
        owned = load_owned(config, str(path), "anna", 1, grows=True)
        rows = [tuple(row) for row in np.asarray(owned.x).tolist()]
        train.append(set(rows[: owned.num_train]))
        tests.append(set(rows[owned.num_train :]))
        assert len(owned.y) == n
    assert all(not a & b for a in train for b in tests)  # what was once trained on is never tested on
    assert len(tests[0]) >= 3
    entries = list((cache_dir(config) / "datasets").glob("csv-*"))
    mine = [e for e in entries if str(path) in (e / "meta.json").read_text()]
    assert len(mine) == 4  # two as read, two as cut
