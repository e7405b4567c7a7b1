"""Starting Flower's SuperLink in our process."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.fleet import empty_database

pytestmark = pytest.mark.filterwarnings("ignore:No path_separator found:DeprecationWarning")  # of alembic


def test_a_database_of_a_newer_flower_is_refused_in_plain_words(tmp_path: Path) -> None:
    database = tmp_path / "link.db"
    shutil.copyfile(empty_database(), database)
    with closing(sqlite3.connect(database)) as db, db:
        db.execute("UPDATE alembic_version SET version_num = 'ffffffffffff'")
    line = [
        sys.executable, "-m", "server_app.deploy.flower.superlink", "--max-reply", "1", "--max-rate", "1",
        "--insecure", "--database", str(database), "--isolation", "process",
    ]  # fmt: skip
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "older; got a newer one's (Can't locate revision identified by 'ffffffffffff')" in last
