"""Means and deviations of columns: nodes' own files give the same as pooled ones; kept, sent, bounded."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from client_app.app import make_app
from server_app.app import run
from strategies import FedAvg
from strategies.membership.stock_clients import why_stock_clients_cannot_join
from task.config.read import as_run_config
from task.errors import ConfigError, RefusedError
from task.resolve.contract import contract_of
from task.resolve.read import read_config
from task.wire import messages as wire
from tests.support.grid import LocalGrid

NAMES = ("ward-1", "ward-2", "ward-3")
KEYS: dict[str, Any] = {
    "dataset": "csv", "model": "logistic", "missing": "mean", "standardise": True, "num-server-rounds": 2,
    "fraction-evaluate": 1.0, "run-name": "t", "progress": "none", "device": "cpu",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def wards(tmp_path: Path) -> Path:
    """Write three tables, of values of very different size and gaps of different frequency."""
    return written(tmp_path / "wards", NAMES)


def written(folder: Path, names: Sequence[str]) -> Path:
    rng = np.random.default_rng(1)
    folder.mkdir()
    for i, name in enumerate(names):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["age", "area", "sex:category(f|m)", "dose", "label:target(no|yes)", "split"])
            for j in range(30 + 10 * i):
                age, area, dose = rng.normal(50, 10 + i), rng.normal(1e6, 2), rng.normal() * 1e-9
                cells = [age, area, "fm"[j % 2], dose]
                gaps = rng.random(4) < 0.1 * i
                cells = ["" if gone else cell for cell, gone in zip(cells, gaps, strict=True)]
                out.writerow([*cells, "yes" if age > 50 else "no", "test" if j % 5 == 0 else "train"])
    return folder


class Nodes(LocalGrid):
    """Keeps what came up, by message type."""

    def push_messages(self, messages: Any) -> Any:
        messages = list(messages)
        ids = list(super().push_messages(messages))
        self.up = getattr(self, "up", [])
        pairs = zip(messages, ids, strict=True)
        self.up += [(m.metadata.message_type, self.replies[i]) for m, i in pairs if i in self.replies]
        return ids


def deployed(tmp_path: Path, wards: Path, *, runs: str = "own", policy: Any = None, **more: Any) -> Any:
    """Run over one node for each table; return the folder's config.json, its model's hash and the grid."""
    keys = KEYS | {"num-classes": 2, "runs-dir": str(tmp_path / runs)} | more
    configs = [
        {"client-name": n, "data-path": str(wards / f"{n}.csv"), **((policy or {}).get(n, {}))} for n in NAMES
    ]
    grid = Nodes(make_app(), configs, as_run_config(read_config(keys | {"runs-dir": "runs"})))
    return (*left(run(grid, read_config(keys))), grid)


def left(folder: Path) -> tuple[Any, list[Any]]:
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return json.loads((folder / "config.json").read_text()), rows


def pooled(
    tmp_path: Path, wards: Path, nodes: int = 2, grid_type: type[LocalGrid] = LocalGrid, **more: Any
) -> tuple[Any, list[Any]]:
    keys = KEYS | {
        "data-path": str(wards), "partition": "natural", "num-clients": 0, "runs-dir": str(tmp_path / "pool"),
    } | more  # fmt: skip
    app = make_app(keys, simulation=True)
    grid = grid_type(app, [{"partition-id": i, "num-partitions": nodes} for i in range(nodes)])
    return left(run(grid, read_config(keys)))


def test_own_files_and_pooled_ones_have_the_same_moments_and_model(tmp_path: Path, wards: Path) -> None:
    """Of the training rows alone, to the last bit, also where 10^6 stands next to 10^-9; and by NumPy."""
    own, rows, _ = deployed(tmp_path, wards)
    pool, pool_rows = pooled(tmp_path, wards)
    moments = {k: own["columns"][k] for k in ("count", "mean", "std")}
    assert moments == {k: pool["columns"][k] for k in ("count", "mean", "std")}
    assert [r["model_sha256"] for r in rows] == [r["model_sha256"] for r in pool_rows]
    assert own["columns"]["names"] == []  # nodes keep names to themselves
    assert pool["columns"]["names"] == ["age", "area", "sex=f", "sex=m", "dose"]
    table = np.array(
        [
            [float(row[c] or "nan") for c in ("age", "area", "dose")]
            for name in NAMES
            for row in csv.DictReader((wards / f"{name}.csv").read_text().splitlines())
            if row["split"] == "train"
        ],
        np.float32,
    ).astype(float)
    numbers = [0, 1, 4]
    assert [moments["count"][j] for j in numbers] == (~np.isnan(table)).sum(axis=0).tolist()
    np.testing.assert_allclose([moments["mean"][j] for j in numbers], np.nanmean(table, axis=0), rtol=1e-12)
    np.testing.assert_allclose([moments["std"][j] for j in numbers], np.nanstd(table, axis=0), rtol=1e-6)
    assert rows[2]["client_accuracy"] > 0.6


@pytest.mark.parametrize("more", [{}, {"standardise": False}], ids=["standardised", "filled"])
def test_a_model_with_a_frozen_part_reads_prepared_columns(
    more: dict[str, Any], tmp_path: Path, wards: Path
) -> None:
    """The columns are asked for before the model is made, and so before it is known what is frozen."""
    keys = {"model": "mlp", "trainable": "3.*", **more}
    _, rows, _ = deployed(tmp_path, wards, **keys)
    _, pool_rows = pooled(tmp_path, wards, **keys)
    assert [r["answered"] for r in rows[1:]] == [3] * (len(rows) - 1)
    assert len({r["model_sha256"] for r in rows}) == len(rows)
    assert [r["model_sha256"] for r in rows] == [r["model_sha256"] for r in pool_rows]


def test_nothing_but_the_sums_leaves_a_node_and_its_bytes_are_booked(tmp_path: Path, wards: Path) -> None:
    _, rows, grid = deployed(tmp_path, wards)
    sums = [reply.content for kind, reply in grid.up if kind == "evaluate.columns"]
    assert len(sums) == 3
    for content in sums:
        shapes = {r: {k: tuple(a.shape) for k, a in c.items()} for r, c in content.array_records.items()}
        assert shapes == {
            "column-sums": {"count": (5,), "sum": (5, 10)},
            "column-squares": {"sum": (5, 19)},
        }
        assert {k: set(m) for k, m in content.metric_records.items()} == {"metrics": {"num-examples"}}
        assert dict(content.config_records) == {}
        sent = wire.read_arrays(content.array_records["column-sums"])
        assert not sent["count"][2:4].any()  # of the category goes nothing
        assert not sent["sum"][2:4].any()
    assert rows[0]["bytes_up"] > 3 * 8 * 5 * 30
    _, rows, grid = deployed(tmp_path, wards, runs="mean", standardise=False)
    sums = [reply.content for kind, reply in grid.up if kind == "evaluate.columns"]
    assert all(set(content.array_records) == {"column-sums"} for content in sums)  # no squares to fill gaps


def test_masked_sums_give_the_same_moments_and_model(tmp_path: Path, wards: Path) -> None:
    plain, plain_rows, _ = deployed(tmp_path, wards)
    unverified = {name: {"secagg-unverified": True} for name in NAMES}
    masked, rows, grid = deployed(tmp_path, wards, runs="masked", policy=unverified, secagg=True)
    assert masked["columns"] == plain["columns"]
    assert [r["model_sha256"] for r in rows] == [r["model_sha256"] for r in plain_rows]
    sums = [reply.content for kind, reply in grid.up if kind == "evaluate.columns"]
    assert len(sums) == 3
    for content in sums:
        assert set(content) == {"masked", "secagg"}
        assert dict(content.metric_records) == {}
    filled = deployed(tmp_path, wards, runs="filled", policy=unverified, secagg=True, standardise=False)
    assert filled[0]["columns"] == deployed(tmp_path, wards, runs="mean", standardise=False)[0]["columns"]


@pytest.mark.parametrize("bits", [96, 32])
def test_masked_sums_come_back_without_a_node_that_is_lost(bits: int, tmp_path: Path) -> None:
    """They are those of a plain run that lost it, too; and they are exact, whatever bits updates have."""

    class Losing(LocalGrid):
        def _deliver(self, message: Message) -> Message | None:
            lost = message.metadata.message_type == "evaluate.columns"
            reply = super()._deliver(message)
            return None if lost and self.index[message.metadata.dst_node_id] == 2 else reply

    wards = written(tmp_path / "wards", [f"ward-{i}" for i in range(5)])
    more: dict[str, Any] = {"num-server-rounds": 1, "round-timeout": 2.0, "fraction-evaluate": 0.0}
    plain, plain_rows = pooled(tmp_path, wards, 5, Losing, **more)
    secure = {"secagg": True, "secagg-bits": bits, **({"max-update-norm": 10.0} if bits < 96 else {})}
    masked, rows = pooled(tmp_path, wards, 5, Losing, **{**more, **secure, "runs-dir": str(tmp_path / "m")})
    assert masked["columns"] == plain["columns"]
    if bits == 96:
        assert rows[1]["model_sha256"] == plain_rows[1]["model_sha256"]
    assert rows[1]["answered"] == 5  # it is back


@pytest.mark.parametrize("how", [deployed, pooled])
def test_a_model_that_cannot_read_the_columns_is_refused_before_they_are_asked_for(
    how: Any, tmp_path: Path, wards: Path
) -> None:
    """Each node said so, and the reason stood behind that of the sums that nobody had sent."""
    said = (
        r'^run-config key "model": "cnn" expects images .*\(these fit: 2nn, logistic, mlp, mlp-bn\) or "dat'
    )
    with pytest.raises(ConfigError, match=said):
        how(tmp_path, wards, model="cnn")


def test_a_run_without_either_key_asks_for_nothing(tmp_path: Path, wards: Path) -> None:
    config, rows, grid = deployed(tmp_path, wards, missing="zero", standardise=False)
    assert "evaluate.columns" not in {kind for kind, _ in grid.up}
    assert "columns" not in config
    assert rows[0]["bytes_up"] == 0


def test_every_later_message_carries_the_moments(tmp_path: Path, wards: Path) -> None:
    """So a node that joins late, or was started again, works with those of the others."""
    config, _, grid = deployed(tmp_path, wards)
    later = [m for m in grid.sent if m.metadata.message_type in ("train", "evaluate")]
    assert len(later) == 2 * 2 * 3
    for message in later:
        sent = wire.read_columns(message.content, 5)
        assert sent is not None
        assert {k: a.tolist() for k, a in sent.items()}.items() <= config["columns"].items()


def test_a_resumed_run_asks_nobody_again(tmp_path: Path, wards: Path) -> None:
    """Else nodes that left or joined since would change the numbers in the midst of a run."""
    before, _, _ = deployed(tmp_path, wards)
    (wards / "ward-3.csv").write_text((wards / "ward-1.csv").read_text())
    after, rows, grid = deployed(tmp_path, wards, resume=True, **{"num-server-rounds": 3})
    assert "evaluate.columns" not in {kind for kind, _ in grid.up}
    assert after["columns"] == before["columns"]
    assert [row["round"] for row in rows] == [0, 1, 2, 3]


def test_the_owners_bound_holds_for_each_column(tmp_path: Path, wards: Path) -> None:
    """A sum over two values gives away either to whoever knows the other; only numbers name the column."""
    lines = (wards / "ward-2.csv").read_text().splitlines()
    few = lines[:4] + ["," + line.partition(",")[2] for line in lines[4:]]
    (wards / "ward-2.csv").write_text("\n".join(few) + "\n")
    config, rows, _ = deployed(tmp_path, wards, policy={"ward-2": {"min-examples": 10}})
    (bad,) = rows[0]["quarantined"]
    assert bad["client"] == "ward-2"
    assert "policy: min-examples = 10; the sum of column 1 would be of" in bad["got"]
    assert "age" not in bad["got"]
    assert config["columns"]["count"][2] == 0
    assert rows[1]["answered"] == 3  # its updates are of enough examples


def test_without_enough_sums_no_round_begins(tmp_path: Path, wards: Path) -> None:
    policy = {name: {"min-examples": 1000} for name in NAMES}
    with pytest.raises(RefusedError, match=r"sums of the columns.*expected those of at least 1.*got 0 of 3"):
        deployed(tmp_path, wards, policy=policy)
    assert not (tmp_path / "own" / "t" / "rounds.jsonl").exists()


def test_hostile_sums_are_quarantined(tmp_path: Path, wards: Path) -> None:
    """Digits that could overflow the sum, and a form that the contract does not have."""
    keys = KEYS | {"num-classes": 2, "runs-dir": str(tmp_path / "runs")}
    configs = [{"client-name": n, "data-path": str(wards / f"{n}.csv")} for n in NAMES]

    def tamper(node: int, reply: Message) -> Message:
        records = reply.content.array_records
        if "column-sums" in records and node < 2:
            arrays = wire.read_arrays(records["column-sums"])
            arrays["sum"] = arrays["sum"] + 2**60 if node else arrays["sum"].astype(np.float64)
            reply.content["column-sums"] = wire.pack_arrays(arrays)
        return reply

    grid = LocalGrid(make_app(), configs, as_run_config(read_config(keys | {"runs-dir": "r"})), tamper=tamper)
    config, rows = left(run(grid, read_config(keys)))
    fields = {q["field"].partition("/")[0] for q in rows[0]["quarantined"]}
    assert (len(rows[0]["quarantined"]), fields) == (2, {"column-sums", "sum"})
    assert config["columns"]["count"][0] < 40


def test_another_loop_or_app_is_refused() -> None:
    config = read_config(KEYS | {"num-classes": 2})
    assert "cannot fill and standardise" in why_stock_clients_cannot_join(contract_of(config), config)
    assert FedAvg(config).entry.phases.keys() == {"columns"}


def test_a_node_warns_its_owner_alone_of_unscaled_columns(
    tmp_path: Path, wards: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names of columns stay in the node's own log; of pooled data whoever starts the run reads them."""
    _, _, grid = deployed(tmp_path, wards, standardise=False)
    assert caplog.text.count('"area" (up to 1e+06)') == 3  # each node, before round 1
    assert not any("area" in str(reply.content) for _, reply in grid.up)
    caplog.clear()
    deployed(tmp_path, wards, runs="scaled")
    assert "large to train on" not in caplog.text
