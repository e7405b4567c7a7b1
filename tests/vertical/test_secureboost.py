"""SecureBoost: the trees of one table, encrypted or not; restarts, repeats, lies; what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Array, Message

from task.errors import BouquetError
from task.resolve.read import read_config
from task.trees.ensemble import TreeEnsemble
from task.vertical import open_tree
from task.vertical.rows import in_common_order, num_tests
from tests.classical.trees import PlayedTrees, config_of
from tests.support import parties
from tests.support.federation import Keep, Played, play
from tests.support.grid import Twice

Change = Callable[[np.ndarray], None]
SLICES = {"ada": slice(2, 4), "bob": slice(0, 2), "cyd": slice(4, 6)}  # bob has the labels
LABEL = "bob"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))


def config(**more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "algorithm": "secureboost", "dataset": "csv", "num-classes": 2, "device": "cpu",
        "num-server-rounds": 3, "local-test-fraction": 0.25, "seed": 3, "roll-call-timeout": 1.0,
        "vertical.key-bits": 0, "gbdt.max-depth": 3, "gbdt.max-bins": 8,
    }  # fmt: skip
    return base | {k.replace("__", ".").replace("_", "-"): v for k, v in more.items()}


def table(rows: int = 120, numbers: bool = False) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return ids, columns with gaps and ties [rows, 6], and classes, or else numbers."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=(rows, 6)).astype(np.float32)
    x[:, 1] = np.rint(x[:, 1])
    score = x @ np.array([1, 1, -1, 0.5, 0, 2]) + rng.logistic(size=rows)
    y = np.rint(score * 8) / 8 if numbers else (score > 0).astype(int)
    x[:, 5] = x[:, 2]  # the same column at two parties: the former one in their order wins
    x[rng.random(x.shape) < 0.15] = np.nan
    return [f"Zoë {i}" for i in range(rows)], x, y


def write(path: Path, ids: list[str], x: np.ndarray, y: np.ndarray | None) -> Path:
    """Write a party's file, whose cells are empty where values are missing."""
    head = ["who:id", *(f"x{j}:number" for j in range(x.shape[1])), *(["label"] if y is not None else [])]
    lines = [",".join(head)]
    for i, row in enumerate(x):
        cells = ["" if np.isnan(v) else repr(float(v)) for v in row]
        lines.append(",".join([ids[i], *cells, *([str(y[i])] if y is not None else [])]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def owners(
    folder: Path, names: tuple[str, ...] = tuple(SLICES), rows: int = 120, numbers: bool = False
) -> dict[str, Path]:
    ids, x, y = table(rows, numbers)
    return {
        name: write(folder / f"{name}.csv", ids, x[:, SLICES[name]], y if name == LABEL else None)
        for name in names
    }


def pooled(keys: Mapping[str, Any], names: Sequence[str] = tuple(SLICES), rows: int = 120) -> TreeEnsemble:
    """Return the trees of gbdt over two sites, of all columns in the order of the parties' names."""
    settings = read_config(keys)
    numbers = settings.data.task == "regression"
    ids, x, y = table(rows, numbers)
    train = in_common_order(ids, settings.seeds.data)[num_tests(len(ids), settings) :]
    columns = np.concatenate([x[train][:, SLICES[name]] for name in sorted(names)], axis=1)
    frame = pd.DataFrame(columns.astype(np.float64), columns=[f"c{j}" for j in range(columns.shape[1])])
    frame["y"] = y[train]
    shared = (
        "growth",
        "max_depth",
        "max_leaves",
        "max_bins",
        "reg_alpha",
        "gamma",
        "learning_rate",
        "min_child_count",
        "subsample",
        "colsample",
        "held_out",
        "patience",
    )
    more = {key: getattr(settings.gbdt, key) for key in shared} | {"cuts": "quantiles"}
    if more["growth"] == "depth-wise":
        del more["max_leaves"]
    frame["place"] = np.arange(len(frame))  # by which parties draw rows
    if more["subsample"] < 1 or more["held_out"]:
        more["row_key"] = f"place(0..{len(frame)})"
    ranged = ", ".join(f"c{j}(-9..9)" for j in range(columns.shape[1]))
    rounds = settings.server.num_server_rounds
    target = f"y({y[train].min()}..{y[train].max()})" if numbers else "y(0..1)"
    goal = "squared-error" if numbers else "logistic"
    one = config_of(ranged, target, rounds, settings.seeds.train, objective=goal, **more)
    return PlayedTrees(one, [frame[::2], frame[1::2]]).trees


def found(keys: Mapping[str, Any], played: Played, files: Mapping[str, Path]) -> TreeEnsemble:
    """Return the trees of the parts that the parties keep."""
    parts = {name: parties.part_of(keys, played, name, files[name]) for name in sorted(files)}
    whose = [name for name in sorted(files) for _ in range(2)]
    own = {name: part for name, part in parts.items() if name != LABEL}
    return open_tree.joined(parts[LABEL], whose, own, LABEL)


def same(one: TreeEnsemble, other: TreeEnsemble) -> bool:
    """Return whether two ensembles have the same arrays, to the bit."""
    theirs = other.to_arrays()
    return all(
        a.dtype == theirs[n].dtype and a.tobytes() == theirs[n].tobytes() for n, a in one.to_arrays().items()
    )


# ------------------------------------------------------------------------------- what is computed


@pytest.mark.parametrize("names", [("ada", "bob", "cyd"), ("bob", "cyd"), ("bob",)], ids=len)
@pytest.mark.parametrize(
    "growth",
    [
        {},
        {"gbdt__growth": "leaf-wise", "gbdt__max_leaves": 6, "gbdt__min_child_count": 7},
        {"gbdt__subsample": 0.6, "gbdt__colsample": 0.5},
        {"gbdt__subsample": 0.8, "gbdt__held_out": 0.3, "gbdt__min_child_count": 3},
    ],
    ids=["depth-wise", "leaf-wise", "drawn", "held-out"],
)
def test_the_trees_are_those_of_one_table_to_the_bit(
    names: tuple[str, ...], growth: dict[str, Any], tmp_path: Path
) -> None:
    keys, files = config(**growth), owners(tmp_path, names)
    played = parties.play_own(files, keys)
    want = pooled(keys, names)
    trees = found(keys, played, files)
    assert same(trees, want)
    assert len(want.feature) > 15
    split_by = {int(f) // 2 for f in want.feature if f >= 0}
    assert split_by == set(range(len(names)))  # each party's columns split nodes


@pytest.mark.parametrize(
    "names", [pytest.param(("ada", "bob", "cyd"), marks=pytest.mark.full), ("bob", "cyd"), ("bob",)], ids=len
)
def test_early_stopping_is_that_of_one_table(names: tuple[str, ...], tmp_path: Path) -> None:
    keys = config(gbdt__held_out=0.4, gbdt__patience=2, num_server_rounds=30, gbdt__learning_rate=1.0)
    files = owners(tmp_path, names)
    played = parties.play_own(files, keys)
    assert same(found(keys, played, files), pooled(keys, names))
    losses = [row["metrics"]["held-out-loss"] for row in played.rows[1:]]
    best = int(np.argmin(losses)) + 1
    assert len(losses) == best + 2 < 30
    trees = found(keys, played, files)
    assert trees.trees == best
    (ids, x, y), settings = table(), read_config(keys)
    tests = in_common_order(ids, settings.seeds.data)[: num_tests(len(ids), settings)]
    f = trees.margins(np.concatenate([x[tests][:, SLICES[name]] for name in sorted(names)], axis=1))[:, 0]
    want = np.mean(np.log1p(np.exp(f)) - y[tests] * f)
    assert played.rows[-1]["client_loss"] == pytest.approx(want, abs=1e-6)  # the best trees are measured


def test_trees_of_numbers_are_those_of_one_table_too(tmp_path: Path) -> None:
    ids, x, y = table(numbers=True)
    columns = np.concatenate([x[:, SLICES["bob"]], x[:, SLICES["cyd"]]], axis=1)
    path = write(tmp_path / "all.csv", ids, columns, y)
    keys = config(
        task="regression", num_classes=0, data_path=str(path), num_clients=2, columns="2,2",
        gbdt__gamma=3.0, gbdt__reg_alpha=0.5,
    )  # fmt: skip
    played = play(keys, nodes=1)
    one, two = (parties.part_of(keys, played, f"client-{k}") for k in range(2))
    whose = [f"client-{k // 2}" for k in range(4)]
    assert same(open_tree.joined(one, whose, {"client-1": two}, "client-0"), pooled(keys, ("bob", "cyd")))
    assert played.rows[3]["client_loss"] < played.rows[1]["client_loss"]


def rows_of(played: Any) -> list[dict[str, Any]]:
    clock = {"seconds", "bytes_up", "bytes_down"}
    return [{k: v for k, v in row.items() if k not in clock} for row in played.rows]


def test_an_encrypted_run_grows_the_very_trees_of_the_one_in_clear(tmp_path: Path) -> None:
    files = owners(tmp_path, ("bob", "cyd"), rows=24)
    keys = config(
        num_server_rounds=2, gbdt__max_bins=4, gbdt__min_child_weight=0.1, gbdt__subsample=0.8,
        gbdt__colsample=0.8, gbdt__held_out=0.2, gbdt__patience=5,
    )  # fmt: skip
    clear, sealed = (
        parties.play_own(files, {**keys, "vertical.key-bits": bits, "state-dir": str(tmp_path / str(bits))})
        for bits in (0, 2048)
    )
    assert rows_of(sealed) == rows_of(clear)
    assert len({row["model_sha256"] for row in clear.rows}) == 3


def test_the_model_is_measured_on_the_common_test_rows(tmp_path: Path) -> None:
    keys, files = config(), owners(tmp_path)
    played = parties.play_own(files, keys)
    trees, (ids, x, y) = found(keys, played, files), table()
    settings = read_config(keys)
    tests = in_common_order(ids, settings.seeds.data)[: num_tests(len(ids), settings)]
    joined = np.concatenate([x[tests][:, SLICES[name]] for name in sorted(SLICES)], axis=1)
    f, t = trees.margins(joined)[:, 0], y[tests]
    assert played.rows[3]["client_accuracy"] == pytest.approx(np.mean((f > 0) == t))
    assert played.rows[3]["client_loss"] == pytest.approx(np.mean(np.log1p(np.exp(f)) - t * f), abs=1e-6)
    assert [row["metrics"]["leaves"] for row in played.rows[1:]] == [
        int((trees.feature[trees.span(i)] < 0).sum()) for i in range(3)
    ]


@pytest.mark.full
def test_neither_nodes_nor_repeats_nor_restarts_change_a_tree(tmp_path: Path) -> None:
    ids, x, y = table()
    path = write(tmp_path / "all.csv", ids, np.concatenate([x[:, SLICES[n]] for n in SLICES], axis=1), y)
    keys = config(data_path=str(path), num_clients=3, columns="2,2,2")
    want = rows_of(play(keys, nodes=1))
    assert len({row["model_sha256"] for row in want}) == 4
    assert rows_of(play(keys, nodes=3, seed=2)) == want
    assert rows_of(play(keys, nodes=2, grid_type=Twice)) == want
    for lost, number in (("histograms", 9), ("divide", 8), ("", 2)):  # within the second round
        kind, seen = f"train.{lost}" if lost else "train", [0]

        def tamper(
            node: int, reply: Message, kind: str = kind, number: int = number, seen: list[int] = seen
        ) -> Message:
            seen[0] += reply.metadata.message_type == kind
            if seen[0] == number:
                reply.content.clear()
                seen[0] += 1
            return reply

        keep = Keep()
        keep.run_id = f"one-{lost}"
        own = keys | {"state-dir": str(tmp_path / f"state-{lost}")}
        with pytest.raises(BouquetError, match=f"every party is needed, and the phase '{lost or 'train'}'"):
            play(own, nodes=3, journal=keep, tamper=tamper)
        again = Keep(keep.snapshots[-1])
        again.run_id = f"one-{lost}"
        assert len(keep.snapshots) == 2
        assert rows_of(play(own, nodes=2, journal=again))[-1] == want[-1]


# --------------------------------------------------------------------------------- what is refused


def changed(
    kind: str, record: str, change: Callable[[np.ndarray], None]
) -> Callable[[int, Message], Message]:
    """Return a tampering with a record of the first answer of a kind."""
    seen = [0]

    def tamper(node: int, reply: Message) -> Message:
        found = [n for n in reply.content.array_records if n.partition(".")[0] == record]
        if reply.metadata.message_type == kind and found and not seen[0]:
            seen[0] += 1
            record_of = reply.content.array_records[found[0]]
            (name,) = [n for n in record_of if n]
            rows = record_of[name].numpy().copy()
            change(rows)
            record_of[name] = Array(rows)
        return reply

    return tamper


def put(at: tuple[int, ...], value: int) -> Change:
    def change(rows: np.ndarray) -> None:
        rows.reshape(-1, rows.shape[-1])[at] = value

    return change


def flip(rows: np.ndarray) -> None:
    rows[..., -1] ^= 1


@pytest.mark.parametrize(
    ("kind", "record", "change", "message"),
    [
        (
            "train.histograms",
            "histograms",
            flip,
            "client bob: field 'histograms': expected those of party ada",
        ),
        ("evaluate.bins", "bins", put((0, 0), 99), "field 'bins': expected at most 7 cuts a column"),
        ("train.search", "splits", put((0, 0), 7), "client ada: field 'splits': expected leaves"),
        ("train.search", "splits", put((0, 1), 2), "client ada: field 'splits': expected one of 2 columns"),
        ("train.search", "asked", put((0, 0), 5), "field 'asked': expected nodes that the step"),
        ("train.search", "sides", put((0, 3), 1), "field 'sides': expected directions of all rows"),
        ("train.divide", "sides", put((0, 3), 3), "field 'sides': expected directions of all rows"),
    ],
)
def test_what_another_party_must_not_send_is_refused(
    kind: str, record: str, change: Change, message: str, tmp_path: Path
) -> None:
    keys = config(num_server_rounds=1)
    with pytest.raises(BouquetError, match=re.escape(message)):
        parties.play_own(owners(tmp_path), keys, tamper=changed(kind, record, change))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"num_classes": 3}, "logistic expects labels of two classes; got 3 classes"),
        ({"gbdt__objective": "softmax"}, "softmax expects no parties"),
        ({"gbdt__objective": "squared-error"}, "squared-error expects one number a row; got 2 classes"),
        ({"gbdt__max_depth": 0}, "gbdt.max-depth"),
        ({"gbdt__patience": 2}, "nothing in this run reads it"),
        ({"gbdt__row_key": "id(0..9)", "gbdt__subsample": 0.5}, "nothing in this run reads it"),
        ({"vertical__standardise": False}, "nothing in this run reads it"),
        ({"missing": "mean"}, "nothing in this run reads it"),  # trees taken out would not fill cells
    ],
    ids=str,
)
def test_settings_that_do_not_go_are_refused(more: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(BouquetError, match=re.escape(message)):
        parties.play_own(owners(tmp_path, ("bob",)), config(**more))
