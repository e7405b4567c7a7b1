"""At most one run writes into a result folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from server_app.run.run_lock import holding, is_held
from task.errors import BouquetError, ConfigError

HOLD = """
import sys, time
from pathlib import Path
from server_app.run.run_lock import holding
with holding(Path(sys.argv[1]), 0.0):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_run_is_refused_with_the_process_that_holds_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert not is_held(folder)
    with holding(folder, 0.0):
        assert is_held(folder)
        with pytest.raises(BouquetError, match=f"process {os.getpid()} holds"), holding(folder, 0.0):
            pass
    assert not is_held(folder)
    with holding(folder, 0.0):
        pass


def test_it_waits_for_the_end_and_says_so_once(tmp_path: Path) -> None:
    folder, said, go, waits = tmp_path / "run", list[str](), threading.Event(), threading.Event()

    def say(line: str) -> None:
        said.append(line)
        waits.set()

    def first() -> None:
        with holding(folder, 0.0):
            go.set()
            assert waits.wait(20)

    thread = threading.Thread(target=first)
    thread.start()
    go.wait(10)
    with holding(folder, 30.0, say):
        pass
    thread.join()
    assert len(said) == 1
    assert "waiting up to 30 s" in said[0]


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert is_held(folder)
        other.send_signal(signal.SIGKILL)
        other.wait(30)
    assert not is_held(folder)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="runs-dir"), holding(tmp_path / "file" / "run", 0.0):
        pass
