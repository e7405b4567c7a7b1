"""One lock on files: refused with the holder's words, waited for, freed by a kill, shared by forks."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from task.storage.locks import HeldError, is_locked, locked

HOLD = """
import os, sys, time
from pathlib import Path
from task.storage.locks import locked
with locked(Path(sys.argv[1]), f"process {os.getpid()}"):
    print("held", flush=True)
    time.sleep(60)
"""


def refusal(path: Path, **more: Any) -> str:
    with pytest.raises(HeldError) as caught, locked(path, "me", **more):
        pass
    return caught.value.holder


def test_the_second_is_refused_with_the_words_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lock"
    assert not is_locked(path)
    with locked(path, "the first, by a long name\n"):
        assert [refusal(path), refusal(path)] == ["the first, by a long name"] * 2
        assert is_locked(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not is_locked(path)
    with locked(path, "b"):
        assert refusal(path) == "b"


def test_who_looks_whether_a_lock_is_held_keeps_nobody_from_it(tmp_path: Path) -> None:
    """Two processes that looked and took it at the same moment: the second was refused by a look."""
    path, over = tmp_path / "lock", threading.Event()
    with locked(path):
        pass

    def look() -> None:
        while not over.is_set():
            is_locked(path)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(300):
            with locked(path):
                pass
    finally:
        over.set()
        looking.join()


def test_a_folder_can_be_locked_and_stays_as_it_is(tmp_path: Path) -> None:
    with locked(tmp_path):
        assert refusal(tmp_path) == ""
    assert list(tmp_path.iterdir()) == []


def test_it_waits_so_long_and_says_so_once(tmp_path: Path) -> None:
    path, said, begun = tmp_path / "lock", list[str](), time.monotonic()
    with locked(path, "x"):
        assert refusal(path, wait_s=0.5, waiting=said.append) == "x"
        assert 0.5 <= time.monotonic() - begun < 5
        assert said == ["x"]
        stack = ExitStack()
        stack.enter_context(locked(tmp_path / "other", "y"))
        threading.Timer(0.3, stack.close).start()
        with locked(tmp_path / "other", "z", wait_s=30):
            pass


def test_a_kill_frees_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert refusal(path) == f"process {other.pid}"
        other.kill()
    with locked(path, "x"):
        pass


def test_a_fork_neither_frees_nor_keeps_it(tmp_path: Path) -> None:
    path, (out, into) = tmp_path / "lock", os.pipe()
    with ExitStack() as held:
        held.enter_context(locked(path, "parent"))
        if (ends := os.fork()) == 0:
            held.close()
            os._exit(0)
        os.waitpid(ends, 0)
        assert refusal(path) == "parent"
        if (stays := os.fork()) == 0:
            os.close(into)
            os.read(out, 1)
            os._exit(0)
    with locked(path, "next"):  # though the child still has the file open
        pass
    os.close(into)
    os.waitpid(stays, 0)
    os.close(out)


def test_a_file_system_without_locks_is_an_error_unless_they_are_optional(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refused)
    with pytest.raises(OSError, match="locks"), locked(tmp_path / "lock"):
        pass
    with locked(tmp_path / "lock", optional=True), locked(tmp_path / "lock", optional=True):
        pass
