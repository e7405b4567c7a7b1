"""A server that names run after run fills no node's disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_app.memory import room
from client_app.memory.room import check_room
from task.errors import RefusedError
from task.storage.client_state import folder_of, receipts_of


def test_a_node_keeps_files_of_a_bounded_number_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MOST_RUNS", 3)
    folder_of(tmp_path, "mine", "1" * 32).mkdir(parents=True)
    receipts_of(tmp_path, "1" * 32).mkdir(parents=True)  # the same run
    receipts_of(tmp_path, "2" * 32).mkdir(parents=True)
    check_room(tmp_path, "mine", "3" * 32)
    (tmp_path / ".own-data").mkdir()
    (tmp_path / ".own-data" / f"{'3' * 32}.jsonl").touch()
    check_room(tmp_path, "mine", "1" * 32)
    check_room(tmp_path, "mine", "2" * 32)
    check_room(tmp_path, "mine", "3" * 32)
    with pytest.raises(RefusedError, match="fewer than 3 runs with files on this node; got 3"):
        check_room(tmp_path, "mine", "4" * 32)
