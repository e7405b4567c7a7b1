"""Starting Flower's SuperLink in our process."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from server_app.deploy.link.serve import why_it_ended
from task.errors import ConfigError
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


def test_what_a_superlink_cannot_start_with_ends_the_link_and_is_said() -> None:
    log = "Traceback\nalembic.util.CommandError: x\n\ntask.errors.ConfigError: expected an older database\n"
    with pytest.raises(ConfigError, match=r"^the SuperLink cannot start: expected an older database$"):
        why_it_ended(1, log)
    assert why_it_ended(1, "Traceback ...\nOSError: full\n") == "ended with exit code 1"
    assert why_it_ended(-9, log) == "was killed by SIGKILL"
