"""Starting Flower's SuperLink in our process."""

from __future__ import annotations

import dataclasses
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from server_app.deploy.host.processes import Child
from server_app.deploy.kits.kit import read_link_kit
from server_app.deploy.kits.provision import provision
from server_app.deploy.link.run_link import Health, check_addresses, why_it_ended
from server_app.deploy.link.status import Seen
from task import timing
from task.errors import BouquetError, ConfigError
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
    gone = "ModuleNotFoundError: No module named 'flwr.server.superlink.fleet'"
    newest = r'No module named .*\. Install .*: pip install "flwr\[simulation\]==1\.\d+\.\*"$'
    with pytest.raises(ConfigError, match=newest):
        why_it_ended(1, f"Traceback\n{gone}\n")
    assert why_it_ended(1, "Traceback ...\nOSError: full\n") == "ended with exit code 1"
    assert why_it_ended(-9, log) == "was killed by SIGKILL"


def test_a_superlink_that_never_answered_gets_more_time_with_each_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine each start took as long, and each was killed after a minute."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    child, seen = Child("superlink", []), Seen()
    health = Health(child, seen)

    def allowed_s() -> float:
        nonlocal now
        child.started = began = now
        while not health():
            now += 1
        return now - began - 1

    first = timing.SUPERLINK_STARTS_S
    assert [allowed_s() for _ in range(6)] == [first, 2 * first, 4 * first, 8 * first, 900, 900]
    seen.answered = now + 5
    child.started = now
    now += 10
    assert health() == ""
    now += timing.SUPERLINK_SILENT_S
    assert health() == "no valid answer for 25 s (no answer at all)"
    assert allowed_s() == first


@pytest.mark.parametrize("key", ["fleet", "control", "fleet-http"])
def test_an_address_that_is_taken_or_of_another_machine_is_named_with_its_key(
    tmp_path: Path, key: str
) -> None:
    provision(tmp_path / "kits", "127.0.0.1:9092", [])
    kit = read_link_kit(tmp_path / "kits" / "link")
    field = key.replace("-", "_")
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        free = dataclasses.replace(kit, fleet="", control="")
        with pytest.raises(BouquetError, match=rf'kit.toml: key "{key}": .* got {taken}, but another'):
            check_addresses(dataclasses.replace(free, **{field: taken}))  # type: ignore[arg-type]
    check_addresses(dataclasses.replace(free, **{field: taken}))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=rf'key "{key}": .* got 192\.0\.2\.1:9092 \(.*\): choose another'):
        check_addresses(dataclasses.replace(free, **{field: "192.0.2.1:9092"}))  # type: ignore[arg-type]
