"""Margins in a node's state folder: fewer bytes, the same trees, and no trust in what a file says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from client_app.app import make_app
from client_app.classical import trees as client_trees
from client_app.classical.margins import FIELD, dumped, restore
from server_app.app import run as run_server
from server_app.cli.client_state import kept_runs
from task.catalogue.trees import KNOWN
from task.config.read import as_run_config
from task.errors import DataError
from task.numerics.arrays import Arrays
from task.resolve.read import read_config
from task.storage.client_state import read_kept, write_kept
from task.trees.rows import BoostedRows
from task.wire import messages as wire
from tests.classical.test_runs import sites
from tests.classical.test_trees_runs import FRAME, HEADER, KEYS, N, pooled  # noqa: F401 - a fixture
from tests.classical.trees import PlayedTrees
from tests.support.grid import LocalGrid

ROUNDS = 3


class Forgetful(LocalGrid):
    """Nodes that run each message in a process of its own; `after` is called with the trees asked about."""

    def __init__(self, *args: Any, after: Callable[[int], None] = lambda tree: None, **more: Any) -> None:
        super().__init__(*args, **more)
        self.after = after
        self.down: list[tuple[int, bool, int]] = []  # of each question: tree, whether with all trees, bytes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        for message in sent:
            if KNOWN in message.content:
                whole, number = message.content[KNOWN]["rows"].numpy()[0, :2]
                self.down.append((int(number), bool(whole), wire.payload_bytes(message.content)))
        ids = super().push_messages(sent)
        if self.down:
            self.after(self.down[-1][0])
        return ids

    def _deliver(self, message: Message) -> Message | None:
        client_trees._kept.clear()
        return super()._deliver(message)


def run(
    folder: Path, after: Callable[[int], None] = lambda tree: None, **more: Any
) -> tuple[Path, Forgetful]:
    """Run at three sites, whose files are below `folder`; return the result's folder, and the grid."""
    parts = [FRAME.iloc[rows] for rows in np.array_split(np.arange(N), 3)]
    keys = {k: v for k, v in KEYS.items() if k != "partition"} | {"min-nodes": 3, **more}
    config = read_config(keys | {"runs-dir": str(folder / "runs"), "run-name": "kept"})
    grid = Forgetful(make_app(), sites(folder, parts, 0, HEADER), as_run_config(config), after=after)
    return run_server(grid, config), grid


def files(folder: Path) -> list[Path]:
    return sorted((folder / "cache" / "state").rglob("ward-*.safetensors"))


def sums(folder: Path) -> str:
    return str(json.loads((folder / "result.json").read_text())["table"]["sums_sha256"])


@pytest.fixture
def expected(pooled: PlayedTrees) -> str:  # noqa: F811
    return pooled.arrays["sums-sha256"].tobytes().hex()


def test_a_new_process_for_each_message_needs_the_last_tree_alone(tmp_path: Path, expected: str) -> None:
    folder, grid = run(tmp_path)
    assert sums(folder) == expected
    assert [whole for tree, whole, _ in grid.down] == [True] * 3 + [False] * (len(grid.down) - 3)
    assert len(files(tmp_path)) == 3
    (kept,) = kept_runs(str(tmp_path / "cache" / "state"))  # its owner can list and delete them
    assert (kept.algorithms, kept.clients, kept.newest) == (("gbdt",), 3, ROUNDS)


def _flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)


def _of_another(path: Path) -> None:
    path.write_bytes(files(path.parents[4])[-1].read_bytes())


def _of_other_cuts(path: Path) -> None:
    header, fields = read_kept(path)
    fields[FIELD]["cuts"] = fields[FIELD]["cuts"][::-1].copy()
    write_kept(path, header, fields)


@pytest.mark.parametrize(
    "harm",
    [
        Path.unlink,
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        _flipped,
        _of_another,
        _of_other_cuts,
    ],
    ids=["deleted", "cut off", "flipped", "of another client", "of other cuts"],
)
def test_a_file_that_is_gone_or_wrong_is_made_again(
    harm: Callable[[Path], None], tmp_path: Path, expected: str
) -> None:
    """Between two levels of the second tree, at one site of three."""
    harmed: list[int] = []

    def after(tree: int) -> None:
        if tree == 2 and not harmed:
            harmed.append(tree)
            harm(files(tmp_path)[0])

    folder, grid = run(tmp_path, after)
    assert harmed
    assert sums(folder) == expected
    assert [tree for tree, whole, _ in grid.down if whole] == [1] * 3 + [2] * 3  # asked again, with all trees


def test_a_resumed_run_sends_all_trees_once(tmp_path: Path, expected: str) -> None:
    run(tmp_path, **{"num-server-rounds": 2})
    folder, grid = run(tmp_path, resume=True)
    assert sums(folder) == expected
    assert {whole for tree, whole, _ in grid.down[3:]} == {False}


def test_a_node_that_cannot_write_gets_all_trees_and_says_why(
    tmp_path: Path, expected: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*args: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("client_app.classical.margins.write_kept", full)
    folder, grid = run(tmp_path)
    assert sums(folder) == expected
    assert files(tmp_path) == []
    assert {tree for tree, whole, _ in grid.down if whole} == {1, 2, 3, 4}
    said = {r.getMessage() for r in caplog.records if "margins are not written" in r.getMessage()}
    assert said >= {
        f"round {number}: client {site}: margins are not written: [Errno 28] No space left on device"
        for number in range(1, ROUNDS + 1)
        for site in ("ward-0", "ward-1", "ward-2")
    }


def test_rows_are_digested_once_as_long_as_a_process_has_them(
    tmp_path: Path, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for each message: a file of margins is written after each tree."""
    digested: list[int] = []
    made = BoostedRows.fingerprint.func

    def counted(rows: BoostedRows) -> bytes:
        digested.append(len(rows.y))
        return made(rows)

    monkeypatch.setattr(BoostedRows.fingerprint, "func", counted)
    monkeypatch.setattr(Forgetful, "_deliver", LocalGrid._deliver)
    client_trees._kept.clear()
    folder, _ = run(tmp_path)
    assert sums(folder) == expected
    assert sum(digested) == N
    assert len(digested) == 3


CHANGES: list[tuple[str, Any]] = [
    ("margins", lambda a: a[:-1]),
    ("margins", lambda a: a.astype(np.float32)),
    ("margins", lambda a: np.full_like(a, np.nan)),
    ("trees", lambda a: a[:5]),
    ("cuts", lambda a: np.full_like(a, np.nan)),
    ("cuts", lambda a: a + np.float32(0.37)),
    ("starts", lambda a: a - 1),
    ("starts", lambda a: a[::-1].copy()),
    ("cuts", None),
]


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_arrays_of_another_form_are_refused(name: str, change: Any, pooled: PlayedTrees) -> None:  # noqa: F811
    (rows,) = pooled.sites
    arrays: Arrays = dict(dumped(rows))
    if change is None:
        del arrays[name]
    else:
        arrays[name] = change(arrays[name])
    digest, rows.digest = rows.digest, b""
    try:
        with pytest.raises(DataError, match="expected"):
            restore(rows, arrays)
        assert rows.digest == b""
    finally:
        rows.digest = digest


def test_margins_of_other_rows_are_not_taken(pooled: PlayedTrees) -> None:  # noqa: F811
    (rows,) = pooled.sites
    arrays = {**dumped(rows), "rows": np.zeros(32, np.uint8), "margins": np.zeros((3, 1))}
    digest, rows.digest = rows.digest, b""
    try:
        restore(rows, arrays)
        assert rows.digest == b""
    finally:
        rows.digest = digest
