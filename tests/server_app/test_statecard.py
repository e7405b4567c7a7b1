"""`bouquet state`: what lies in the state folder, and deleting one run's."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from client_app.memory.state import StateStore
from server_app.cli import exits
from server_app.cli.client_state import delete, kept_runs
from server_app.cli.main import main

FIRST, SECOND = "aaaaaaaaaaaa0000", "bbbbbbbbbbbb0000"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two runs of one name and one of another, whose strategy gave no id."""
    root = tmp_path / "state"
    for run, clients, rounds in ((FIRST, "abc", (1, 2, 3)), (SECOND, "a", (7,))):
        for client in clients:
            for t in rounds:
                fields = {"head": {"w": np.zeros(2**18, np.float32)}}  # 1.05 MB
                StateStore(root, "ward trial").save(client, "fedper", t, fields, run, max(t - 2, 0))
    StateStore(root, "other").save("a", "moon", 4, {"previous": {"w": np.zeros(1)}})
    (root / "pool-id").write_text("word")
    return root


def bouquet(*words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["bouquet", "state", *words])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as exit_:
        main()
    return int(exit_.value.code or 0)


def test_the_runs_with_what_their_clients_keep(root: Path) -> None:
    found = [(r.name, r.id, r.algorithms, r.clients, r.refused, r.newest) for r in kept_runs(str(root))]
    assert found == [
        ("other", "-", ("moon",), 1, 0, 4),
        ("ward trial", FIRST[:12], ("fedper",), 3, 0, 3),
        ("ward trial", SECOND[:12], ("fedper",), 1, 0, 7),
    ]
    sizes = [r.size / 2**20 for r in kept_runs(str(root))]
    assert sizes == pytest.approx([0, 9, 1], abs=0.01)  # three clients, each with three versions


def test_the_default_folder_is_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path))
    assert kept_runs("") == []
    StateStore(tmp_path / "state", "r").save("a", "moon", 1, {"previous": {}})
    assert [r.name for r in kept_runs("")] == ["r"]


def test_damaged_files_and_those_of_a_newer_bouquet_are_counted_and_others_are_none_of_it(root: Path) -> None:
    path = StateStore(root, "ward trial").path
    path("b", FIRST).write_bytes(b"garbage")
    path("c", FIRST).rename(path("c", FIRST).with_suffix(".damaged"))
    (root / "models" / "mine").mkdir(parents=True)
    (root / "models" / "mine" / "notes.txt").write_text("not kept state")
    found = [(r.name, r.clients, r.refused) for r in kept_runs(str(root))]
    assert found == [("other", 1, 0), ("ward trial", 1, 2), ("ward trial", 1, 0)]
    assert path("b", FIRST).read_bytes() == b"garbage"  # a list changes nothing


def test_the_command_lists_runs(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bouquet("--state-dir", str(root), monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    for word in ("ward trial", FIRST[:12], SECOND[:12], "fedper", "moon", "9.4 MB"):
        assert word in text
    assert bouquet("other", "--state-dir", str(root), monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    assert "moon" in text
    assert "ward trial" not in text
    assert bouquet("--state-dir", str(root / "nowhere"), monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == "no run has kept state\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["wards"], r"expected a run with kept state in"),
        (["ward trial/cccc"], r"ward trial/aaaaaaaaaaaa"),
        (["../state"], r"expected a run with kept state in"),
        (["--delete", "--yes"], r"expected one run"),
        (["ward trial", "--delete", "--yes"], r"of ward trial/aaaaaaaaaaaa, ward trial/bbbbbbbbbbbb"),
        (["other", "--delete"], r"nothing was deleted. Add --yes"),
    ],
)
def test_what_is_not_one_run_or_not_confirmed_is_refused_and_deletes_nothing(
    words: list[str],
    said: str,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = sorted(root.rglob("*"))
    assert bouquet(*words, "--state-dir", str(root), monkeypatch=monkeypatch) == exits.CONFIG
    assert said in capsys.readouterr().err
    assert sorted(root.rglob("*")) == before


def test_delete_removes_one_runs_and_no_other(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"ward trial/{FIRST[:12]}"
    assert bouquet(name, "--delete", "--yes", "--state-dir", str(root), monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == f"deleted the state of 3 clients of {name}\n"
    assert [(r.name, r.id) for r in kept_runs(str(root))] == [("other", "-"), ("ward trial", SECOND[:12])]
    for run in ("ward trial", "other/-"):  # the only one of its name by now
        assert bouquet(run, "--delete", "--yes", "--state-dir", str(root), monkeypatch=monkeypatch) == 0
    assert [p.name for p in root.iterdir()] == ["pool-id"]


def test_a_folder_that_cannot_be_deleted_is_an_error(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("shutil.rmtree", refused)
    assert (
        bouquet("other", "--delete", "--yes", "--state-dir", str(root), monkeypatch=monkeypatch)
        == exits.FAILED
    )
    assert "cannot be deleted: [Errno 13]" in capsys.readouterr().err


def test_the_copy_of_the_model_that_a_node_keeps_is_listed_and_deleted(root: Path) -> None:
    copy = root / "coded" / FIRST[:12] / "replica" / "0-of-1.safetensors"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(b"\0" * 2**20)
    (found,) = kept_runs(str(root), "coded")
    assert (found.name, found.id, found.clients, found.refused) == ("coded", FIRST[:12], 0, 0)
    assert found.size == pytest.approx(2**20)
    delete("coded", [found], yes=True)
    assert not (root / "coded").exists()
